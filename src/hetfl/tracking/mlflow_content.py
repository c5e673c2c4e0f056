"""What MLflow shows of a run record: metrics of every round, tags and parameters of the run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hetfl.schema import Round, Run

# MLflow's own limits: characters of a parameter's value and of a name.
MAX_VALUE = 6000
MAX_NAME = 250
MAX_CLIENT_CURVES = 20
# Written last in every round: a round that has it has everything.
MARKER = "bytes/up_total"


@dataclass
class Point:
    """One round of a run: its line, what was sent up to then, and when it ended."""

    line: Round
    totals: dict[str, int]
    milliseconds: int

    def values(self) -> dict[str, float]:
        """Its metrics by name, :data:`MARKER` last."""
        values = _curves(self.line) | self.totals
        values[MARKER] = values.pop(MARKER)
        return values

    def metrics(self) -> Iterator[Any]:
        """The same as MLflow's entities."""
        return (metric(name, value, self.milliseconds, self.line.round) for name, value in self.values().items())


def points(run: Run, rounds: Iterable[Round]) -> dict[int, Point]:
    """A run's rounds by number. Times come from the record, so that writing a point again is no second point."""
    clock = float(milliseconds(run.started))
    totals = {f"{unit}/{way}_total": 0 for unit in ("elements", "bytes") for way in ("up", "down")}
    found = {}
    for line in rounds:
        clock += 1000 * sum(line.seconds.values())
        for way, size in (("up", line.up), ("down", line.down)):
            totals[f"elements/{way}_total"] += size.elements
            totals[f"bytes/{way}_total"] += size.bytes
        found[line.round] = Point(line, totals.copy(), round(clock))
    return found


def _curves(line: Round) -> dict[str, float]:
    values: dict[str, float] = {}
    clients = {k: 100 * value for k, value in enumerate(line.accuracy or ()) if value is not None}
    if percent := list(clients.values()):
        values["accuracy/average"] = sum(percent) / len(percent)
        values["accuracy/lowest"] = min(percent)
        values["accuracy/highest"] = max(percent)
        if len(percent) <= MAX_CLIENT_CURVES:
            values |= {f"accuracy/client-{client}": value for client, value in clients.items()}
    for title, shares in (("pooled", line.pooled), ("training", line.train_accuracy)):
        if (mean := _mean(shares)) is not None:
            values[f"accuracy/{title}"] = 100 * mean
    values |= {f"accuracy/pooled-{name}": 100 * other.pooled for name, other in line.extra.items()}
    if (mean := _mean(line.loss)) is not None:
        values["loss/average"] = mean
    values |= {f"seconds/{phase}": value for phase, value in line.seconds.items()}
    values["seconds/round"] = sum(line.seconds.values())
    if line.peak_memory is not None:
        values["memory/peak_mib"] = line.peak_memory / 2**20
    for group, figures in (("diagnostics", line.diagnostics), ("clients", line.clients)):
        for name, value in figures.items():
            if (mean := _mean(value)) is not None:
                values[f"{group}/{name}"] = mean
    return values


def tags(folder: Path, run: Run) -> dict[str, str]:
    """What a run is found by and described with; ``folder`` is its record's."""
    counts: Counter[str] = Counter(run.models)
    models = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    where = "/".join(folder.parts[-5:])
    note = (
        f"{run.title} on {run.dataset}, split {run.split}, seed {run.seed}: "
        f"{run.clients} clients ({models}), {run.rounds} rounds. Record: `{where}`"
    )
    keys = ("paper", "table", "method", "row", "dataset", "split", "seed", "commit", "device", "engine", "precision")
    return {
        **{key: str(value) for key in (*keys, "fingerprint", "diverged") if (value := getattr(run, key)) is not None},
        "models": models,
        "mlflow.source.name": "hetfl",
        "mlflow.note.content": note,
    }


def params(run: Run) -> dict[str, str]:
    """A run's settings, and what its numbers rest on."""
    told = run.as_json()
    named = {key: told[key] for key in ("partition", "inputs", "parameters", "versions")}
    return dict(_flatten({**run.settings, **named}))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield _name(f"{prefix}{key}"), text[:MAX_VALUE]


def final(evaluation: Mapping[str, Any], when: int, step: int) -> list[Any]:
    """The numbers of a ``metrics.json``, as MLflow's entities."""
    numbers = {name: value for name, value in evaluation.items() if name != "extra"}
    for reading, other in evaluation.get("extra", {}).items():
        numbers |= {f"{reading}/{name}": value for name, value in other.items()}
    return [metric(f"final/{name}", value, when, step) for name, value in numbers.items() if _is_number(value)]


def metric(name: str, value: float, when: int, step: int) -> Any:
    """MLflow's entity, with a name that MLflow takes."""
    from mlflow.entities import Metric

    return Metric(_name(name), float(value), when, step)


def milliseconds(when: str) -> int:
    """A record's time as MLflow has it."""
    return round(datetime.fromisoformat(when).timestamp() * 1000)


def _name(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)[:MAX_NAME]


def _mean(value: Any) -> float | None:
    """A figure itself, or the mean over its clients and theirs over classes; None where there are no numbers."""
    if isinstance(value, list):
        numbers = [mean for part in value if (mean := _mean(part)) is not None]
        return sum(numbers) / len(numbers) if numbers else None
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
