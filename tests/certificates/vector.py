"""What the authors' code computed, as tests/vectors holds it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from hetfl.files import sha256_file
from hetfl.tensors import read_tensors

FOLDER = Path(__file__).parent.parent / "vectors"
CONTENT: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text())["vectors"]


@dataclass(frozen=True, eq=False)
class Vector:
    """One entry of vectors.json with its tensors."""

    name: str

    @cached_property
    def entry(self) -> dict[str, Any]:
        """What vectors.json says."""
        return CONTENT[self.name]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All of the file."""
        path = FOLDER / self.entry["file"]
        assert sha256_file(path) == self.entry["sha256"], f"{path} is not the file that vectors.json lists"
        return read_tensors(path)[0]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, without that beginning."""
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}

    @property
    def clients(self) -> int:
        """Number of clients; what is about a model alone has one."""
        return self.entry.get("clients", 1)

    @property
    def participants(self) -> list[list[int]]:
        """Of each round, from 1."""
        return self.entry.get("participants", [[0]])

    def given(self, client: int) -> dict[str, Tensor]:
        """What a client is given, -1 being the server."""
        if "clients" in self.entry:
            return self.under("given/server/" if client < 0 else f"given/client{client}/")
        return self.under("given/")

    @property
    def several(self) -> bool:
        """Whether every client has a network of its own."""
        return isinstance(self.entry["model"].get("base"), list)


def parameter(name: str) -> str:
    """hetfl's name of a parameter of the vectors."""
    if found := re.fullmatch(r"(W|b)(\d|h)", name):
        layer = "head" if found[2] == "h" else f"body.{found[2]}"
        return f"{layer}.{'weight' if found[1] == 'W' else 'bias'}"
    return {"Wt": "transform.weight"}.get(
        name, f"prompts.{name}" if name in ("up", "down", "left", "right") else name
    )
