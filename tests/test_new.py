"""A method and an experiment of one's own, from the command to the table."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import numpy as np
import pytest
import sweep_project
import torch
import yaml
from forked import Forked, of_checkout
from PIL import Image
from settings_files import ROOT, copy_params
from stage_runner import run_stage
from typer.testing import CliRunner

import hetfl.train
from hetfl.cli import app
from hetfl.errors import HetflError
from hetfl.experiments.cell import run_cell
from hetfl.experiments.evaluation import evaluate_cell
from hetfl.experiments.loading import load
from hetfl.experiments.plan import cells, load_params
from hetfl.new import insert, new_dataset, new_experiment, new_method
from hetfl.stages import stale, write

DVC_FORM = """
from pathlib import Path
from dvc.utils.serialize import modify_yaml
for name in {names}:
    before = Path(name).read_text()
    with modify_yaml(name):
        pass
    assert Path(name).read_text() == before, name
"""


def changes(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines that were removed, and those that were added."""
    lines = [*unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")][2:]
    return [line[1:] for line in lines if line[0] == "-"], [line[1:] for line in lines if line[0] == "+"]


def python(root: Path, *arguments: str) -> str:
    """What a Python that imports the checkout at ``root`` prints."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(root: Path, *several: str) -> list[str]:
    """What each ``hetfl`` command prints, one after another in a new process of the checkout at ``root``."""

    def work() -> None:
        of_checkout(root)
        import hetfl.train
        from hetfl.cli import app

        hetfl.train.Apart = lambda make: make()  # type: ignore[assignment,misc]  # a process of its own imports MLflow
        found = []
        for command in several:
            done = CliRunner().invoke(app, command.split())
            assert done.exit_code == 0, (command, done.output, done.exception)
            found.append(done.stdout)
        print(json.dumps(found))

    ended = Forked(root, work).wait()
    assert ended.status == 0, ended.stdout + ended.stderr
    shown: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return shown


def passes(root: Path, test: str) -> None:
    """A test passes with the checkout at ``root``."""

    def work() -> None:
        of_checkout(root)
        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-W", "ignore", test]))

    ended = Forked(root, work).wait()
    assert ended.status == 0 and "passed" in ended.stdout, ended.stdout + ended.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own with a small experiment, trained and evaluated."""
    shutil.copytree(ROOT / "src" / "hetfl", tmp_path / "src" / "hetfl")  # with its bytecode
    (tmp_path / "tests" / "methods").mkdir(parents=True)
    shutil.copy(ROOT / "versions.yaml", tmp_path)
    sweep_project.make(tmp_path)
    sweep_project.write(tmp_path, rounds=1, seeds=1)
    workspace, params, cells = sweep_project.plan(tmp_path)
    write(params, tmp_path)
    for cell in cells:
        run_cell(cell, workspace, torch.device("cpu"))
        evaluate_cell(cell, workspace, torch.device("cpu"))
    return tmp_path


def test_an_own_method_and_an_own_experiment_have_their_numbers_after_the_first_run(checkout: Path) -> None:
    trained, written = sweep_project.times(checkout), (checkout / "params.yaml").read_text()
    told, cells, _, again, table, told_too, _, own_table = commands(
        checkout,
        "new method fed-mine --experiment small",
        "cells small",
        "train small --row fed-mine --split iid --seed 0",
        "cells small",
        "table small",
        "new experiment mine --models small --method fedavg --method fed-mine",
        "train mine",
        "table mine",
    )
    assert "hetfl train small --row fed-mine --split iid --seed 0" in told and "dvc repro mine" in told_too
    # Two files of one's own, and nothing else is trained again.
    removed, added = changes(written, (checkout / "params.yaml").read_text())
    assert removed == [] and added[:2] == ["      fed-mine: {}", "  mine:"]
    assert "fed-mine" in (checkout / "versions.yaml").read_text() and "mine:" in (checkout / "dvc.yaml").read_text()
    assert [line.split()[4:] for line in cells.splitlines()[2:]] == [["done"], ["done"], ["not", "run"]]
    assert [line.split()[4:] for line in again.splitlines()[2:]] == [["done"]] * 3
    now = sweep_project.times(checkout)
    assert {path: now[path] for path in trained} == trained
    for shown in (table, own_table):
        assert "fed-mine" in shown and "not run" not in shown and "not evaluated" not in shown
    # In a new process; the skeleton's test passes as it is, and so do those that every method has to pass.
    passes(checkout, "tests/methods/test_fedmine.py")
    # Under another name, since pytest imports test files of one name only once in a process.
    shutil.copy(ROOT / "tests/methods/test_robust.py", checkout / "tests/methods/test_rules.py")
    rules = "test_methods_with_another_rule_refuse_the_settings[fed-mine]"
    passes(checkout, f"tests/methods/test_rules.py::{rules}")
    skeleton = ast.parse((checkout / "src/hetfl/methods/fedmine.py").read_text())
    assert str(ast.get_docstring(skeleton)).count(".") >= 3  # which a test of the report asks of every method


def stages_in_order(root: Path, wanted: str) -> list[str]:
    """The command lines of a stage and of those that it depends on, in the order in which DVC runs them."""
    every, params = {}, yaml.safe_load((root / "params.yaml").read_text())
    for name, stage in yaml.safe_load((root / "dvc.yaml").read_text())["stages"].items():
        for key in params["partitions"] if "foreach" in stage else ():
            every[f"{name}@{key}"] = yaml.safe_load(yaml.safe_dump(stage["do"]).replace("${key}", key))
        if "cmd" in stage:
            every[name] = stage
    made = {path: name for name, stage in every.items() for out in stage["outs"] for path in out}
    made |= {out: name for name, stage in every.items() for out in stage["outs"] if isinstance(out, str)}
    order: dict[str, str] = {}

    def visit(name: str) -> None:
        for dep in every[name]["deps"]:
            if dep in made and made[dep] not in order:
                visit(made[dep])
        order[name] = every[name]["cmd"]

    visit(wanted)
    return [*order.values()]


def test_an_own_folder_of_images_has_its_table_by_the_lines_of_params_yaml_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The path of the documentation: hetfl new dataset, hetfl new experiment, dvc repro mine, hetfl show mine."""
    pictures = tmp_path / "pictures"
    for label, name in enumerate(("cat", "dog")):
        (pictures / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.full((12, 9, 3), (40 * label, 200 - 100 * label, 5 * number), np.uint8)
            Image.fromarray(pixels).save(pictures / name / f"{number}.png")
    sweep_project.write(tmp_path)
    shutil.copy(ROOT / "versions.yaml", tmp_path)
    content = yaml.safe_load((tmp_path / "params.yaml").read_text())
    content["models"]["cnn"] = ["digits_resnet_small"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    before = (tmp_path / "params.yaml").read_text()
    told = new_dataset("pets", tmp_path, pictures, clients=2)
    assert "2 classes, not divided 24; colour, median side 9 pixels" in told[0]
    told = new_experiment("mine", tmp_path, "pets", splits=["iid", "dir"])
    removed, added = changes(before, (tmp_path / "params.yaml").read_text())
    assert removed == [] and len(added) < 25
    assert stale(load_params(tmp_path / "params.yaml"), tmp_path) == {}
    # DVC watches the folder itself, and params.yaml for what the images become.
    download = yaml.safe_load((tmp_path / "dvc.yaml").read_text())["stages"]["download-pets"]
    assert download["deps"][0] == "pictures" and download["params"] == ["data.pets"]
    block = yaml.safe_load((tmp_path / "params.yaml").read_text())["experiments"]["mine"]
    text = (tmp_path / "params.yaml").read_text().replace("rounds: 3", "rounds: 1")
    (tmp_path / "params.yaml").write_text(text)
    assert len(block["rows"]) == 3 and len(block["splits"]) == 2
    monkeypatch.setattr(hetfl.train, "Apart", lambda make: sweep_project.Nobody())
    monkeypatch.setattr(hetfl.train, "try_sync", lambda *_: None)
    lines = stages_in_order(tmp_path, "mine")
    assert lines[0] == "python pipeline/prepare.py pets" and lines[-1] == "python pipeline/table.py mine"
    for line in lines:
        ended = run_stage(tmp_path, Path(line.split()[1]).stem, *line.split()[2:])
        assert ended.status == 0, ended.stderr
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["show", "mine"]).output
    for words in ("FedAvg", "FedProx", "FedBABU", "iid", "dir"):
        assert words in shown
    assert "not run" not in shown
    # What was trained knows its classes, wherever it is loaded.
    shutil.rmtree(tmp_path / "data")
    found = load(tmp_path / "runs/mine/fedavg/fedavg/iid-s0").predict(Image.open(pictures / "cat" / "0.png"))
    assert found.names[0] in ("cat", "dog")
    run = json.loads((tmp_path / "runs/mine/fedavg/fedavg/iid-s0/run.json").read_text())
    assert run["class_names"] == {"pets": ["cat", "dog"]} and run["input"]["mean"][0] == pytest.approx(
        20 / 255, abs=1e-3
    )


def test_the_lines_of_an_own_data_set_have_dvcs_form(tmp_path: Path) -> None:
    copy_params(tmp_path)
    before = (tmp_path / "params.yaml").read_text()
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (40, 50), "red").save(tmp_path / "pictures" / name / "0.jpg")
    new_dataset("pets", tmp_path, tmp_path / "pictures", size=64, title="Our pets, at home", clients=2)
    assert changes(before, (tmp_path / "params.yaml").read_text())[0] == []
    python(tmp_path, "-c", DVC_FORM.format(names=["params.yaml"]))
    with pytest.raises(HetflError, match="pets: is a data set already; use another name"):
        new_dataset("pets", tmp_path, tmp_path / "pictures")
    for size in (0, -5, 1500):
        with pytest.raises(HetflError, match=rf"^--size: size: {size} should be"):
            new_dataset("others", tmp_path, tmp_path / "pictures", size=size, clients=2)
    for clients in (0, 1000):
        with pytest.raises(HetflError, match=rf"^--clients: {clients} should be from 1 to \d+, the number of images"):
            new_dataset("others", tmp_path, tmp_path / "pictures", clients=clients)
    with pytest.raises(HetflError, match="Pets: is not a name of a data set"):
        new_dataset("Pets", tmp_path, tmp_path / "pictures")


def test_the_committed_settings_get_only_lines_of_their_own_in_dvcs_form(tmp_path: Path) -> None:
    copy_params(tmp_path)
    file = tmp_path / "params.yaml"
    before = file.read_text()
    file.write_text(
        insert(file, ("experiments", "digits-homogeneous", "rows"), {"fedmine": {"models": "digits-resnet"}})
    )
    assert changes(before, file.read_text()) == ([], ["      fedmine: {models: digits-resnet}"])
    block = yaml.safe_load(file.read_text())["experiments"]["digits-homogeneous"]
    assert list(block["rows"])[-1] == "fedmine" and block["note"]
    file.write_text(before)
    new_experiment("mine", tmp_path)
    assert changes(before, file.read_text())[0] == []
    assert len(load_params(file).experiments["mine"].rows) == 3
    assert stale(load_params(file), tmp_path) == {}
    python(tmp_path, "-c", DVC_FORM.format(names=["params.yaml"]))
    file.write_text(before)
    new_experiment("mine", tmp_path, methods=["fedavg", "scaffold"])  # which takes SGD only
    used = {cell.method: cell.settings["optimiser"] for cell in cells(load_params(file), "mine")}
    assert used == {"fedavg": "adam", "scaffold": "sgd"}
    file.write_text(before)
    new_experiment("mine", tmp_path, methods=["fedavg", "fedprox", "scaffold"])
    assert not [
        line for line in changes(before, file.read_text())[1] if "*" in line
    ]  # who edits one row edits that alone


def test_a_project_without_experiments_of_its_own_gets_the_key(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("compute: {jobs: 1}\n")
    after = insert(tmp_path / "params.yaml", ("experiments",), {"mine": {"rows": {"fedavg": {}}}})
    assert after == "compute: {jobs: 1}\n\nexperiments:\n  mine:\n    rows:\n      fedavg: {}\n"


@pytest.mark.parametrize(
    ("end", "where"),
    [
        ("      b: {x: 1}   # kept\n  # about the next\n  two: {rows: {a: 1}}\n", "      b: {x: 1}   # kept\n"),
        ("      b:\n        - 1\n        - 2\n\nlast: 1\n", "        - 2\n"),
        ("      b:\n  two: {rows: {a: 1}}\n", "      b:\n"),
        ("      b: |\n        words\n", "        words\n"),
        ('      b: "two\n        lines"', '        lines"\n'),
    ],
)
def test_an_entry_comes_after_the_last_one_and_before_comments(tmp_path: Path, end: str, where: str) -> None:
    start = "experiments:\n  one:\n    rows:\n      a: {}\n"
    (tmp_path / "params.yaml").write_text(start + end)
    after = insert(tmp_path / "params.yaml", ("experiments", "one", "rows"), {"c": {}})
    assert f"{where}      c: {{}}\n" in after
    assert after.replace("      c: {}\n", "").rstrip() == (start + end).rstrip()
    assert list(yaml.safe_load(after)["experiments"]["one"]["rows"]) == ["a", "b", "c"]


METHODS = {
    "fedavg": "fedavg: there is a method or file of this name",
    "fed-avg": "fed-avg: there is a method or file of this name",
    "contract": "contract: there is a method or file of this name",
    "x" * 61: f"{'x' * 61}: has 61 characters, a name of a method at most 60; use a shorter one",
    "Fed_Mine": "Fed_Mine: is not a name of a method; use lower-case letters, digits and single dashes",
    "class": "class: Python or the contract uses this name",
    "none": "none: Python or the contract uses this name",
    "uplinks": "uplinks: Python or the contract uses this name",
}
EXPERIMENTS = {
    "digits-fgpt": ({}, "digits-fgpt: is an experiment, a table or a stage already"),
    "adhoc-digits": ({}, "experiments: 'adhoc-digits': runs of hetfl run have such names; use another"),
    "report": ({}, "report: is an experiment, a table or a stage already"),
    "My_Own": ({}, "My_Own: is not a name of an experiment"),
    "a": ({"dataset": "digit"}, "--dataset: unknown data set 'digit'; did you mean 'digits'"),
    "b": ({"models": "digits-resne"}, "--models: unknown model group 'digits-resne'; did you mean"),
    "c": ({"splits": ["idd"]}, "--split: unknown split 'idd'; did you mean 'iid'"),
    "d": ({"methods": ["fedmd"]}, r"experiments\.d\.rows\.fedmd\.method: fedmd needs a public data set"),
    "e": ({"methods": ["fedavg", "fedhpl"]}, "takes no deep prompts, since it has no tokens"),
}


def test_mistakes_are_one_line_and_change_nothing(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    before = sorted(tmp_path.rglob("*")), (tmp_path / "params.yaml").read_text()
    for name, message in METHODS.items():
        with pytest.raises(HetflError, match=f"^{message}"):
            new_method(name, tmp_path, "digits-homogeneous")
    with pytest.raises(HetflError, match="is not the hetfl that runs"):
        new_method("fedmine", tmp_path, "digits-homogeneous")
    with pytest.raises(HetflError, match="--experiment: unknown experiment 'digits-fgp'; did you mean 'digits-fgpt'"):
        new_method("fedmine", tmp_path, "digits-fgp")
    for name, (options, message) in EXPERIMENTS.items():
        with pytest.raises(HetflError, match=message) as failed:
            new_experiment(name, tmp_path, **options)
        assert len(str(failed.value).splitlines()) == 1
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "params.yaml").read_text()) == before
