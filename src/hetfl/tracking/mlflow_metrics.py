"""The metrics that MLflow shows: each figure in one unit, under one name in words.

Accuracies are in percent. Bytes and seconds in total are sums from the first round on, so any other metric can be
plotted against them. What few people look at is written where ``HETFL_MLFLOW=all`` asks for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hetfl.errors import HetflError
from hetfl.schema import Metrics, Round, Run

DETAIL = "HETFL_MLFLOW"
"""The environment variable that asks for all metrics."""
LAST, LAST_OF_ALL = "bytes/total", "elements/total"
"""Written last in every round, without and with all metrics: a round that has it has everything."""
AVERAGE, LOSS = "accuracy/average", "loss/training"
"""The two curves by which runs are told apart."""
MAX_NAME = 250
"""MLflow's limit for a name's characters."""

WORDS = {
    # Terms of FedHPL's Theorem 1, see hetfl.methods.parts.theorem.
    "err01": "training error",
    "local_conf": "confidence in the label",
    "logit_bound": "bound of the training error",
    "agg_conf": "confidence of the teacher in the label",
    "agg_error": "bound of the error of the teacher",
    "distill_similarity": "distance between confidences of teacher and client",
    "kd_ce": "distillation cross-entropy",
    "kd_entropy": "entropy of the teacher",
    "kd_loss": "distillation loss",
    "kd_max": "largest distillation loss of a sample",
    "kd_cap": "bound of the largest distillation loss",
    "teacher_acc": "share of classes with a right teacher",
    "valid_frac": "share of samples with a teacher",
    "upload_rate": "share of logits sent",
    "param_kl": "divergence from the initial parameters",
    "width": "width of the embedding",
    "valid_classes": "classes with a teacher",
    "uploaded_logits": "logits received",
    "shrinkage": "shrinkage of the global logits",
    "shrinkage_max": "largest shrinkage of the global logits",
    # FGPT and its baselines.
    "groups": "samples per group",
    "group_entropy": "entropy of the groups",
    "cosine_shared": "cosine of shared prompts",
    "cosine_shared_tokens": "cosine of tokens of shared prompts",
    "cosine_group_local": "cosine of group prompts of clients",
    "cosine_group_local_tokens": "cosine of tokens of group prompts of clients",
    "cosine_group_local_used": "cosine of group prompts of clients in use",
    "cosine_group_global": "cosine of group prompts of the server",
    # FedTGP and pFedPG.
    "margin": "margin between prototypes",
    "loss": "loss of the server",
    "prompt_spread": "distance of prompts to their mean",
}
"""What the records call a diagnostic, in words; other names are shown with blanks for underscores."""

EVALUATED = {
    "std": ("accuracy/standard deviation", 100),
    "balanced_accuracy": ("accuracy/balanced", 100),
    "macro_f1": ("accuracy/macro F1", 100),
    "best_average": ("best round/average", 100),
    "best_pooled": ("best round/pooled", 100),
    "best_round": ("best round/number", 1),
    "window_average": ("last rounds/average", 100),
    "window_pooled": ("last rounds/pooled", 100),
    "window_lowest": ("last rounds/lowest", 100),
    "window_variance": ("last rounds/variance of pooled", 100**2),
    "window_rounds": ("last rounds/number", 1),
    "group_entropy": ("groups/entropy", 1),
    "congruence": ("groups/congruence", 1),
}
"""What an evaluation adds to a run's last round, with the factor to MLflow's unit."""


def wants_all() -> bool:
    """Whether the environment asks for all metrics.

    Raises:
        HetflError: it says something else.
    """
    said = os.environ.get(DETAIL, "")
    if said not in ("", "all"):
        raise HetflError(
            f"{DETAIL}: is {said!r}; it may be 'all' (all metrics) or unset (those that most people read)"
        )
    return said == "all"


@dataclass
class Point:
    """One round of a run: its line, what was sent and how long it took up to then, and when it ended."""

    line: Round
    totals: dict[str, float]
    milliseconds: int

    def values(self, every: bool = False) -> dict[str, float]:
        """Its metrics by name, in an order that ends with :data:`LAST` or :data:`LAST_OF_ALL`."""
        values = _usual(self.line)
        if every:
            values |= _unusual(self.line)
        return values | {name: value for name, value in self.totals.items() if every or "elements" not in name}

    def metrics(self, every: bool = False) -> Iterator[Any]:
        """The same as MLflow's entities."""
        named = self.values(every).items()
        return (metric(name, value, self.milliseconds, self.line.round) for name, value in named)


