"""A node keeps the state of runs that may go on, and a bounded number of finished ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment_files import NODE, write
from typer.testing import CliRunner

from hetfl.cli import app
from hetfl.deploy.kept import KeptRuns

RUNS = [character * 64 for character in "abcdef"]


def played(kept: KeptRuns, run: str, rounds: int = 3) -> Path:
    folder = kept.begin(run, f"toy/{run[0]}")
    for part, names in {"states": [f"round-{k:06d}-aa.safetensors" for k in range(rounds)], "answers": ["1"]}.items():
        (folder / part).mkdir()
        for name in names:
            (folder / part / name).write_text(name)
    return folder


def test_the_last_state_of_the_newest_finished_runs_stays_and_all_of_the_others(tmp_path):
    kept = KeptRuns(tmp_path / "state")
    kept.finish(RUNS[0], keep=2)  # of which nothing is here
    for run in RUNS[:5]:
        played(kept, run)
    for run in RUNS[1:5]:
        kept.finish(run, keep=2)
    assert [run.cell for run in kept.runs()] == ["toy/d", "toy/e", "toy/a"]
    assert [path.name for path in (tmp_path / "state" / RUNS[4]).rglob("*") if path.is_file()] == [
        "run.json",
        "round-000002-aa.safetensors",
    ]
    assert len([*(tmp_path / "state" / RUNS[0]).rglob("*.safetensors")]) == 3
    # Told again, a run is as old as it was; one that goes on is none that is finished.
    kept.finish(RUNS[3], keep=2)
    kept.begin(RUNS[4], "toy/e")
    assert [run.cell for run in kept.runs() if run.finished] == ["toy/d"]
    assert [run.cell for run in kept.prune()] == ["toy/d"]
    assert {run.cell for run in kept.runs()} == {"toy/a", "toy/e"}


def test_what_was_removed_in_part_is_gone(tmp_path):
    kept = KeptRuns(tmp_path)
    played(kept, RUNS[0]).rename(tmp_path / f"removed-{RUNS[0]}")
    assert kept.runs() == [] and kept.prune() == [] and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("content", ["", "[]", '{"cell": 1}', '{"cell": "x", "finished": "soon"}'])
def test_a_run_that_says_nothing_clear_is_never_removed(tmp_path, content):
    kept = KeptRuns(tmp_path)
    (played(kept, RUNS[0]) / "run.json").write_text(content)
    assert kept.prune() == [] and [run.folder.name for run in kept.runs()] == RUNS[:1]


def test_an_operator_removes_finished_runs_and_sees_the_others(folder, tmp_path):
    file = write(folder, "node", {**NODE, "folder": str(tmp_path)})
    kept = KeptRuns(tmp_path / "state")
    for run in RUNS[:2]:
        played(kept, run)
    kept.finish(RUNS[0], keep=5)
    shown = CliRunner().invoke(app, ["join", str(file), "--prune"])
    assert shown.exit_code == 0, shown.output
    removed, left = shown.output.splitlines()
    assert removed == "removed: toy/a, finished"
    assert left.startswith("kept: toy/b, not finished, ") and left.endswith(f" in {tmp_path / 'state' / RUNS[1]}")
