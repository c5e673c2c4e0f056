from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from hetfl.data import batches
from hetfl.data.batches import DeviceImages, InputSpec
from hetfl.data.inputs import Augmentation
from hetfl.data.store import Subset
from hetfl.errors import HetflError

CPU = torch.device("cpu")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


def subset_of(size: int, height: int, width: int, channels: int = 3, seed: int = 0) -> Subset:
    rng = np.random.default_rng(seed)
    return Subset(
        rng.integers(0, 256, (size, height, width, channels), dtype=np.uint8),
        rng.integers(0, 7, size, dtype=np.int64),
    )


def images_of(
    subset: Subset, size: int, interpolation: str = "bilinear", dtype: torch.dtype = torch.float32
) -> DeviceImages:
    return DeviceImages([subset], InputSpec(size, interpolation, MEAN, STD), CPU, dtype)


def plainly(subset: Subset, size: int, interpolation: str, dtype: torch.dtype) -> Tensor:
    """Scale, resize, clamp, normalise: the same thing, one step after the other."""
    images = torch.from_numpy(subset.images).permute(0, 3, 1, 2).to(dtype) / 255
    if images.shape[-2:] != (size, size):
        images = F.interpolate(images, (size, size), mode=interpolation, antialias=True).clamp(0, 1)
    mean, std = (torch.tensor(values, dtype=dtype)[:, None, None] for values in (MEAN, STD))
    return (images.expand(-1, 3, -1, -1) - mean) / std


@pytest.fixture(params=["cached", "per batch"])
def cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "per batch":
        monkeypatch.setattr(batches, "NORMALISED_CACHE_BYTES", 0)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("height", "width", "channels", "size"),
    [(32, 32, 3, 32), (32, 32, 3, 224), (28, 28, 1, 32), (50, 40, 3, 24), (24, 40, 1, 24), (40, 24, 3, 24)],
)
def test_equals_scale_resize_clamp_normalise(
    height: int, width: int, channels: int, size: int, interpolation: str
) -> None:
    many = 70 if size < 224 else 6
    subset = subset_of(many, height, width, channels)
    index = torch.tensor([3, many - 1, 3, 0, *range(40, many - 2)])
    exact = plainly(subset, size, interpolation, torch.float64)[index]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 5e-6), (torch.bfloat16, 2e-2)):
        batch = images_of(subset, size, interpolation, dtype).batch(index)
        assert batch.images.dtype == dtype
        torch.testing.assert_close(batch.images.double(), exact, rtol=tolerance, atol=tolerance)
        assert batch.labels.tolist() == subset.labels[index].tolist()


