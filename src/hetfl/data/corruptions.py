"""The common corruptions of CIFAR-10-C and CIFAR-100-C, at their five severities.

D. Hendrycks and T. Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and Perturbations*,
ICLR 2019, with the parameters of their generator for 32x32 images, which are milder than those of ImageNet-C. Four
peculiarities of the generator are kept: values are truncated, not rounded, to 8 bits; zoom blur's factors reach 1.06
and 1.11 at severities 1 and 2; glass blur copies a neighbour's pixel instead of exchanging the two; frost uses only
five of the six photographs. The seed of the published images is not known, so ours have other random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil, cos, radians, sin

import numpy as np
import scipy  # imports its submodules at their first use
from PIL import Image

from hetfl.errors import HetflError, unknown

SEVERITIES = (1, 2, 3, 4, 5)

Apply = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Corruption:
    """One kind of corruption.

    Attributes:
        apply: a function of an image, float64 [H, W, 3] in [0, 1], a generator, one severity's parameters and, for
            frost, the textures. It returns an image of the same shape, whose values may be outside [0, 1].
        parameters: for severities 1 to 5.
    """

    apply: Apply
    parameters: tuple[tuple[float, ...], ...]


CORRUPTIONS: dict[str, Corruption] = {}
"""Every corruption by name, in the generator's order; the last four are its extra corruptions."""


