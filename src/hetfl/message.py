"""Named tensors: the messages between clients and server, and the server's state.

Only messages cross between client and server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
"""Tensors by name. A name ``group/name`` stands for a tensor in a group; see :class:`ServerState`."""

Nested = Mapping[str, Tensor | Tensors]
"""Tensors by name, and groups of tensors by the group's name."""


def flatten(parts: Nested) -> dict[str, Tensor]:
    """Tensors and groups of tensors as one mapping; a group's tensors are named ``group/name``."""
    flat: dict[str, Tensor] = {}
    for name, part in parts.items():
        flat |= {name: part} if isinstance(part, Tensor) else {f"{name}/{key}": t for key, t in part.items()}
    return flat


def nest(parts: Nested) -> dict[str, Tensor | dict[str, Tensor]]:
    """The inverse of :func:`flatten`; leaves what is nested already."""
    nested: dict[str, Tensor | dict[str, Tensor]] = {}
    for path, tensor in flatten(parts).items():
        name, _, key = path.partition("/")
        if not key:
            nested[name] = tensor
            continue
        members = nested.setdefault(name, {})
        if isinstance(members, Tensor):
            raise ValueError(f"{name!r} is a tensor and cannot be a group with {key!r} in it")
        members[key] = tensor
    return nested


def group(tensors: Tensors, name: str) -> dict[str, Tensor]:
    """The tensors of one group of a flat mapping by their own names; none where there is no such group."""
    return {path.removeprefix(f"{name}/"): t for path, t in tensors.items() if path.startswith(f"{name}/")}


def ungrouped(tensors: Tensors) -> dict[str, Tensor]:
    """The tensors of a flat mapping that are in no group."""
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def without(tensors: Tensors, *names: str) -> dict[str, Tensor]:
    """All but some tensors."""
    return {name: tensor for name, tensor in tensors.items() if name not in names}


class ServerState(Mapping[str, Tensor]):
    """What the server keeps from round to round: tensors, and named groups of tensors.

    ``ServerState({"samples": n, "model": {"head.bias": b}})`` has the tensor ``state["samples"]`` and the group
    ``state.group("model")``. ``state | {"model": mean}`` is a new state with another group; none ever changes. As a
    mapping a state is flat, as a checkpoint stores it: ``state["model/head.bias"]`` is the tensor of the group, and
    ``ServerState(flat)`` is the state again.
    """

    def __init__(self, parts: Nested = {}) -> None:  # noqa: B006 - never mutated
        self._parts = nest(parts)
        self._flat = flatten(self._parts)

    def group(self, name: str) -> Tensors:
        """A group's tensors by name; none where there is no such group."""
        found = self._parts.get(name, {})
        if isinstance(found, Tensor):
            raise TypeError(f"{name!r} is a tensor, not a group")
        return found

    def to(self, device: torch.device) -> ServerState:
        """The state with its tensors on a device."""
        return ServerState({path: tensor.to(device) for path, tensor in self._flat.items()})

    def __or__(self, parts: Nested) -> ServerState:
        return ServerState({**self._parts, **parts})

    def __getitem__(self, path: str) -> Tensor:
        return self._flat[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._flat)

    def __len__(self) -> int:
        return len(self._flat)


class Message(Mapping[str, Tensor]):
    """A flat, ordered mapping from names to tensors of any shape.

    Communication cost is measured by its :attr:`size`: the number of elements, which the papers count, and the bytes
    of the tensors' contents. Names, shapes and framing are not counted, as in the papers.

    Raises:
        TypeError: a value is no tensor.
    """

    def __init__(self, tensors: Tensors = {}) -> None:  # noqa: B006 - never mutated
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"Message: {name!r} is a {type(tensor).__name__}; it should be a tensor")
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def size(self) -> Size:
        """Elements and bytes of all tensors together."""
        tensors = self._tensors.values()
        return Size(sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}{list(tensor.shape)}" for name, tensor in self._tensors.items())
        return f"Message({inside})"


@dataclass(frozen=True)
class Size:
    """How much is sent: tensor elements and bytes."""

    elements: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.elements + other.elements, self.bytes + other.bytes)
