"""How accurate a run is so far, by the measure that decides about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from statistics import fmean
from typing import Any

from hetfl.schema import Round


@dataclass(frozen=True)
class Standing:
    """Accuracies after the rounds so far, in percent; None before the first test.

    Attributes:
        waits: whether the run ends when its accuracy no longer rises, so that its best round is what counts.
        last: after the last test: the mean over clients or, of a run that waits, over all test samples together.
        best: the highest of these in a run that waits; else None.
        best_round: the first round that reached it.
    """

    waits: bool = False
    last: float | None = None
    best: float | None = None
    best_round: int | None = None

    def after(self, line: Round) -> Standing:
        """The standing after a further round."""
        test = line.test()
        if test is None or not line.round:
            return self
        if not self.waits:
            shares = [share for share in test.accuracy if share is not None]
            return replace(self, last=100 * fmean(shares)) if shares else self
        pooled = 100 * test.pooled
        if self.best is not None and pooled <= self.best:
            return replace(self, last=pooled)
        return replace(self, last=pooled, best=pooled, best_round=line.round)

    @property
    def counts(self) -> float | None:
        """The accuracy that counts: of the best round in a run that waits for it, else of the last one."""
        return self.best if self.waits else self.last

    def __str__(self) -> str:
        """``95.3 %``, or ``97.41 %, best 97.42 % in round 218``; empty before the first test."""
        if self.last is None:
            return ""
        if self.best is None:
            return f"{self.last:.1f} %"
        return f"{self.last:.2f} %, best {self.best:.2f} % in round {self.best_round}"


def waits(settings: Mapping[str, Any]) -> bool:
    """Whether a run with these settings of its method ends when its accuracy no longer rises."""
    return settings.get("patience") is not None


def standing(rounds: Iterable[Round], settings: Mapping[str, Any]) -> Standing:
    """The standing of a run after some rounds."""
    return reduce(Standing.after, rounds, Standing(waits(settings)))
