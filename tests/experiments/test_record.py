"""What a record says of the code and settings that it comes from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from record_factory import make_round, write_record

from hetfl.experiments.record import COMMIT, Record, commit
from hetfl.schema import record_folders

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project and another one in its folder ``papers``, which links to its code."""
    (tmp_path / "papers" / ".dvc").mkdir(parents=True)
    (tmp_path / "papers" / ".dvc" / "config").touch()
    for name in ("src/a.py", "pipeline/a.py", "params.yaml", "dvc.yaml", "notes.md", "own/params.yaml"):
        for project in (tmp_path, *([tmp_path / "papers"] if "params.yaml" in name else [])):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).touch()
    for name in ("src", "pipeline"):
        (tmp_path / "papers" / name).symlink_to(f"../{name}")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "marked"),
    [
        ("notes.md", []),
        ("src/a.py", [".", "papers"]),
        ("pipeline/new.py", [".", "papers"]),
        ("params.yaml", [".", "papers"]),
        ("own/params.yaml", ["."]),
        ("papers/params.yaml", ["papers"]),
        ("papers/own/params.yaml", ["papers"]),
    ],
)
def test_a_commit_is_marked_where_code_or_settings_differ_from_it(checkout: Path, changed: str, marked: list[str]):
    commit.cache_clear()
    (checkout / changed).write_text("# changed\n")
    found = {project: commit(checkout / project) for project in (".", "papers")}
    assert [project for project, told in found.items() if told.endswith("+changes")] == marked
    assert len({told.removesuffix("+changes") for told in found.values()}) == 1


@pytest.mark.parametrize(("told", "found"), [(None, "unknown"), ("", "unknown"), ("0123456789ab", "0123456789ab")])
def test_outside_git_the_environment_names_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, found: str
):
    monkeypatch.delenv(COMMIT, raising=False)
    if told is not None:
        monkeypatch.setenv(COMMIT, told)
    assert commit(tmp_path) == found


def test_git_knows_better_than_the_environment(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    commit.cache_clear()
    monkeypatch.setenv(COMMIT, "another")
    assert commit(checkout) != "another"


def test_superseded_records_and_what_killed_copies_have_left_are_no_cells(tmp_path: Path):
    cell = Path("x/fedavg/fedavg/iid-s0")
    for folder in (cell, cell.with_name(".iid-s0.x1y2"), Path(".superseded") / cell / "abc"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").touch()
    assert record_folders(tmp_path) == [tmp_path / cell]


def test_a_line_that_could_not_be_written_whole_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on a full disk; the next line is not to stand behind half of one."""
    record = Record(write_record(tmp_path, "x/fedavg/fedavg/iid-s0", [make_round(0)], "running"))

    def full(file: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        record.append(make_round(1))
    assert [line.round for line in record.lines()] == [0]
