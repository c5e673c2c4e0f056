"""How much memory training takes, from shapes alone, and how much there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hetfl.data.batches import Batch, DeviceImages
from hetfl.federation.federation import Federation
from hetfl.federation.sequential import Stay
from hetfl.methods.base import Method, Phase

SHARE = 0.8
"""Of free memory that training may fill; the rest is for what lies between two operations."""


def saved_bytes(function: Callable[[], Tensor], known: Sequence[Tensor]) -> int:
    """Bytes of the tensors that a function's gradient needs later, those of ``known`` tensors left out."""
    skipped = {tensor.untyped_storage()._cdata for tensor in known}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # storages that are freed meanwhile would have their place taken

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in skipped:
            sizes[storage._cdata] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept.append(function())
    return sum(sizes.values())


def client_bytes(method: Method, stay: Stay, phase: Phase, images: DeviceImages) -> int:
    """Bytes that a client's training takes besides the frozen weights: its parameters and what it received, what its
    optimiser holds, the gradient, a batch, and what the backward pass needs. Nothing is computed."""
    model, size = stay.client.model, phase.batch_size
    names = model.names(phase.trains)
    slots = 2 if phase.optimiser == "adam" else int(phase.momentum > 0)
    trained = sum(_bytes(stay.params[name]) for name in names)
    held = sum(map(_bytes, [*stay.params.values(), *stay.received.values()])) + (1 + slots) * trained
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        params = {name: torch.empty_like(fake.from_tensor(tensor)) for name, tensor in stay.params.items()}
        params |= {name: params[name].requires_grad_() for name in names}
        received = {name: fake.from_tensor(tensor) for name, tensor in stay.received.items()}
        spec, queries = images.spec, images.queries
        batch = Batch(
            torch.empty(size, spec.channels, spec.size, spec.size, dtype=images.dtype, device=images.device),
            torch.zeros(size, dtype=torch.int64, device=images.device),
            rows=torch.zeros(size, dtype=torch.int64, device=images.device) if phase.data == "alignment" else None,
            queries=None if queries is None else queries.new_empty(size, queries.shape[1]),
            drawn={name: fake.from_tensor(tensor) for name, tensor in _outside(method, stay, size).items()},
        )
        masks = {name: torch.empty_like(tensor) for name, tensor in model.masks(0, size).items()}
        known = [*model.tensors(), *params.values(), *received.values()]
        known = [fake.from_tensor(t) if not isinstance(t, torch._subclasses.FakeTensor) else t for t in known]
        saved = saved_bytes(lambda: method.objective(model.train(masks), params, batch, received, phase), known)
        return held + _bytes(batch.images) + saved


def _outside(method: Method, stay: Stay, size: int) -> dict[str, Tensor]:
    """What the method draws for a batch, really drawn: its shapes are nowhere else."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        return dict(method.drawn(stay.received, size, 0))


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


def free_bytes(device: torch.device) -> int | None:
    """Bytes that could be allocated now; None where nobody says."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
