"""What MLflow shows of run records besides metrics: tags, parameters, data sets and descriptions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hetfl.schema import Run, flat
from hetfl.tracking.mlflow_metrics import legal

FORMAT = "2"
"""Of what stands in MLflow; a run of another one is replaced. It increases when a metric changes its name or unit."""
MAX_VALUE = 6000
"""MLflow's limit for the characters of a parameter's value."""
DIGEST = 12
"""Characters of a checksum that are a data set's digest; MLflow shows it in every line, and takes 36 at most."""

# MLflow has views for models and for language-model applications; without this tag it shows the latter.
KIND = {"mlflow.experimentKind": "custom_model_development"}


def tags(folder: Path, run: Run) -> dict[str, str]:
    """What a run is found by, grouped by and described with; ``folder`` is its record's."""
    models = _counted(run.models)
    note = (
        f"{run.title} on {run.dataset}, split {run.split}, seed {run.seed}: "
        f"{run.clients} clients ({models}), {run.rounds} rounds. Record: `{record_path(folder)}`"
    )
    keys = ("paper", "table", "method", "row", "dataset", "split", "seed", "commit", "device", "engine", "precision")
    told = (*keys, "fingerprint", "diverged", "failed")
    return {
        **{key: str(value) for key in told if (value := getattr(run, key)) is not None},
        "models": models,
        "hetfl.format": FORMAT,
        "mlflow.source.name": "hetfl",
        "mlflow.note.content": note,
    }


def record_path(folder: Path) -> str:
    """A record's folder as seen from the repository's root."""
    return "/".join(folder.parts[-5:])


def params(run: Run) -> dict[str, str]:
    """A run's settings, and what its numbers rest on."""
    told = run.as_json()
    named = {key: told[key] for key in ("partition", "inputs", "parameters", "versions")}
    texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in flat({**run.settings, **named}).items()}
    return {legal(key): text[:MAX_VALUE] for key, text in texts.items()}


def datasets(run: Run) -> list[Any]:
    """The data sets that a run reads, as MLflow's entities; a digest is the beginning of the checksum."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    counts = run.class_counts
    profile = {
        "sha256": run.inputs.dataset,
        "classes": len(counts.train[0]),
        "clients": run.clients,
        "training samples": sum(map(sum, counts.train)),
        "test samples": sum(map(sum, counts.test)),
    }
    found = [(run.dataset, run.inputs.dataset, run.data_source, profile, "training and test")]
    if run.public is not None and run.inputs.public is not None:
        found.append((run.public["dataset"], run.inputs.public, [], {"sha256": run.inputs.public}, "public"))
    return [
        DatasetInput(
            Dataset(
                name,
                checksum[:DIGEST],
                source_type="hetfl",
                source=json.dumps(source),
                profile=json.dumps(shown),
            ),
            [InputTag("mlflow.data.context", context)],
        )
        for name, checksum, source, shown, context in found
    ]


def experiment_tags(run: Run) -> dict[str, str]:
    """What an experiment is found by, from one of its runs."""
    return {**KIND, "paper": run.paper, "dataset": run.dataset, "table": run.table}


def description(runs: Iterable[Mapping[str, str]], comparisons: Mapping[str, str], table: str) -> str:
    """What an experiment is, in Markdown.

    Args:
        runs: the tags of each of its runs.
        comparisons: addresses by split.
        table: the address of all runs with their figures.
    """
    runs = list(runs)
    rows = dict.fromkeys(sorted(run["row"] for run in runs))
    seeds = {run["seed"] for run in runs}
    links = ", ".join(f"[{split}]({address})" for split, address in comparisons.items())
    return (
        f"{_plural(len(rows), 'row')} of the table on {runs[0]['dataset']}, {_plural(len(seeds), 'seed')}. "
        f"Accuracy by round and by bytes, means over seeds, on split {links}. "
        f"[All runs]({table}) with their figures.\n\nRows: {', '.join(rows)}. "
        "A run is one row, split and seed; its tags say which.\n"
    )


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _counted(models: Iterable[str]) -> str:
    counts: Counter[str] = Counter(models)
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
