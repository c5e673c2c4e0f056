"""Names of the papers' project, on the command line of the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from settings_files import PAPER_PARAMS, ROOT

from hetfl.cli import app, names, run


@pytest.mark.parametrize(
    ("folder", "word", "other"),
    [
        (".", "fedtgp-table-10", "papers"),
        (".", "fedtgp-epochs", "papers"),
        (".", "runs/fedtgp-htcnn8-fashion-mnist/fedproto", "papers"),
        ("papers", "digits-fgpt", ".."),
        (".", "digits-fgpt-2", ""),
        (".", "fedtgp-tble-10", ""),
    ],
)
def test_a_name_of_the_other_project_is_said_to_be_there(folder, word, other, monkeypatch):
    monkeypatch.chdir(ROOT / folder)
    said = names.elsewhere(["plan", word, "--json"])
    assert (
        said.endswith(f"belongs to the project {other}; add --cd {other} after hetfl or dvc") if other else not said
    )


def test_completion_offers_experiments_and_not_the_stages_of_their_methods(monkeypatch):
    monkeypatch.chdir(ROOT / "papers")
    offered = [name for name in PAPER_PARAMS.experiments if name.startswith("choices-fedtgp")]
    assert offered and names.known_experiments("choices-fedtgp") == offered


def test_a_command_runs_in_the_project_that_it_is_told(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["hetfl", "--cd", "papers", "stages"])
    with pytest.raises(SystemExit, match="^0$"):
        run(app)
    assert Path.cwd() == ROOT / "papers" and "written" not in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["hetfl", "--cd", "papes", "stages"])
    for folder, remedy in ((ROOT, "try papers"), (ROOT / "papers", "run from the repository's root")):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit, match="^2$"):
            run(app)
        wrong = "error: --cd papes: is no project, since it has no params.yaml"
        assert capsys.readouterr().err == f"{wrong}; {remedy}\n"


@pytest.mark.parametrize("table", ["fedhpl-table-5", "fedhpl-table-7"])
def test_a_counted_table_is_made_in_its_own_project_alone(table, monkeypatch, capsys):
    """The second one counts with settings of the papers' experiments, the first one needs none."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["hetfl", "table", table])
    with pytest.raises(SystemExit, match="^2$"):
        run(app)
    assert capsys.readouterr().err.endswith(
        f"{table} belongs to the project papers; add --cd papers after hetfl or dvc\n"
    )
    assert not (ROOT / "tables" / table).exists()


@pytest.mark.parametrize("command", ["versions", "sync", "superseded", "prune"])
def test_a_command_that_reads_no_settings_refuses_a_folder_without_a_project(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hetfl", command])
    with pytest.raises(SystemExit, match="^2$"):
        run(app)
    assert "error: params.yaml: does not exist; run from the repository's root\n" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_where_nothing_has_a_name_the_folder_is_to_blame(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hetfl", "show", "digits-fgpt"])
    with pytest.raises(SystemExit, match="^2$"):
        run(app)
    assert capsys.readouterr().err.endswith("this folder has no params.yaml; run from the repository's root\n")
