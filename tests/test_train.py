"""What training says in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_factory import make_round, project, write_record

from hetfl.experiments.plan import Workspace
from hetfl.train import results


@pytest.mark.parametrize(
    ("patience", "shown"),
    [
        (None, {"fedhpl": ["50.0", "40.0 (2 seeds)"]}),
        (3, {"fedhpl": ["45.00, best 57.50", "35.00, best 60.00 (2 seeds)"]}),
    ],
)
def test_accuracies_are_of_all_samples_where_a_run_waits_for_its_best_round(tmp_path: Path, patience, shown):
    workspace, cell = Workspace(tmp_path), project()[1]
    tests = {("iid", 0): [62.5, 50], ("dir", 0): [60, 30], ("dir", 1): [70, 50]}
    trained = []
    for (split, seed), percent in tests.items():
        settings = cell.settings | {"patience": patience}
        trained.append(cell.model_copy(update={"split": split, "seed": seed, "settings": settings}))
        lines = [make_round(n, accuracy=[p / 100] * 5, pooled=(p - 5) / 100) for n, p in enumerate(percent, start=1)]
        write_record(workspace.runs, trained[-1].path, [make_round(0), *lines])
    head, _, *rows = results(trained, workspace).splitlines()
    assert head.split() == ["accuracy", "(%)", "iid", "dir"]
    assert {row.split("  ")[0]: [part.strip() for part in row.split("  ")[1:] if part] for row in rows} == shown
