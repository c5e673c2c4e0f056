"""The runs behind the tables: each record is read once, and has a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetfl.experiments.plan import around
from hetfl.report.shown import show_bytes, show_count, show_span
from hetfl.tables.curves import At, Curve, curves
from hetfl.tables.records import Record, Records
from hetfl.tracking.mlflow_views import Links

Source = Mapping[str, Any]
"""A run in a table's provenance."""


class Runs:
    """The records that tables name.

    Args:
        records: of the checkout.
        links: addresses in MLflow.
        base: from the site's root to the checkout, such as ``../``.

    Attributes:
        cd: what ``hetfl`` and ``dvc`` need before a command on these runs: ``--cd papers ``, or nothing.
        ui: the command that shows them in MLflow.
    """

    def __init__(self, records: Records, links: Links, base: str) -> None:
        self._records, self._links, self._base = records, links, base
        self.found: dict[str, Record | None] = {}
        inside = base.removeprefix("../")
        self.cd = f"--cd {inside.rstrip('/')} " if inside else ""
        root = records.workspace.root.absolute()
        self.ui = f"make ui PROJECT={root.name}" if around(root) else "make ui"

    def get(self, source: Source) -> Record | None:
        """The record that a table was made from; None if it is not here, or has changed since.

        Raises:
            HetflError: the record is damaged.
        """
        path: str = source["run"]
        if path not in self.found:
            self.found[path] = self._records.of(source)
        return self.found[path]

    def comparisons(self, table: Mapping[str, Any]) -> dict[str, str]:
        """Charts in MLflow that compare the runs of a table, by split."""
        sources = (source["run"].split("/") for cell in table["cells"] for source in cell["provenance"])
        splits = dict.fromkeys((experiment, name.rpartition("-s")[0]) for _, experiment, *_, name in sources)
        found = {split: self._links.comparisons.get((experiment, split)) for experiment, split in splits}
        return {table["columns"].get(split, split): address for split, address in found.items() if address}

    def view(self, source: Source, digits: int = 2) -> dict[str, Any]:
        """What a cell says of one of its runs: value, names, and links relative to the site's root."""
        record, path = self.get(source), source["run"]
        below = path.partition("/")[2]
        experiment, *_, cell = below.split("/")
        return {
            "name": below,
            "seed": source["seed"],
            "value": f"{source['value']:.{digits}f}",
            "short": source["fingerprint"][:12],
            "page": record and f"runs/{below}.html",
            "record": record and self._base + (f"{path}/run.json" if record.whole else f"results/{below}.json"),
            "made": f"{record.run.in_turn('device')}, commit {record.run.commit}" if record else "",
            "mlflow": self._links.runs.get(source["fingerprint"]),
            "comparison": self._links.comparisons.get((experiment, cell.rpartition("-s")[0])),
        }

    def pages(self) -> dict[str, dict[str, Any]]:
        """What the page of each record says, by the page's path."""
        found = {}
        for record in filter(None, self.found.values()):
            run, below = record.run, record.path.partition("/")[2]
            source = {"run": record.path, "seed": run.seed, "value": 0.0, "fingerprint": run.fingerprint}
            found[f"runs/{below}.html"] = {
                "record": record,
                "run": run,
                "links": self.view(source),
                "clients": _clients(record),
                "facts": _facts(record),
                "settings": run.settings,
                "provenance": _provenance(record),
                "seconds": _seconds(record),
                "curves": [{"title": run.split, "lines": _readings(record)}],
                "kind": kind_of(record),
                "cd": self.cd,
                "ui": self.ui,
            }
        return dict(sorted(found.items()))


def kind_of(record: Record) -> str:
    """Whether a run starts from pre-trained weights, in words."""
    return PRETRAINED if record.pretrained else SCRATCH


PRETRAINED, SCRATCH = "pre-trained", "from scratch"


def records_of(cell: Mapping[str, Any], runs: Runs) -> list[Record]:
    """The records behind a table's accuracy; none where it is no accuracy, or a run is not here."""
    if cell["unit"] != "%":
        return []
    records = [runs.get(source) for source in cell["provenance"]]
    known = [record for record in records if record is not None]
    return known if len(known) == len(records) else []


