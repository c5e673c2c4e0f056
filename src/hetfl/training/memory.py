"""How much memory training takes, before it begins, and how much there is."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages
from hetfl.methods.base import Method, Phase
from hetfl.training.client_run import ClientRun
from hetfl.training.federation import Federation

SHARE = 0.8
"""Of free memory that training may fill; the rest is for tensors that live only between two operations."""

MEMBERSHIP = Path("/proc/self/cgroup")
CONTROL = {
    1: (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
}
"""By version of Linux's control groups: their root, and where a group has its limit, its use, and that of files."""


def saved_bytes(function: Callable[[], Tensor], known: Sequence[Tensor]) -> int:
    """Bytes of the tensors that a function's gradient needs later, those of ``known`` tensors left out."""
    skipped = {tensor.untyped_storage().data_ptr() for tensor in known}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # storages that are freed meanwhile would have their place taken

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skipped:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept.append(function())
    return sum(sizes.values())


def client_bytes(method: Method, run: ClientRun, phase: Phase, images: DeviceImages) -> int:
    """Bytes that a client's training takes besides the frozen weights.

    That is its parameters and what it received, what its optimiser holds, the gradient, a copy of its largest part,
    which the backward pass of a layer may make, a batch, and what the backward pass needs; the last by a forward pass
    of one image again and again, which shows every shape.
    """
    model, size = run.client.model, phase.batch_size
    names = model.names(phase.trains)
    params = {name: tensor.clone().requires_grad_(name in names) for name, tensor in run.params.items()}
    slots = 2 if phase.optimiser == "adam" else int(phase.momentum > 0)
    held = sum(map(_bytes, [*params.values(), *run.received.values()]))
    trained = [_bytes(params[name]) for name in names]
    held += (1 + slots) * sum(trained) + max(trained, default=0)
    nowhere = torch.zeros(size, dtype=torch.int64, device=images.device)
    batch = replace(
        images.batch(nowhere),
        rows=nowhere if phase.data == "alignment" else None,
        drawn=method.drawn(run.received, size, 0),
    )
    known = [*model.tensors(), *params.values(), *run.received.values()]
    training = model.train(model.masks(0, size))
    saved = saved_bytes(lambda: method.objective(training, params, batch, run.received, phase), known)
    return held + _bytes(batch.images) + saved


def resident_bytes(federation: Federation) -> int:
    """Bytes of what lies on the device all the time: the models' own weights and the images."""
    models = {id(model): model for model in federation.models}.values()
    sources = [
        source for data in federation.data for source in (data.train_images, data.test_images, data.public_images)
    ]
    images = {id(source): source for source in sources if source is not None}.values()
    tensors = [tensor for model in models for tensor in model.tensors()]
    tensors += [tensor for source in images for tensor in source.tensors()]
    return sum(_bytes(tensor) for tensor in {tensor.data_ptr(): tensor for tensor in tensors}.values())


def used_bytes(device: torch.device) -> int | None:
    """Bytes of the tensors that are on a device now; None where nothing counts them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def free_bytes(device: torch.device) -> int | None:
    """Bytes that could be allocated now; None where the system does not tell."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    known = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return min([*known, *(max(0, limit - used) for limit, used in _limits())], default=None)


def total_bytes(device: torch.device) -> int:
    """Bytes of a GPU's memory; on a CPU those of the machine, or of the part that a container or a job may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and the bytes used of it without those of files.

    A limit may be set for a group further up, as a cluster sets it for a job and not for the job's steps.
    """
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1 if "memory" in controllers.split(",") else None
        if version is None:
            continue
        root, maximum, usage, files = CONTROL[version]
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            with suppress(OSError, ValueError, KeyError):  # no such group or file, or no limit, which is "max"
                limit = int((each / maximum).read_text())
                stat = dict(entry.split() for entry in (each / "memory.stat").read_text().splitlines())
                yield limit, int((each / usage).read_text()) - int(stat[files])
            if each == root:
                break


def stream_bytes(device: torch.device) -> int:
    """Bytes that torch keeps for products of matrices on each stream of a GPU: 32 MiB on Hopper, else some 8 MiB."""
    if device.type != "cuda":
        return 0
    return 2**25 if torch.cuda.get_device_capability(device)[0] == 9 else 2**23 + 2**17


def free_memory(device: torch.device) -> None:
    """Give back what a GPU's allocator keeps of tensors and recordings that nothing refers to any more."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def reset_peak_memory(device: torch.device) -> None:
    """Start measuring peak memory anew."""
    if device.type == "cuda":
        torch.cuda.init()  # nothing may have used the device yet, and then there are no statistics
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def process_memory() -> int:
    """Bytes of this process's resident memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0


def peak_memory(device: torch.device) -> int | None:
    """Bytes: peak of the device's allocator, or of the process's resident memory on a CPU; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
