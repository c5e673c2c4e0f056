"""Batches from images on the device, against the same batches from torchvision, PIL transforms and a DataLoader.

    python benchmarks/data.py [--device cpu] [--repeats 5]

It needs papers/data/cifar10 (dvc --cd papers repro download-cifar10) and writes a table beside this file. Every case
alternates between the implementations, so that changes of the machine's speed affect all of them. The ratio is to the
faster DataLoader.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from statistics import median

import torch
import torchvision
from PIL import __version__ as pillow_version
from tabulate import tabulate
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR10
from torchvision.transforms import Compose, InterpolationMode, Normalize, Resize, ToTensor

from hetfl.data.batches import DeviceImages, InputSpec
from hetfl.data.store import Dataset, read_dataset
from hetfl.experiments.record import device_name
from hetfl.files import write_text

PAPERS = Path(__file__).parents[1] / "papers"
HALF = (0.5, 0.5, 0.5)
WORKERS = (0, 2)
# Images per timing, enough for at least 0.1 s.
IMAGES = {(32, "resident"): 65_536, (224, "resident"): 4_096, (32, "loader"): 16_384, (224, "loader"): 2_048}


class LocalCifar10(CIFAR10):
    """torchvision's CIFAR-10 without its MD5 check, which would only slow its start."""

    def _check_integrity(self) -> bool:
        return True


def write_torchvision_layout(dataset: Dataset, root: Path) -> None:
    """The training images in the files that torchvision reads."""
    split = dataset.subset("train")
    folder = root / CIFAR10.base_folder
    folder.mkdir()
    rows = split.images.transpose(0, 3, 1, 2).reshape(len(split), -1)
    for number, (name, _) in enumerate(CIFAR10.train_list):
        part = slice(10_000 * number, 10_000 * (number + 1))
        (folder / name).write_bytes(pickle.dumps({"data": rows[part], "labels": split.labels[part].tolist()}))
    LocalCifar10._load_meta = lambda self: None  # type: ignore[method-assign]


def rate(batches: Callable[[], Iterable], count: int, device: torch.device) -> float:
    """Images per second over ``count`` batches, after one uncounted batch."""
    iterator = iter(batches())
    next(iterator)
    images = 0
    started = time.perf_counter()
    for images_of_batch in islice(iterator, count):
        images += len(images_of_batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return images / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    with tempfile.TemporaryDirectory() as temporary:
        dataset = read_dataset(PAPERS / "data" / "cifar10")
        write_torchvision_layout(dataset, Path(temporary))
        starts = [start_up(Path(temporary), device) for _ in range(arguments.repeats)]
        rows = [
            throughput(dataset, Path(temporary), size, interpolation, batch, device, arguments.repeats)
            for size, interpolation in ((32, "bilinear"), (224, "bilinear"), (224, "bicubic"))
            for batch in (16, 64, 256)
        ]
    ours, theirs = (median(values) for values in zip(*starts, strict=True))
    cores = torch.get_num_threads()
    text = "\n\n".join(
        [
            "# Batches from images on the device and from a DataLoader",
            f"{device_name(device)}, {cores} threads, torch {torch.__version__}, torchvision "
            f"{torchvision.__version__}, Pillow {pillow_version}. CIFAR-10's training split, shuffled, normalised, "
            f"float32. The table shows images per second, medians over {arguments.repeats} interleaved runs. The "
            "ratio is to the faster DataLoader, the median of the runs' ratios.",
            tabulate(
                rows,
                headers=[
                    "stored → used",
                    "batch",
                    "resident",
                    *(f"DataLoader, {w} workers" for w in WORKERS),
                    "ratio",
                ],
                tablefmt="github",
                floatfmt=(".0f", ".0f", ".0f", ".0f", ".0f", ".1f"),
            ),
            f"Time until the first batch of 16 at 32x32, without imports: {ours:.3f} s with images on the device, "
            f"{theirs:.3f} s with torchvision and no workers, {theirs / ours:.0f} times as long.",
        ]
    )
    print(text)
    write_text(Path(__file__).with_name(f"data-{device.type}.md"), text + "\n")


def loader(root: Path, size: int, interpolation: str, batch: int, workers: int) -> DataLoader:
    """The usual implementation: one PIL image at a time."""
    resize = [] if size == 32 else [Resize((size, size), InterpolationMode(interpolation))]
    transform = Compose([*resize, ToTensor(), Normalize(HALF, HALF)])
    return DataLoader(LocalCifar10(str(root), transform=transform), batch, shuffle=True, num_workers=workers)


def throughput(
    dataset: Dataset, root: Path, size: int, interpolation: str, batch: int, device: torch.device, repeats: int
) -> list[str | float]:
    """One row of the table."""
    split = dataset.subset("train")
    images = DeviceImages([split], InputSpec(size, interpolation, HALF, HALF), device)
    order = torch.randperm(len(split)).to(device)
    loaders = [loader(root, size, interpolation, batch, workers) for workers in WORKERS]

    def resident() -> Iterable[torch.Tensor]:
        while True:
            for found in images.batches(order, batch):
                yield found.images

    def loaded(source: DataLoader) -> Iterable[torch.Tensor]:
        return (found.to(device) for found, _ in source)

    runs = []
    for _ in range(repeats):
        ours = rate(resident, IMAGES[size, "resident"] // batch, device)
        theirs = [
            rate(lambda source=source: loaded(source), IMAGES[size, "loader"] // batch, device) for source in loaders
        ]
        runs.append([ours, *theirs, ours / max(theirs)])
    name = f"32 → {size}" + (f", {interpolation}" if size != 32 else "")
    return [name, batch, *(median(column) for column in zip(*runs, strict=True))]


def start_up(root: Path, device: torch.device) -> tuple[float, float]:
    """Seconds until the first batch: from the device, and with torchvision."""
    started = time.perf_counter()
    dataset = read_dataset(PAPERS / "data" / "cifar10")
    images = DeviceImages([dataset.subset("train")], InputSpec(32, "bilinear", HALF, HALF), device)
    next(iter(images.batches(torch.randperm(len(images)).to(device), 16)))
    middle = time.perf_counter()
    next(iter(loader(root, 32, "bilinear", 16, 0)))[0].to(device)
    return middle - started, time.perf_counter() - middle


if __name__ == "__main__":
    main()