def lines_of(cell: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """The :func:`~hetfl.tables.curves.curves` of a table's cell as the pages' script takes them.

    ``points`` are round, mean, lowest and highest accuracy in percent, and MB sent so far; ``tuned``, the point after
    fine-tuning, ``seed`` and ``diverged`` are null where the curve has none.
    """
    return [_line(curve) for curve in curves(records_of(cell, runs), cell["statistic"], cell["reading"])]


def _line(curve: Curve) -> dict[str, Any]:
    def told(at: At) -> tuple[float, ...]:
        accuracies = (round(number, 3) for number in (at.percent, at.low, at.high))
        return at.round, *accuracies, round(at.traffic / 1e6, 6)

    points, tuned = [*map(told, curve.trained)], curve.tuned and told(curve.tuned)
    return {"seed": curve.seed, "diverged": curve.diverged, "points": points, "tuned": tuned}


def _readings(record: Record) -> list[dict[str, Any]]:
    """The accuracies of one run as curves: clients' average, lowest and highest, and of all test samples together."""
    statistics = {"highest": "highest client", "window_pooled": "all samples", "average": "average"}
    statistics["lowest"] = "lowest client"
    return [
        {"row": title, "series": number, "marker": number, "hollow": False, **_line(curve)}
        for number, (name, title) in enumerate(statistics.items())
        for curve in curves([record], name)
    ]


def _clients(record: Record) -> list[dict[str, Any]]:
    run, shares = record.run, record.metrics.accuracy
    return [
        {
            "model": run.models[k],
            "train": sum(run.class_counts.train[k]),
            "test": sum(run.class_counts.test[k]),
            "classes": sum(map(bool, run.class_counts.train[k])),
            "parameters": run.parameters.trainable[k],
            "accuracy": shares[k],
        }
        for k in range(run.clients)
    ]


def _facts(record: Record) -> list[tuple[str, str]]:
    run, metrics = record.run, record.metrics
    totals = {way: sum(getattr(line, way).bytes for line in record.rounds) for way in ("up", "down")}
    percent = {
        "Clients' average": metrics.average,
        "Lowest client": metrics.lowest,
        "Highest client": metrics.highest,
        "All test samples together": metrics.pooled,
        "Best round, all test samples": metrics.best_pooled,
        "Mean over the last rounds": metrics.window_pooled,
    }
    facts = [(name, f"{100 * share:.2f} %") for name, share in percent.items() if share is not None]
    tuned = ", then fine-tuned" if any(line.fine_tuning for line in record.rounds) else ""
    facts += [("Rounds", f"{record.played} of {run.rounds}{tuned}"), ("Clients", str(run.clients))]
    facts += [(f"Sent {way}, all clients", show_bytes(total)) for way, total in totals.items()]
    facts += [("Trainable parameters of a client", show_span(run.parameters.trainable, show_count))]
    return facts


def _seconds(record: Record) -> list[tuple[str, float]]:
    found: dict[str, float] = {}
    for line in record.rounds:
        for phase, seconds in line.seconds.items():
            found[phase] = found.get(phase, 0.0) + seconds
    return [(phase, seconds) for phase, seconds in found.items() if seconds >= 0.001]


def _provenance(record: Record) -> list[tuple[str, str]]:
    run = record.run
    told = {"Fingerprint": run.fingerprint, "Data set": f"{run.dataset} {run.inputs.dataset}"}
    told |= {"Partition": f"{run.split}, seed {run.seed} {run.inputs.partition}"}
    told |= {f"Weights {name}": checksum for name, checksum in run.inputs.weights.items()}
    for title, name in {"Device": "device", "Engine": "engine", "Precision": "precision"}.items():
        told[title] = run.in_turn(name)
    told |= {"Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items())}
    told |= {"Versions of formulas": ", ".join(f"{name} {version}" for name, version in run.numerics.items())}
    told |= {"Commit": run.commit, "Source": run.source or "", "Started": run.started, "Finished": run.finished or ""}
    return [(name, text) for name, text in told.items() if text]
