import numpy as np
import pytest
import torch
from torch import Tensor

from hetfl.config import validate
from hetfl.data.batches import InputSpec
from hetfl.data.inputs import Augmentation, InputSettings
from hetfl.errors import HetflError

WANTED = InputSpec(224, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def grey(size: int = 500) -> Tensor:
    return torch.full((size, 3, 6, 8), 0.5)


def test_nothing_set_is_what_the_backbone_wants() -> None:
    assert InputSettings().spec(WANTED) == WANTED
    assert InputSettings().transform() is None


def test_what_is_set_replaces_what_the_backbone_wants() -> None:
    settings = InputSettings(interpolation="bilinear", mean=(0.1, 0.2, 0.3))
    assert settings.spec(WANTED) == InputSpec(224, "bilinear", (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))


def test_a_backbone_for_grey_images_takes_the_first_channels_statistics() -> None:
    grey = InputSpec(28, "bilinear", (0.5,), (0.25,))
    assert InputSettings().spec(grey) == grey
    assert InputSettings(mean=(0.1, 0.2, 0.3), size=32).spec(grey) == InputSpec(32, "bilinear", (0.1,), (0.25,))


def test_flip_mirrors_about_half_of_the_images_whole() -> None:
    images = torch.rand(500, 3, 6, 8)
    changed = Augmentation(flip=True)(images, draws())
    mirrored = (changed == images.flip(-1)).all(dim=(1, 2, 3))
    kept = (changed == images).all(dim=(1, 2, 3))
    assert (mirrored ^ kept).all()
    assert 200 < mirrored.sum() < 300


def test_a_quarter_turn_is_a_quarter_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(4, 3, 8, 8)
    monkeypatch.setattr(torch, "rand", lambda *size, generator: torch.ones(size))
    turned = Augmentation(rotation=90)(images, draws())
    assert any(torch.equal(turned, torch.rot90(images, k, (2, 3))) for k in (1, 3))


def test_rotation_keeps_shapes_of_wide_images() -> None:
    # A dot right of the centre of a wide image stays as far from it, in pixels, at any angle.
    image = torch.zeros(1, 1, 21, 61)
    image[..., 10, 36:39] = 1
    angles = [Augmentation(rotation=30)(image, draws(seed)) for seed in range(20)]
    for turned in angles:
        row, column = np.argwhere(turned[0, 0].numpy() > 0).mean(0)
        assert abs(np.hypot(row - 10, column - 30) - 7) < 1
    assert len({turned.argmax().item() for turned in angles}) > 5


def test_noise_has_its_deviation_and_stays_in_range() -> None:
    noisy = Augmentation(noise=0.1)(grey(), draws())
    assert abs(noisy.std() - 0.1) < 0.002 and abs(noisy.mean() - 0.5) < 0.002
    wild = Augmentation(noise=1.0)(grey(), draws())
    assert wild.min() == 0 and wild.max() == 1


def test_the_generator_decides() -> None:
    everything = Augmentation(flip=True, rotation=30, noise=0.05)
    images = torch.rand(20, 3, 6, 8)
    torch.testing.assert_close(everything(images, draws(1)), everything(images, draws(1)), rtol=0, atol=0)
    assert (everything(images, draws(1)) - everything(images, draws(2))).abs().max() > 0.1


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"interpolation": "nearest"}, "input.interpolation: 'nearest'"),
        ({"mean": [0.5]}, "input.mean"),
        ({"augment": {"rotation": -5}}, "input.augment.rotation: -5"),
        ({"augment": {"flop": True}}, "did you mean 'flip'"),
    ],
)
def test_wrong_input_is_named(raw: dict, message: str) -> None:
    with pytest.raises(HetflError, match=message):
        validate(InputSettings, raw, "params.yaml: experiments.x.input")
