"""Keyed randomness: every draw has its own generator, seeded by what it is for.

Nothing in hetfl uses a global generator. So the engine, the order of clients and a resume change nothing that is
drawn. Order and resume change no bit of a number; the engine, like the other :class:`hetfl.schema.Conditions` of a
run, changes how sums are rounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch


@dataclass(frozen=True)
class Draws:
    """The source of randomness of one run.

    A draw is identified by (seed, purpose, round, client) and possibly further integers. Two draws with
    different keys are independent; the same key always gives the same numbers, on every device, because
    all draws are made on the CPU.
    """

    seed: int
    round: int = 0

    def at(self, round: int) -> Draws:
        """The same source in another round (0 stands for everything before the first round)."""
        return replace(self, round=round)

    def key(self, purpose: str, client: int = -1, *more: int) -> int:
        """A 63-bit seed for one draw; ``client`` -1 stands for the server."""
        text = ":".join(str(part) for part in (self.seed, purpose, self.round, client, *more))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def generator(self, purpose: str, client: int = -1, *more: int) -> torch.Generator:
        """A CPU generator of torch for one draw."""
        return torch.Generator().manual_seed(self.key(purpose, client, *more))

    def numpy_generator(self, purpose: str, client: int = -1, *more: int) -> np.random.Generator:
        """A generator of numpy for one draw."""
        return np.random.default_rng(self.key(purpose, client, *more))


@contextmanager
def seeded_library_code(seed: int) -> Iterator[None]:
    """Run library code that draws from torch's global CPU generator, with that generator seeded.

    The global state is restored afterwards. Meant for weight initialisation inside timm and torch only.
    """
    before = torch.get_rng_state()
    # torch.manual_seed would also keep a traceback for every device that is not in use yet.
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
