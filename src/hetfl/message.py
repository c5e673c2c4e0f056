"""The message: everything that a client and the server send to each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from safetensors.torch import load, save
from torch import Tensor

Tensors = Mapping[str, Tensor]
"""State of any kind: a flat mapping from names to tensors."""


class Message(Mapping[str, Tensor]):
    """A flat, ordered mapping from names to tensors of any shape.

    Communication cost is measured by its :attr:`size`: the number of elements, which the papers count, and the bytes
    of the tensors' contents. Names, shapes and framing are not counted, as in the papers.
    """

    def __init__(self, tensors: Tensors = {}) -> None:  # noqa: B006 - never mutated
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

    def to_bytes(self) -> bytes:
        """The message as safetensors."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self._tensors.items()}
        return save(tensors, {"order": json.dumps(list(tensors))})

    @classmethod
    def from_bytes(cls, content: bytes) -> Message:
        """Read what :meth:`to_bytes` wrote; names, order, types and shapes are as they were."""
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return cls({name: tensors[name] for name in json.loads(header["__metadata__"]["order"])})

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
