import colorsys
import sys
from collections.abc import Callable
from io import BytesIO
from math import cos, radians

import numpy as np
import pytest
from PIL import Image

from hetfl.data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    corrupt,
    disk,
    frost_texture,
    motion_weights,
    moved,
    plasma,
    synthetic_frost,
    zoomed,
)
from hetfl.errors import HetflError

TEXTURES = [synthetic_frost(np.random.default_rng(seed)) for seed in range(5)]
FIRST_TEN = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
]
EXTRA = ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
WITHOUT_CHANCE = [
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def flat(value: int, size: int = 32) -> np.ndarray:
    return np.full((size, size, 3), value, np.uint8)


def scene(seed: int, size: int = 32) -> np.ndarray:
    """Something as smooth as a photograph, in colour."""
    channels = [plasma(size, 1.5, rng(3 * seed + channel)) for channel in range(3)]
    return (255 * np.stack(channels, axis=-1)).astype(np.uint8)


def worse(image: np.ndarray, name: str, severity: int, seed: int = 0) -> np.ndarray:
    """As float, so that differences can be taken."""
    return corrupt(image, name, severity, rng(seed), TEXTURES).astype(float)


class Fixed:
    """A generator that draws the same number always, and remembers the limits of uniform ones."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.limits: list[float] = []

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = ()) -> np.ndarray:
        self.limits.append(high)
        return np.full(shape, self.value)

    def normal(self, mean: float, deviation: float, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value)


def test_the_nineteen_of_the_generator() -> None:
    names = list(CORRUPTIONS)
    assert (len(names), names[:10], names[-4:]) == (19, FIRST_TEN, EXTRA)
    assert all(len(each.parameters) == 5 for each in CORRUPTIONS.values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_shape_type_and_draws(name: str) -> None:
    for severity in SEVERITIES:
        for image in (scene(1), flat(0), flat(255), scene(2, 64)[:48]):
            before = image.copy()
            found = corrupt(image, name, severity, rng(), TEXTURES)
            assert (found.dtype, found.shape) == (np.uint8, image.shape)
            np.testing.assert_array_equal(image, before)
            np.testing.assert_array_equal(found, corrupt(image, name, severity, rng(), TEXTURES))
    other = np.array_equal(worse(scene(1), name, 5), worse(scene(1), name, 5, seed=1))
    assert other == (name in WITHOUT_CHANCE)


@pytest.mark.parametrize("name", sorted({*CORRUPTIONS} - {"glass_blur", "frost", "elastic_transform", *EXTRA[2:]}))
def test_severity_grows(name: str) -> None:
    images = [scene(seed) for seed in range(20)]
    far = [
        np.mean([np.abs(worse(image, name, severity, seed) - image) for seed, image in enumerate(images)])
        for severity in SEVERITIES
    ]
    assert far == sorted(far)
    assert far[4] > 1.2 * far[0] > 0.5


@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        ("gaussian_noise", lambda x, deviation: deviation),
        ("speckle_noise", lambda x, deviation: x * deviation),
        ("shot_noise", lambda x, rate: (x / rate) ** 0.5),
    ],
)
def test_noise_has_its_deviation(name: str, deviation: Callable[[float, float], float]) -> None:
    for severity, (parameter,) in enumerate(CORRUPTIONS[name].parameters, start=1):
        noisy = worse(flat(100, 300), name, severity)
        assert noisy.std() == pytest.approx(255 * deviation(100 / 255, parameter), rel=0.03)
        assert noisy.mean() == pytest.approx(99.5, abs=0.2)  # cut, not rounded


def test_impulses_are_salt_and_pepper() -> None:
    for severity, (share,) in enumerate(CORRUPTIONS["impulse_noise"].parameters, start=1):
        noisy = worse(flat(100, 300), "impulse_noise", severity)
        for value in (0, 255):
            assert (noisy == value).mean() == pytest.approx(share / 2, rel=0.06)
        assert (noisy == 100).mean() == pytest.approx(1 - share, rel=0.01)
        assert (noisy == 100).all(axis=-1).mean() == pytest.approx((1 - share) ** 3, rel=0.01)


@pytest.mark.parametrize("name", ["defocus_blur", "gaussian_blur", "motion_blur", "zoom_blur"])
def test_blur_keeps_means_and_loses_detail(name: str) -> None:
    image = rng().integers(0, 256, (256, 256, 3), dtype=np.uint8)
    for severity in SEVERITIES:
        blurred = worse(image, name, severity)
        assert blurred.mean() == pytest.approx(image.mean(), abs=1)
        assert blurred.std() < 0.99 * image.std()
        assert np.abs(worse(flat(97), name, severity) - 97).max() <= 1


@pytest.mark.parametrize("parameters", CORRUPTIONS["defocus_blur"].parameters)
def test_the_disk_is_round_and_sums_to_one(parameters: tuple[float, float]) -> None:
    kernel = disk(*parameters)
    assert kernel.sum() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(kernel, kernel.T, rtol=1e-5)
    np.testing.assert_allclose(kernel, kernel[::-1], rtol=1e-5)
    assert kernel.argmax() == kernel.size // 2 or parameters[0] == 1.5


def test_a_sharp_disk_is_the_mean_inside() -> None:
    np.testing.assert_allclose(disk(1.5, 1e-9)[1:-1, 1:-1], np.full((3, 3), 1 / 9), rtol=1e-6)


def test_motion_takes_from_one_side() -> None:
    weights = motion_weights(6, 1.5)
    assert (len(weights), weights.sum()) == (13, pytest.approx(1))
    assert (np.diff(weights) < 0).all()
    dot = np.zeros((32, 32))
    dot[16, 20] = 1
    for angle, line in ((0, dot[16, 8:21]), (-90, dot[16:29, 20]), (90, dot[4:17, 20])):
        blurred = moved(dot, 6, 1.5, angle)
        along = blurred[16, 8:21] if angle == 0 else blurred[16:29, 20][::-1] if angle == -90 else blurred[4:17, 20]
        assert len(line) == 13
        np.testing.assert_array_equal(along[::-1], np.rint(255 * weights) / 255)
        assert blurred.sum() == pytest.approx(along.sum())


def test_motion_repeats_edges() -> None:
    columns = np.zeros((8, 8))
    columns[:, -1] = 1
    blurred = moved(columns, 3, 1, 0)
    weights = motion_weights(3, 1)
    for column in range(8):
        assert blurred[0, column] == pytest.approx(weights[7 - column :].sum(), abs=0.5 / 255)


def test_zoom() -> None:
    image = scene(0) / 255
    np.testing.assert_array_equal(zoomed(image, 1), image)
    for factor in (1.02, 1.06, 1.25, 1.75, 2.25):
        assert zoomed(image, factor).shape == image.shape
    ramp = np.tile(np.arange(32.0), (32, 1))
    assert np.diff(zoomed(ramp, 2.0)[0]).mean() == pytest.approx(0.5, abs=0.03)
    assert zoomed(ramp, 2.0).mean() == pytest.approx(ramp.mean(), abs=0.6)


def test_zoom_blur_averages_as_many_as_the_generator() -> None:
    """Its floating point ranges hold 7, 12, 16, 21 and 26 factors, and the image itself is counted once more."""
    image = scene(0)
    for severity, steps in enumerate((7, 12, 16, 21, 26), start=1):
        layers = [image / 255, *(zoomed(image / 255, 1 + 0.01 * step) for step in range(steps))]
        expected = 255 * np.mean(layers, axis=0)
        # Factor 1.25 meets a tie of rounding that numpy's range decides otherwise.
        tolerance = 1.001 if severity < 5 else 6
        assert np.abs(worse(image, "zoom_blur", severity) - expected).max() <= tolerance


def test_glass_takes_pixels_from_above_and_the_left() -> None:
    rows, columns = np.indices((64, 64))
    image = np.stack([rows, columns, np.zeros_like(rows)], axis=-1).astype(np.uint8)
    moves = image - worse(image, "glass_blur", 1)
    assert not moves[:2].any() and not moves[:, :2].any()
    inside = moves[2:, 2:, :2].reshape(-1, 2)
    found, counts = np.unique(inside, axis=0, return_counts=True)
    assert found.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    np.testing.assert_allclose(counts / len(inside), 0.25, atol=0.03)


def test_two_passes_of_glass_take_from_further_away() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[:15] = 200
    assert worse(image, "glass_blur", 2)[17:].max() < 20 < worse(image, "glass_blur", 4)[16].max()


def test_snow_only_brightens() -> None:
    for severity in SEVERITIES:
        assert (worse(scene(4), "snow", severity) >= scene(4) - 1.0).all()
    # On black, what the whitening leaves is the same everywhere; flakes are added twice, turned by half a turn.
    flakes = worse(flat(0), "snow", 4)[..., 0] - np.floor(255 * 0.15 * 0.5)
    assert flakes.min() >= 0 and flakes.max() > 50
    np.testing.assert_allclose(flakes, flakes[::-1, ::-1], atol=1)


def test_without_flakes_snow_whitens() -> None:
    image = scene(4)
    grey = np.asarray(Image.fromarray(image).convert("L"))[..., None] / 255
    for parameters in CORRUPTIONS["snow"].parameters:
        weight = parameters[-1]
        expected = weight * image / 255 + (1 - weight) * np.maximum(image / 255, 1.5 * grey + 0.5)
        whitened = CORRUPTIONS["snow"].apply(image / 255, Fixed(0), *parameters)
        np.testing.assert_allclose(whitened, expected, atol=0.5 * 1.5 * (1 - weight) / 255 + 1e-4)


def test_frost_is_a_weighted_sum() -> None:
    texture = np.full((40, 50, 3), 100, np.uint8)
    for severity, (weight, frost_weight) in enumerate(CORRUPTIONS["frost"].parameters, start=1):
        found = corrupt(scene(0), "frost", severity, rng(), [texture])
        expected = np.minimum(weight * scene(0) + frost_weight * 100.0, 255)
        assert np.abs(found - (expected - 0.5)).max() < 0.51


def test_frost_draws_texture_and_place() -> None:
    rows, columns = np.indices((60, 50))
    texture = np.stack([rows, columns, rows], axis=-1).astype(np.uint8) * 5
    corners = {tuple(corrupt(flat(0), "frost", 2, rng(seed), [texture])[0, 0, :2]) for seed in range(40)}
    assert len(corners) > 20
    seen = {corrupt(flat(0), "frost", 1, rng(seed), [flat(40, 64), flat(200, 64)])[0, 0, 0] for seed in range(20)}
    assert seen == {8, 40}


def test_frost_photographs_are_used_at_a_fifth() -> None:
    photograph = rng().integers(0, 256, (315, 527, 3), dtype=np.uint8)
    texture = frost_texture(photograph)
    assert texture.shape == (63, 105, 3)
    np.testing.assert_array_equal(texture[3, 4], photograph[17, 22])


def test_synthetic_frost_is_as_bright_as_the_photographs() -> None:
    mean = np.mean([texture.mean(axis=(0, 1)) for texture in TEXTURES], axis=0)
    np.testing.assert_allclose(mean, [146, 167, 179], atol=12)


def test_fog_is_between_the_image_and_white() -> None:
    for severity, (amount, _) in enumerate(CORRUPTIONS["fog"].parameters, start=1):
        fogged = worse(flat(255), "fog", severity)
        assert (fogged.min(), fogged.max()) == (np.floor(255 / (1 + amount)), 255)
        assert np.ptp(fogged, axis=-1).max() == 0
    assert worse(scene(3) // 2, "fog", 5).max() <= 127


def test_plasma_fills_its_range_wraps_and_roughens_with_less_decay() -> None:
    heights = [plasma(64, decay, rng(1)) for decay in (1.5, 2, 3)]
    assert all((each.min(), each.max()) == (0, 1) for each in heights)
    rough = [np.abs(np.diff(each, axis=0)).mean() for each in heights]
    assert rough[0] > 1.2 * rough[1] > 1.2 * rough[2]
    assert np.abs(heights[2][0] - heights[2][-1]).mean() < 3 * rough[2]


def test_plasma_shrinks_its_random_share_by_the_square_of_decay() -> None:
    fixed = Fixed(1.0)
    plasma(8, 2, fixed)
    assert fixed.limits == [1, 1, 1, 1 / 4, 1 / 4, 1 / 4, 1 / 16, 1 / 16, 1 / 16]


def test_contrast_is_its_formula() -> None:
    image = scene(5)
    for severity, (factor,) in enumerate(CORRUPTIONS["contrast"].parameters, start=1):
        means = image.mean(axis=(0, 1))
        assert np.abs(worse(image, "contrast", severity) - (means + factor * (image - means) - 0.5)).max() < 0.51


@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_hsv_corruptions_agree_with_colorsys(name: str) -> None:
    image = np.concatenate([scene(6)[:12], flat(0)[:2], flat(90)[:2], flat(255)[:2]])
    for severity, parameters in enumerate(CORRUPTIONS[name].parameters, start=1):
        expected = np.empty(image.shape)
        for place in np.ndindex(image.shape[:2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[place] / 255)
            if name == "brightness":
                value = min(value + parameters[0], 1)
            else:
                saturation = min(parameters[0] * saturation + parameters[1], 1)
            expected[place] = colorsys.hsv_to_rgb(hue, saturation, value)
        assert np.abs(worse(image, name, severity) - (255 * expected - 0.5)).max() < 0.51


def test_elastic_transform_without_a_draw_does_nothing() -> None:
    image = scene(7) / 255
    for parameters in CORRUPTIONS["elastic_transform"].parameters:
        changed = CORRUPTIONS["elastic_transform"].apply(image, Fixed(0), *parameters)
        np.testing.assert_allclose(changed, image, atol=1e-12)


def test_elastic_transform_moves_as_drawn() -> None:
    image = scene(7) / 255
    moved_by_two = CORRUPTIONS["elastic_transform"].apply(image, Fixed(2), 0, 0, 2.56)
    np.testing.assert_allclose(moved_by_two[2:, 2:], image[:-2, :-2], atol=1e-12)
    displaced = CORRUPTIONS["elastic_transform"].apply(image, Fixed(-1), 1, 3, 1)  # affine there, displacement back
    np.testing.assert_allclose(displaced[1:-1, 1:-1], image[1:-1, 1:-1], atol=1e-12)


def test_jpeg_and_pixelate_are_pillows() -> None:
    image = scene(8)
    for severity in SEVERITIES:
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=CORRUPTIONS["jpeg_compression"].parameters[severity - 1][0])
        np.testing.assert_array_equal(worse(image, "jpeg_compression", severity), np.asarray(Image.open(file)))
    for severity, side in enumerate((30, 28, 27, 24, 20), start=1):
        box = Image.Resampling.BOX
        expected = Image.fromarray(image).resize((side, side), box).resize((32, 32), box)
        np.testing.assert_array_equal(worse(image, "pixelate", severity), np.asarray(expected))


def test_gaussian_blur_is_a_gaussian() -> None:
    dot = flat(0)
    dot[16, 16, 0] = 255
    blurred, *others = np.moveaxis(worse(dot, "gaussian_blur", 5), -1, 0)
    assert not np.any(others)
    weights = np.exp(-(np.arange(-4, 5) ** 2) / 2)
    expected = 255 * np.outer(weights, weights) / weights.sum() ** 2
    assert np.abs(blurred[12:21, 12:21] - (expected - 0.5)).max() < 0.51


def test_spatter_is_water_then_mud() -> None:
    image = flat(0)
    for severity in (1, 2, 3):
        red, green, blue = np.moveaxis(
            np.sum([worse(image, "spatter", severity, seed) for seed in range(10)], 0), -1, 0
        )
        wet = red > 100
        assert wet.any()
        np.testing.assert_allclose(green[wet] / red[wet], 238 / 175, rtol=0.1)
        np.testing.assert_array_equal(green, blue)
    for severity in (4, 5):
        covered = [worse(flat(200), "spatter", severity, seed) for seed in range(10)]
        assert any((each == [63, 42, 20]).all(axis=-1).any() for each in covered)
        assert np.median(covered) in (199, 200)


def test_no_drop_no_spatter() -> None:
    image = scene(9) / 255
    for parameters in CORRUPTIONS["spatter"].parameters:
        np.testing.assert_array_equal(CORRUPTIONS["spatter"].apply(image, Fixed(0.1), *parameters), image)


def test_motion_blur_runs_sideways_and_snow_down() -> None:
    dot = np.zeros((32, 32))
    dot[16, 16] = 1
    width = np.ptp(np.flatnonzero(moved(dot, 9, 2.5, 45).any(axis=0)))
    assert width == pytest.approx(cos(radians(45)) * 7, abs=1.5)
    noise = rng().integers(0, 256, (64, 64, 3), dtype=np.uint8)
    blurred = [worse(noise, "motion_blur", 5, seed) for seed in range(5)]
    assert np.abs(np.diff(blurred, axis=2)).mean() < np.abs(np.diff(blurred, axis=1)).mean()
    flakes = worse(flat(0), "snow", 5)[..., 0]
    assert np.abs(np.diff(flakes, axis=0)).mean() < np.abs(np.diff(flakes, axis=1)).mean()


@pytest.mark.parametrize(
    ("image", "name", "severity", "message"),
    [
        (flat(0), "fogg", 1, "unknown corruption 'fogg'; did you mean 'fog'?"),
        (flat(0), "fog", 0, "fog: severity 0 does not exist; severities are 1 to 5"),
        (flat(0), "fog", 6, "severity 6 does not exist"),
        (flat(0)[..., :1], "fog", 1, r"image is uint8 \[32, 32, 1\], uint8 \[H, W, 3\] is needed"),
        (flat(0) / 255, "fog", 1, "image is float64"),
        (flat(0), "frost", 1, "frost: textures are none"),
    ],
)
def test_wrong_input_is_named(image: np.ndarray, name: str, severity: int, message: str) -> None:
    with pytest.raises(HetflError, match=message):
        corrupt(image, name, severity, rng())


def test_textures_must_be_larger_than_the_image() -> None:
    with pytest.raises(HetflError, match="textures are 64x32; they must be larger than the image.s 32x32"):
        corrupt(flat(0), "frost", 1, rng(), [flat(0, 64)[:, :32]])


def test_without_opencv_spatter_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(HetflError, match="spatter needs OpenCV; run pip install"):
        corrupt(flat(0), "spatter", 1, rng())
    corrupt(flat(0), "spatter", 5, rng())