@pytest.mark.parametrize(("interpolation", "pillow"), [("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC)])
@pytest.mark.parametrize(("stored", "size"), [(32, 224), (64, 24)])
def test_resizes_as_pillow_does_but_for_its_rounding(stored: int, size: int, interpolation: str, pillow: int) -> None:
    subset = subset_of(3, stored, stored)
    # Far from 0 and 255, since Pillow also clamps after the first axis.
    subset = Subset(70 + subset.images // 3, subset.labels)
    found = images_of(subset, size, interpolation).batch(torch.arange(3)).images
    grey = found.permute(0, 2, 3, 1) * torch.tensor(STD) + torch.tensor(MEAN)
    for image, ours in zip(subset.images, grey, strict=True):
        theirs = np.asarray(Image.fromarray(image).resize((size, size), pillow))
        # Pillow rounds after either axis.
        assert np.abs(255 * ours.numpy() - theirs).max() < 1.5


def test_several_subsets_count_through() -> None:
    one, two = subset_of(5, 8, 8, seed=1), subset_of(4, 8, 8, seed=2)
    both = DeviceImages([one, two], InputSpec(8, "bilinear", MEAN, STD), CPU)
    assert len(both) == 9
    batch = both.batch(torch.tensor([4, 5, 8]))
    torch.testing.assert_close(batch.images[:1], images_of(one, 8).batch(torch.tensor([4])).images)
    torch.testing.assert_close(batch.images[1:], images_of(two, 8).batch(torch.tensor([0, 3])).images)
    assert batch.labels.tolist() == [one.labels[4], two.labels[0], two.labels[3]]


def test_batches_are_an_iterable_in_order() -> None:
    subset = subset_of(10, 8, 8)
    index = torch.tensor([9, 2, 2, 7, 0])
    found = images_of(subset, 8).batches(index, 2)
    assert len(found) == 3
    for _ in range(2):
        assert [len(batch.labels) for batch in found] == [2, 2, 1]
        assert torch.cat([batch.labels for batch in found]).tolist() == subset.labels[index].tolist()


def test_no_samples_make_no_wrong_batch() -> None:
    assert all(len(batch.labels) == 0 for batch in images_of(subset_of(4, 8, 8), 8).batches(torch.arange(0), 2))


@pytest.mark.usefixtures("cache")
def test_transform_sees_stored_images_and_keyed_draws() -> None:
    subset = subset_of(10, 6, 8)

    def noise(images: Tensor, generator: torch.Generator) -> Tensor:
        assert images.shape[1:] == (3, 6, 8)
        assert images.min() >= 0 and images.max() <= 1
        return (images + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1)

    images, index = images_of(subset, 12), torch.arange(10)

    def read(seed: int) -> Tensor:
        return torch.cat([batch.images for batch in images.batches(index, 4, noise, seed)])

    again = images.batches(index, 4, noise, 1)
    first, second = (torch.cat([batch.images for batch in again]) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, read(1), rtol=0, atol=0)
    assert (first - read(2)).abs().max() > 0.1
    assert (first - images.batch(index).images).abs().max() > 0.1
    same = torch.cat([batch.images for batch in images.batches(index, 4, lambda stored, _: stored)])
    torch.testing.assert_close(same, images.batch(index).images)


def test_images_of_a_memory_map_are_not_copied(tmp_path) -> None:
    subset = subset_of(10, 6, 8)
    np.save(tmp_path / "images.npy", subset.images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="c")
    images = images_of(Subset(mapped, subset.labels), 8)
    assert images._raw.data_ptr() == mapped.ctypes.data


@pytest.mark.usefixtures("cache")
def test_a_batch_that_is_kept_is_not_written_over() -> None:
    subset = subset_of(40, 8, 8)
    images = images_of(subset, 12)
    kept = [batch.images for batch in images.batches(torch.arange(40), 4)]
    parts = [batch.images[1] for batch in images.batches(torch.arange(40), 4)]
    again = images.batch(torch.arange(40)).images
    torch.testing.assert_close(torch.cat(kept), again, rtol=0, atol=0)
    torch.testing.assert_close(torch.stack(parts), again[1::4], rtol=0, atol=0)


def test_a_batch_that_autograd_keeps_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "NORMALISED_CACHE_BYTES", 0)
    images = images_of(subset_of(40, 8, 8), 12)
    weight = torch.ones(3, 1, 1, requires_grad=True)
    loss = torch.zeros(())
    for batch in images.batches(torch.arange(40), 4):
        loss = loss + (weight * batch.images).sum()
    loss.backward()
    expected = images.batch(torch.arange(40)).images.sum(dim=(0, 2, 3))
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.flatten(), expected, rtol=1e-4, atol=1e-3)


def test_memory_is_used_again_once_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "NORMALISED_CACHE_BYTES", 0)
    monkeypatch.setattr(batches, "READ_AHEAD_BYTES", 0)
    monkeypatch.setattr(batches, "_memory", batches._Memory())
    images = images_of(subset_of(40, 8, 8), 12)
    # A batch is held while the next one is made, so two places take turns; the last, smaller batch fits as well.
    places = {batch.images.data_ptr() for batch in images.batches(torch.arange(38), 4)}
    assert len(places) == 2


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width", "size"), [(28, 28, 28), (24, 40, 28), (28, 28, 14), (28, 14, 14)])
def test_grey_images_stay_grey_for_a_backbone_that_wants_them(
    height: int, width: int, size: int, interpolation: str
) -> None:
    subset = subset_of(40, height, width, channels=1)
    grey = DeviceImages([subset], InputSpec(size, interpolation, MEAN[:1], STD[:1]), CPU)
    found = grey.batch(torch.arange(40)).images
    assert found.shape == (40, 1, size, size)
    torch.testing.assert_close(found, images_of(subset, size, interpolation).batch(torch.arange(40)).images[:, :1])


@pytest.mark.usefixtures("cache")
def test_a_transform_of_grey_images_sees_one_channel() -> None:
    subset = subset_of(10, 8, 8, channels=1)
    grey = DeviceImages([subset], InputSpec(12, "bilinear", MEAN[:1], STD[:1]), CPU)
    shapes = set()

    def keep(images: Tensor, generator: torch.Generator) -> Tensor:
        shapes.add(images.shape[1:])
        return images

    found = torch.cat([batch.images for batch in grey.batches(torch.arange(10), 4, keep)])
    assert shapes == {(1, 8, 8)}
    torch.testing.assert_close(found, grey.batch(torch.arange(10)).images)


def test_colours_are_not_given_to_a_backbone_for_grey_images() -> None:
    with pytest.raises(HetflError, match="images: have 3 channels, the model takes 1; choose a model for colour"):
        DeviceImages([subset_of(4, 8, 8)], InputSpec(8, "bilinear", (0.5,), (0.5,)), CPU)


@pytest.mark.parametrize(("largest_map", "many"), [(0, 512), (24 * 24 * 32, 113), (197 * 1536, 16)])
def test_the_largest_map_of_a_large_batch_on_a_cpu_has_eight_mebibytes(largest_map: int, many: int):
    images = images_of(subset_of(2, 8, 8), 28)
    assert images.large_batch(largest_map) == many
    images.device = torch.device("cuda")
    assert images.large_batch(largest_map) == 512


def test_augmentation_draws_the_same_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    subset, index, augmentation = subset_of(50, 8, 8), torch.arange(50), Augmentation(flip=True, rotation=10)
    expected = next(iter(images_of(subset, 16).batches(index, 50, augmentation, seed=3))).images
    images = images_of(subset, 16)
    # A GPU is simulated: everything stays on the CPU.
    monkeypatch.setattr(batches, "_empty", lambda shape, dtype, device: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(images, "device", SimpleNamespace(type="cuda"))
    found = next(iter(images.batches(index, 50, augmentation, seed=3))).images
    assert torch.equal(found, expected)
