"""How accurate a run is so far, by the measure that decides about it, and when it ends."""

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
        patience: rounds that the best one may be old before the run ends, which then is the one that counts; None in
            a run that plays all its rounds.
        last: after the last test: the mean over clients or, of a run with patience, over all test samples together.
        best: the highest of these in a run with patience; else None.
        best_round: the first round that reached it.
        tested: the round of the last test.
        lost: whether no client of a run with patience has finite parameters any more, which no training mends.
    """

    patience: int | None = None
    last: float | None = None
    best: float | None = None
    best_round: int | None = None
    tested: int = 0
    lost: bool = False

    def after(self, line: Round) -> Standing:
        """The standing after a further round."""
        test = line.test()
        if test is None or not line.round:
            return self
        if self.patience is None:
            shares = [share for share in test.accuracy if share is not None]
            return replace(self, last=100 * fmean(shares), tested=line.round) if shares else self
        pooled = 100 * test.pooled
        # Every client took part and none had a finite loss. Scores alone do not tell, since one client's prototypes
        # can make those of all clients not finite.
        lost = not pooled and [*line.loss] == [None] * len(test.accuracy)
        following = replace(self, last=pooled, tested=line.round, lost=lost)
        if self.best is not None and pooled <= self.best:
            return following
        return replace(following, best=pooled, best_round=line.round)

    @property
    def counts(self) -> float | None:
        """The accuracy that counts: of the best round in a run with patience, else of the last one."""
        return self.last if self.patience is None else self.best

    @property
    def end(self) -> int | None:
        """The round after whose test the run ends, if none is better until then; None while nothing says so."""
        return None if self.best_round is None or self.patience is None else self.best_round + self.patience

    @property
    def over(self) -> bool:
        """Whether the run ends here, before the last of its rounds."""
        return self.lost or (self.end is not None and self.tested >= self.end)

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


def standing(rounds: Iterable[Round], patience: int | None) -> Standing:
    """The standing of a run after some rounds."""
    return reduce(Standing.after, rounds, Standing(patience))
