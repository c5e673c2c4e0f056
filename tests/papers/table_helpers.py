"""What the tests of the papers' tables share: the experiments as committed, made-up runs, tables built from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetfl.federation.plan import Cell, cells, load_params
from hetfl.files import write_json, write_text
from hetfl.metrics.accuracy import window
from hetfl.papers.spec import Entry, TableSpec
from hetfl.papers.tables import table_spec
from hetfl.report.table import build_table, render_text, write_table

PARAMS = load_params(Path("params.yaml"))
CELLS = {name: {cell.path: cell for cell in cells(PARAMS, name)} for name in PARAMS.experiments}


def entries(spec: TableSpec) -> Iterator[tuple[str, str, Entry]]:
    return ((row, column, entry) for row, cells in spec.entries.items() for column, entry in cells.items())


def runs(name: str) -> set[Path]:
    """The runs a table is made of."""
    return {entry.path(seed) for _, _, entry in entries(table_spec(name, PARAMS)) for seed in entry.seeds}


def identities(paper: str) -> list[str]:
    """What is trained in each run of a paper's experiments, whatever it is called."""
    excluded = {"experiment", "row", "title", "features"}
    of_paper = [cell for name in CELLS if name.startswith(f"{paper}-") for cell in CELLS[name].values()]
    return [cell.model_dump_json(exclude=excluded) for cell in of_paper]


def write_run(
    root: Path, entry: Entry, rounds: int, seed: int = 0, played: int | None = None, **changes: Any
) -> None:
    """A finished run of five clients that upload ``1000 * round`` elements each.

    After a round client k is at ``round + k`` percent, and all their test samples together are at ``round + 2.5``; in
    the last round but one at ten points more. Where a method reports a window of rounds, ensembles of n groups are n
    points better than that, and cosines are the round's number in thousandths.
    """
    cell: Cell = CELLS[entry.experiment][entry.path(seed)]
    played = played or rounds
    run = {"status": "complete", "fingerprint": "f" * 64, "seed": seed, "split": entry.split, "dataset": cell.dataset}
    run |= {
        "models": cell.models,
        "rounds": rounds,
        "clients": 5,
        "engine": "sequential",
        "precision": "float32",
        "device": "cpu",
    }
    run |= {"commit": "abc", "versions": {"torch": "2.15.0"}, "parameters": {"trainable": [35338] * 5}}
    run |= {"inputs": {"dataset": cell.dataset, "partition": f"{cell.dataset}/{cell.split}", "weights": {}}}
    lines = []
    for number in range(1, played + 1):
        size = {"elements": 5000 * number, "bytes": 20000 * number}
        line = {"round": number, "participants": [*range(5)], "up": size, "down": size}
        line |= {"accuracy": [(number + client) / 100 for client in range(5)]}
        lines.append(line | {"pooled": (number + 2.5 + 10 * (number == played - 1)) / 100})
    accuracy = lines[-1]["accuracy"]
    metrics = {"average": sum(accuracy) / 5, "lowest": min(accuracy), "highest": max(accuracy)}
    metrics |= {"pooled": lines[-1]["pooled"], "fingerprint": "f" * 64}
    if size := cell.settings.get("window"):
        run |= {"settings": cell.settings}
        many = {f"top-{number}": number for number in cell.settings.get("ensembles", ())}
        for line in lines:
            cosines = ("cosine_shared", "cosine_group_global", "cosine_group_local")
            line |= {"diagnostics": dict.fromkeys(cosines, line["round"] / 1000)}
        for line in lines[-size:]:
            found = {name: {"accuracy": accuracy, "pooled": line["pooled"] + n / 100} for name, n in many.items()}
            line |= {"also": found} if found else {}
        also = {name: window([line["also"][name] for line in lines[-size:]], size) for name in many}
        metrics |= window(lines, size) | {"also": also}
    write_json(root / "runs" / entry.path(seed) / "run.json", run | changes)
    write_text(root / "runs" / entry.path(seed) / "rounds.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_json(root / "evaluations" / entry.path(seed) / "metrics.json", metrics)


def built(name: str, root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """A table's cells by row and column; all its files can be written."""
    table = build_table(table_spec(name, PARAMS), root / "runs", root / "evaluations")
    for path in write_table(table, root / "tables"):
        assert path.stat().st_size
    assert (root / f"tables/{name}.tex").read_text().isascii()
    assert max(map(len, render_text(table).splitlines())) <= 150
    return {(cell["row"], cell["column"]): cell for cell in table["cells"]}
