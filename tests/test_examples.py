"""The examples run as they stand, and say what the records say."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from settings_files import ROOT
from stage_runner import run_stage

import hetfl
from hetfl.config import read_yaml
from hetfl.data.partitions import make_partition, write_partition
from hetfl.data.store import read_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.events import Event
from hetfl.experiments.plan import Workspace, load_params

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed settings, with what the examples need: digits, one partition, and a backbone trained briefly."""
    root = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "versions.yaml", root)
    params = read_yaml(ROOT / "params.yaml")
    params["pretrain"]["digits"] |= {"models": ["digits_vit_base"], "epochs": 1}
    params["data"]["digits"] |= {"public": 1300, "test": 300}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    for stage in ("download", "pretrain"):
        assert run_stage(root, stage, "digits").status == 0
    workspace = Workspace(root)
    dataset, scheme = read_dataset(workspace.dataset("digits")), load_params(workspace.params).partitions["digits"]
    drawn = make_partition(scheme.splits["dir"], dataset, Draws(0))
    write_partition(workspace.partition("digits", "dir", 0), drawn, scheme.splits["dir"], dataset, 0)
    return root


class Silent:
    """A subscriber that does nothing."""

    def told(self, event: Event) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    monkeypatch.setattr("hetfl.train.Apart", lambda make: Silent())  # its import takes seconds
    monkeypatch.setattr("hetfl.train.try_sync", lambda *where: None)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return project


@pytest.fixture
def script(here: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The names that the script leaves, and what it prints."""
    return runpy.run_path(str(EXAMPLES / "fedavg_against_fedhpl.py")), capsys.readouterr().out


def test_the_script_compares_accuracy_and_bytes(script: tuple[dict[str, Any], str]) -> None:
    left, said = script
    for method in ("fedavg", "fedhpl"):
        run = left["runs"][method]
        assert run.run.method == method and run.run.rounds == 4 and run.run.complete
        assert f"{run.run.title}, accuracy" in said
        last = run.frame().iloc[-1]
        assert last["accuracy"] == run.accuracy and last["bytes"] == run.bytes and last["round"] == 4
        assert last["lowest"] <= last["accuracy"] <= last["highest"]
    assert f"{left['fedavg'].bytes / left['fedhpl'].bytes:.1f} times fewer bytes" in said
    assert left["fedavg"].bytes > left["fedhpl"].bytes and "are classified as" in said


def test_the_notebook_runs(script: tuple[dict[str, Any], str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    notebook = json.loads((EXAMPLES / "accuracy_against_bytes.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "outputs would change with every run"
            exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    assert "2 cells are complete" not in capsys.readouterr().out
    by_round, by_bytes = names["figure"].axes
    assert by_bytes.get_xlabel() == "bytes" and len(by_round.lines) == len(by_bytes.lines) == 2


def test_results_are_a_table_of_the_finished_runs(script: tuple[dict[str, Any], str], here: Path) -> None:
    found = hetfl.results(here / "runs").set_index("method")
    assert sorted(found.index) == ["fedavg", "fedhpl"]
    for method, run in script[0]["runs"].items():
        assert found.accuracy[method] == run.accuracy and found.bytes[method] == run.bytes
        assert hetfl.result(found.folder[method]).run.fingerprint == run.run.fingerprint
    assert hetfl.results(here / "data").empty


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"method": "fedhlp"}, "unknown method 'fedhlp'; did you mean 'fedhpl'"),
        ({"method": "fedavg", "split": "dirr"}, "unknown split 'dirr'; did you mean 'dir'"),
        (
            {"method": "fedavg", "split": "dir", "momentun": 0.9},
            "unknown setting 'momentun'; did you mean 'momentum'",
        ),
    ],
)
def test_a_mistake_is_named_before_any_work(here: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(HetflError, match=said):
        hetfl.run(**asked)
