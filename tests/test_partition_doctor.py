"""Splits on trial: what cannot be drawn says why and what would do, and what can be drawn is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sweep_project
import yaml
from typer.testing import CliRunner

from hetfl.cli import app
from hetfl.errors import HetflError
from hetfl.experiments.plan import Workspace, load_params
from hetfl.partition_doctor import Check, check_splits, picture, render

SPLITS = {
    "good": {"scheme": "dirichlet", "clients": 4},
    "own": {"scheme": "pathological", "clients": 5, "classes_per_client": 4},
    "portions": {"scheme": "pathological", "clients": 7, "classes_per_client": 3},
    "floor": {"scheme": "dirichlet", "clients": 8, "minimum": 0.2},
    "crowded": {"scheme": "practical", "clients": 30, "minimum": 40},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = sweep_project.make(tmp_path_factory.mktemp("project"))
    content = yaml.safe_load((root / "params.yaml").read_text())
    content["data"]["cifar10"] = {}
    content["partitions"]["digits"]["splits"] |= SPLITS
    content["partitions"]["cifar10"] = {"seeds": [0], "splits": {"iid": {"scheme": "iid", "clients": 3}}}
    (root / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return root


def checks(project: Path, *sets: str, **more) -> dict[str, Check]:
    found = check_splits(load_params(project / "params.yaml"), Workspace(project), sets, **more)
    return {check.split: check for check in found}


def test_what_would_do_does(project: Path) -> None:
    found = checks(project, "digits")
    assert {name for name, check in found.items() if check.problem} == {"portions", "floor", "crowded"}
    assert "is no multiple of 10 classes" in found["portions"].problem
    assert any(remedy.startswith("clients: 10 instead of 7") for remedy in found["portions"].remedies)
    assert found["floor"].remedies[0] == "minimum: 0.12 instead of 0.2"
    assert any(remedy.startswith("minimum: ") for remedy in found["crowded"].remedies)
    # Each remedy, taken literally, draws the split.
    content = yaml.safe_load((project / "params.yaml").read_text())
    for name in ("portions", "floor", "crowded"):
        for remedy in found[name].remedies:
            key, value = remedy.partition(" instead")[0].split(": ")
            splits = {f"{name}": SPLITS[name] | {key: yaml.safe_load(value)}}
            changed = {**content, "partitions": {"digits": {"seeds": [0, 1], "splits": splits}}, "experiments": {}}
            (project / "changed.yaml").write_text(yaml.safe_dump(changed))
            (check,) = check_splits(load_params(project / "changed.yaml"), Workspace(project), ["digits"])
            assert not check.problem, remedy


def test_a_split_of_published_sizes_needs_no_data(project: Path) -> None:
    found = checks(project)["iid"]
    assert found.dataset == "cifar10" and found.counts.sum() == 50_000 and "published sizes" in found.note
    with pytest.raises(HetflError, match="^digits: unknown split 'idd'; did you mean 'iid'"):
        checks(project, "digits", split="idd")
    with pytest.raises(HetflError, match="^--split: unknown split 'portion'; did you mean 'portions'"):
        checks(project, split="portion")
    with pytest.raises(HetflError, match="unknown data set 'digit'; did you mean 'digits'"):
        checks(project, "digit")


def test_a_picture_has_a_line_for_each_client() -> None:
    counts = np.array([[8, 0, 4], [1, 8, 0]])
    first, second, legend = picture(counts, ("ant", "bee", "cat"), np.array([3, 4])).splitlines()
    assert first == "  client   0 |█   ▄|     12 samples of 2 classes, 3 to test on"
    assert second == "  client   1 |▁ █  |      9 samples of 2 classes, 4 to test on"
    assert legend == "  classes from left to right: ant, bee, cat; a full block is 8 samples"
    many = picture(np.ones((100, 200), int), [f"class {number}" for number in range(200)]).splitlines()
    assert "and 70 more clients with 200 to 200 samples" in many[-2]
    assert "4 classes to a column" in many[-1] and max(map(len, many)) < 120


def test_the_command_shows_and_fails(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    good = CliRunner().invoke(app, ["data", "digits", "--check", "--split", "own"])
    assert good.exit_code == 0 and "samples of 4 classes" in good.stdout
    bad = CliRunner().invoke(app, ["data", "digits", "--split", "floor"])
    assert "would do: minimum: 0.12 instead of 0.2" in bad.stdout
    assert str(bad.exception) == "1 of 1 splits cannot be drawn, see above"
    assert render(checks(project, "digits", split="floor")["floor"]).splitlines()[0].startswith("digits / floor")