def corrupt(
    image: np.ndarray,
    name: str,
    severity: int,
    rng: np.random.Generator,
    frost: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Corrupt one image.

    Args:
        image: uint8 [H, W, 3].
        name: a key of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        rng: where all random choices come from.
        frost: textures for the corruption ``frost``, see :func:`frost_texture` and :func:`synthetic_frost`.

    Returns:
        uint8 [H, W, 3].

    Raises:
        HetflError: the corruption or severity does not exist, the image has a wrong type or shape, or frost has no
            textures.
    """
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise HetflError(f"{name}: severity {severity} does not exist; severities are 1 to 5")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise HetflError(f"{name}: image is {image.dtype} {list(image.shape)}, uint8 [H, W, 3] is needed")
    corruption = CORRUPTIONS[name]
    textures = (_large_enough(frost or (), image),) if name == "frost" else ()
    values = corruption.apply(image / 255, rng, *corruption.parameters[severity - 1], *textures)
    return (255 * np.clip(values, 0, 1)).astype(np.uint8)


def frost_texture(photograph: np.ndarray) -> np.ndarray:
    """A frost photograph, uint8 [H, W, 3], resized bilinearly to a fifth, as the generator does it.

    Without antialiasing this selects the middle one of every five pixels.
    """
    return photograph[2::5, 2::5]


def synthetic_frost(rng: np.random.Generator, size: int = 128) -> np.ndarray:
    """A frost texture, uint8 [size, size, 3], to use where the photographs are not available.

    It deviates from the paper: a plasma fractal from dark to bright bluish grey. Like the photographs, it has a mean
    colour of about (146, 167, 179) and a standard deviation of about 22 within 32x32 pixels; unlike them, it shows no
    ice needles.
    """
    dark, bright = np.array([[53.0, 79, 96], [239, 255, 255]])
    return (dark + (bright - dark) * plasma(size, 1.2, rng)[..., None]).astype(np.uint8)


def plasma(size: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """A fractal height map that wraps around, by the diamond-square algorithm.

    Args:
        size: its side, a power of two.
        decay: random offsets shrink by its square with each halving of the grid.
        rng: the source of randomness.

    Returns:
        float64 [size, size] from 0 to 1.
    """
    heights = np.zeros((size, size))
    step, share = size, 1.0

    def between(neighbours: np.ndarray) -> np.ndarray:
        return neighbours / 4 + rng.uniform(-share, share, neighbours.shape)

    while step > 1:
        half = step // 2
        corners, centres = heights[::step, ::step], heights[half::step, half::step]
        down, right = np.roll(corners, -1, axis=0), np.roll(corners, -1, axis=1)
        centres[:] = between(corners + down + right + np.roll(down, -1, axis=1))
        heights[::step, half::step] = between(corners + right + centres + np.roll(centres, 1, axis=0))
        heights[half::step, ::step] = between(corners + down + centres + np.roll(centres, 1, axis=1))
        step, share = half, share / decay**2
    heights -= heights.min()
    return heights / heights.max()


def disk(radius: float, blur: float) -> np.ndarray:
    """The kernel of defocus blur: a disk [k, k] smoothed by a 3x3 Gaussian; its sum is 1."""
    # In float32, as in the generator: with float64 the weighted sum of equal values is less than the value, and flat
    # areas would become darker by one level.
    reach = int(radius) + 1
    rows, columns = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    inside = (rows**2 + columns**2 <= radius**2).astype(np.float32)
    return scipy.ndimage.gaussian_filter(inside / inside.sum(), blur, radius=1, mode="constant")


def motion_weights(radius: float, sigma: float) -> np.ndarray:
    """The weights of ImageMagick's motion blur: half of a Gaussian, [2 * ceil(radius) + 1]; their sum is 1."""
    weights = np.exp(-(np.arange(2 * ceil(radius) + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def moved(x: np.ndarray, radius: float, sigma: float, angle: float) -> np.ndarray:
    """ImageMagick's motion blur.

    Each pixel becomes the weighted mean of the pixels along a line that starts at it, rounded to 8 bits. Beyond the
    image, its edge pixels are repeated.

    Args:
        x: [H, W] or [H, W, C] in [0, 1].
        radius: see :func:`motion_weights`.
        sigma: see :func:`motion_weights`, in pixels.
        angle: of the line, in degrees, clockwise from the right.
    """
    weights = motion_weights(radius, sigma)
    steps = np.arange(len(weights))[:, None]
    height, width = x.shape[:2]
    rows = np.clip(np.arange(height) + np.ceil(steps * sin(radians(angle)) - 0.5).astype(int), 0, height - 1)
    columns = np.clip(np.arange(width) + np.ceil(steps * cos(radians(angle)) - 0.5).astype(int), 0, width - 1)
    met = x[rows[:, :, None], columns[:, None, :]]
    return np.rint(255 * np.tensordot(weights, met, axes=1)) / 255


def zoomed(x: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the middle of an image [H, W, ...] by ``factor`` to the size of the image, bilinearly."""
    height, width = x.shape[:2]
    rows, columns = ceil(height / factor), ceil(width / factor)
    top, left = (height - rows) // 2, (width - columns) // 2
    factors = (factor, factor, *[1] * (x.ndim - 2))
    large = scipy.ndimage.zoom(x[top : top + rows, left : left + columns], factors, order=1)
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    return large[top : top + height, left : left + width]


def _corruption(*parameters: float | tuple[float, ...]) -> Callable[[Apply], Apply]:
    """Register a function under its name, with its parameters for severities 1 to 5."""

    def register(apply: Apply) -> Apply:
        tuples = tuple(each if isinstance(each, tuple) else (each,) for each in parameters)
        CORRUPTIONS[apply.__name__] = Corruption(apply, tuples)
        return apply

    return register


@_corruption(0.04, 0.06, 0.08, 0.09, 0.10)
def gaussian_noise(x: np.ndarray, rng: np.random.Generator, deviation: float) -> np.ndarray:
    """Normal noise, as in low light."""
    return x + rng.normal(0, deviation, x.shape)


@_corruption(500, 250, 100, 75, 50)
def shot_noise(x: np.ndarray, rng: np.random.Generator, rate: float) -> np.ndarray:
    """Poisson noise, as from counting ``rate`` photons at full brightness."""
    return rng.poisson(rate * x) / rate


@_corruption(0.01, 0.02, 0.03, 0.05, 0.07)
def impulse_noise(x: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Salt and pepper: a share of the values becomes 0 or 1, as from bit errors."""
    return np.where(rng.random(x.shape) < share, rng.integers(0, 2, x.shape), x)


@_corruption((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
def defocus_blur(x: np.ndarray, rng: np.random.Generator, radius: float, blur: float) -> np.ndarray:
    """A lens out of focus."""
    return scipy.ndimage.correlate(x, disk(radius, blur)[..., None], mode="mirror")


@_corruption((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
def glass_blur(x: np.ndarray, rng: np.random.Generator, sigma: float, passes: int) -> np.ndarray:
    """Frosted glass: blur, replace each pixel by itself or by a neighbour above or to the left, blur again.

    The generator goes from the last pixel to the first, so it never reads a pixel that it has replaced. A pass can
    therefore read all pixels at once.
    """
    x = np.floor(255 * _blurred(x, sigma)) / 255
    for _ in range(passes):
        shift = rng.integers(-1, 1, (2, *x.shape[:2]))
        shift[:, :2] = shift[:, :, :2] = 0
        rows, columns = np.indices(x.shape[:2]) + shift
        x = x[rows, columns]
    return _blurred(x, sigma)


@_corruption((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
def motion_blur(x: np.ndarray, rng: np.random.Generator, radius: float, sigma: float) -> np.ndarray:
    """A camera that moves sideways."""
    return moved(x, radius, sigma, rng.uniform(-45, 45))


@_corruption(1.06, 1.11, 1.16, 1.21, 1.26)
def zoom_blur(x: np.ndarray, rng: np.random.Generator, stop: float) -> np.ndarray:
    """A camera that moves towards its object: the image averaged with itself enlarged 1, 1.01, 1.02, ... times."""
    factors = np.arange(1, stop, 0.01)  # may include ``stop`` through floating-point error, as in the generator
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


@_corruption(
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
def snow(
    x: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    factor: float,
    threshold: float,
    radius: float,
    sigma: float,
    weight: float,
) -> np.ndarray:
    """Snowflakes on a whitened image: thresholded normal noise with motion blur, added twice, once upside down."""
    flakes = zoomed(rng.normal(mean, deviation, x.shape[:2]), factor)
    flakes = np.floor(255 * np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)) / 255
    flakes = moved(flakes, radius, sigma, rng.uniform(-135, -45))[..., None]
    grey = x @ np.array([[0.299], [0.587], [0.114]])
    whitened = weight * x + (1 - weight) * np.maximum(x, 1.5 * grey + 0.5)
    return whitened + flakes + np.rot90(flakes, 2)


@_corruption((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
def frost(
    x: np.ndarray, rng: np.random.Generator, weight: float, frost_weight: float, textures: Sequence[np.ndarray]
) -> np.ndarray:
    """A random crop of a random texture, uint8 [h, w, 3] and larger than the image, added to the image."""
    texture = textures[int(rng.integers(len(textures)))]
    (height, width), (top, left) = x.shape[:2], rng.integers(0, np.array(texture.shape[:2]) - x.shape[:2])
    return weight * x + frost_weight * texture[top : top + height, left : left + width] / 255


@_corruption((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
def fog(x: np.ndarray, rng: np.random.Generator, amount: float, decay: float) -> np.ndarray:
    """A plasma fractal added, then values scaled so that the image's maximum stays the limit."""
    height, width = x.shape[:2]
    haze = plasma(2 ** (max(height, width) - 1).bit_length(), decay, rng)[:height, :width, None]
    return (x + amount * haze) * x.max() / (x.max() + amount)


@_corruption(0.05, 0.1, 0.15, 0.2, 0.3)
def brightness(x: np.ndarray, rng: np.random.Generator, amount: float) -> np.ndarray:
    """A higher value in HSV; hue and saturation stay, so the channels keep their ratios."""
    value = x.max(axis=-1, keepdims=True)
    ratio = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return np.minimum(value + amount, 1) * ratio


@_corruption(0.75, 0.5, 0.4, 0.3, 0.15)
def contrast(x: np.ndarray, rng: np.random.Generator, factor: float) -> np.ndarray:
    """Smaller distances from the channels' means."""
    means = x.mean(axis=(0, 1))
    return factor * (x - means) + means


@_corruption((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96))
def elastic_transform(
    x: np.ndarray, rng: np.random.Generator, strength: float, sigma: float, shift: float
) -> np.ndarray:
    """A random affine map, then smooth random displacements.

    The affine map moves three corners of a square in the middle by up to ``shift`` pixels along either axis.
    """
    size = np.array(x.shape[:2])
    corners = size // 2 + min(size) // 3 * np.array([[1, 1], [-1, 1], [-1, -1]])
    targets = corners + rng.uniform(-shift, shift, (3, 2))
    back = np.linalg.solve(np.column_stack([targets, np.ones(3)]), corners)
    places = np.indices(x.shape[:2])
    x = _sampled(x, np.tensordot(back[:2].T, places, axes=1) + back[2][:, None, None], mode="mirror")
    noise = rng.uniform(-1, 1, places.shape)
    displacements = strength * scipy.ndimage.gaussian_filter(noise, sigma, axes=(1, 2), mode="reflect", truncate=3)
    return _sampled(x, places + displacements, mode="reflect")


@_corruption(0.95, 0.9, 0.85, 0.75, 0.65)
def pixelate(x: np.ndarray, rng: np.random.Generator, factor: float) -> np.ndarray:
    """Resized to a smaller size and back, with a box filter."""
    image = _pillow(x)
    small = image.resize((int(factor * image.width), int(factor * image.height)), Image.Resampling.BOX)
    return np.asarray(small.resize(image.size, Image.Resampling.BOX)) / 255


@_corruption(80, 65, 58, 50, 40)
def jpeg_compression(x: np.ndarray, rng: np.random.Generator, quality: int) -> np.ndarray:
    """Compressed by JPEG with chroma subsampling."""
    file = BytesIO()
    _pillow(x).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


@_corruption(0.06, 0.1, 0.12, 0.16, 0.2)
def speckle_noise(x: np.ndarray, rng: np.random.Generator, deviation: float) -> np.ndarray:
    """Normal noise in proportion to the value."""
    return x + x * rng.normal(0, deviation, x.shape)


@_corruption(0.4, 0.6, 0.7, 0.8, 1)
def gaussian_blur(x: np.ndarray, rng: np.random.Generator, sigma: float) -> np.ndarray:
    """Gaussian blur."""
    return _blurred(x, sigma)


@_corruption(
    (0.62, 0.1, 0.7, 0.7, 0.5, False),
    (0.65, 0.1, 0.8, 0.7, 0.5, False),
    (0.65, 0.3, 1, 0.69, 0.5, False),
    (0.65, 0.1, 0.7, 0.69, 0.6, True),
    (0.65, 0.1, 0.5, 0.68, 0.6, True),
)
def spatter(
    x: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: bool,
) -> np.ndarray:
    """Drops on the lens, made of thresholded smooth noise: bright water, or mud that covers the image.

    ``strength`` is the brightness of the water, or the blur of the mud's edges in pixels.
    """
    drops = _blurred(rng.normal(mean, deviation, x.shape[:2]), sigma)
    drops = np.where(drops < threshold, 0, drops)
    if mud:
        cover = _blurred((drops > threshold).astype(float), strength)[..., None]
        cover = np.where(cover < 0.8, 0, cover)
        return (1 - cover) * x + cover * np.array([63, 42, 20]) / 255
    # In the generator the cast to 8 bits overflows for rare drops above 1, which become black; here they are bright.
    film = _shaded((255 * np.clip(drops, 0, 1)).astype(np.uint8))[..., None]
    turquoise = np.array([175, 238, 238]) / 255
    return x + strength * film / max(film.max(), 1) * turquoise


@_corruption((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))
def saturate(x: np.ndarray, rng: np.random.Generator, factor: float, offset: float) -> np.ndarray:
    """Another saturation in HSV with the same hue and value; a grey pixel has hue 0, so it becomes red."""
    value = x.max(axis=-1, keepdims=True)
    depth = np.divide(value - x, value, out=np.zeros_like(x), where=value > 0)
    saturation = depth.max(axis=-1, keepdims=True)
    red = np.broadcast_to([0.0, 1.0, 1.0], x.shape)
    hue = np.divide(depth, saturation, out=red.copy(), where=saturation > 0)
    return value * (1 - np.clip(factor * saturation + offset, 0, 1) * hue)


def _shaded(drops: np.ndarray) -> np.ndarray:
    """Drops, uint8 [H, W], multiplied by a relief of the distance from their edges."""
    try:
        import cv2
    except ImportError as error:
        raise HetflError("corruption spatter needs OpenCV; run pip install hetfl[pipeline]") from error
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, emboss), (3, 3))
    return drops * relief.astype(float)


def _large_enough(textures: Sequence[np.ndarray], image: np.ndarray) -> Sequence[np.ndarray]:
    height, width = image.shape[:2]
    if not textures or any(texture.shape[0] <= height or texture.shape[1] <= width for texture in textures):
        shapes = ", ".join(f"{texture.shape[0]}x{texture.shape[1]}" for texture in textures) or "none"
        raise HetflError(f"frost: textures are {shapes}; they must be larger than the image's {height}x{width}")
    return textures


def _blurred(x: np.ndarray, sigma: float) -> np.ndarray:
    return scipy.ndimage.gaussian_filter(x, sigma, axes=(0, 1), mode="nearest")


def _sampled(x: np.ndarray, places: np.ndarray, mode: str) -> np.ndarray:
    """Sample an image [H, W, 3] at rows and columns [2, H, W], bilinearly."""
    channels = [
        scipy.ndimage.map_coordinates(channel, places, order=1, mode=mode) for channel in np.moveaxis(x, -1, 0)
    ]
    return np.stack(channels, axis=-1)


def _pillow(x: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(255 * x).astype(np.uint8))