def points(run: Run, rounds: Iterable[Round]) -> dict[int, Point]:
    """A run's rounds by number. Times come from the record, so that writing a point again is no second point."""
    began = milliseconds(run.started)
    seconds, sent = 0.0, {f"{unit}/{way}": 0 for unit in ("bytes", "elements") for way in ("up", "down", "total")}
    found = {}
    for line in rounds:
        seconds += sum(line.seconds.values())
        for way, size in (("up", line.up), ("down", line.down)):
            for unit, number in (("bytes", size.bytes), ("elements", size.elements)):
                sent[f"{unit}/{way}"] += number
                sent[f"{unit}/total"] += number
        found[line.round] = Point(line, {"seconds/total": seconds, **sent}, began + round(1000 * seconds))
    return found


def evaluated(found: Metrics, when: int, step: int) -> list[Any]:
    """What an evaluation adds, as MLflow's entities. The final accuracies are those of the last round."""
    readings = {"": found, **{f" {reading}": other for reading, other in found.extra.items()}}
    return [
        metric(f"{words}{reading}", factor * value, when, step)
        for reading, figures in readings.items()
        for name, (words, factor) in EVALUATED.items()
        if (value := getattr(figures, name, None)) is not None
    ]


def metric(name: str, value: float, when: int, step: int) -> Any:
    """MLflow's entity, with a name that MLflow takes."""
    from mlflow.entities import Metric

    return Metric(legal(name), float(value), when, step)


def legal(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)[:MAX_NAME]


def milliseconds(when: str) -> int:
    """A record's time as MLflow has it."""
    return round(datetime.fromisoformat(when).timestamp() * 1000)


def _usual(line: Round) -> dict[str, float]:
    values: dict[str, float] = {}
    if percent := list(_of_clients(line).values()):
        values[AVERAGE] = sum(percent) / len(percent)
        values["accuracy/lowest"] = min(percent)
        values["accuracy/highest"] = max(percent)
    for title, shares in (("pooled", line.pooled), ("training", line.train_accuracy)):
        if (mean := _mean(shares)) is not None:
            values[f"accuracy/{title}"] = 100 * mean
    values |= {f"accuracy/pooled {name}": 100 * other.pooled for name, other in line.extra.items()}
    if line.mean_loss is not None:
        values[LOSS] = line.mean_loss
    if line.peak_memory is not None:
        values["memory/peak MiB"] = line.peak_memory / 2**20
    return values


def _unusual(line: Round) -> dict[str, float]:
    values = {f"accuracy of clients/{client}": percent for client, percent in _of_clients(line).items()}
    values |= {f"seconds of a round/{phase}": value for phase, value in line.seconds.items()}
    sources: tuple[tuple[str, Mapping[str, Any]], ...] = (("server", line.diagnostics), ("clients", line.clients))
    for group, figures in sources:
        for name, value in figures.items():
            if (mean := _mean(value)) is not None:
                values[f"{group}/{WORDS.get(name, name.replace('_', ' '))}"] = mean
    return values


def _of_clients(line: Round) -> dict[int, float]:
    return {client: 100 * share for client, share in enumerate(line.accuracy or ()) if share is not None}


def _mean(value: Any) -> float | None:
    """A figure itself, or the mean over its clients and theirs over classes; None where there are no numbers."""
    if isinstance(value, list):
        numbers = [mean for part in value if (mean := _mean(part)) is not None]
        return sum(numbers) / len(numbers) if numbers else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
