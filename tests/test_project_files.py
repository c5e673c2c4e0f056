"""What a project says of itself in several files is the same everywhere."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

import hetfl
from hetfl.tables.spec import several_seeds

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CI = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def test_version_and_licence() -> None:
    assert PROJECT["version"] == CITATION["version"] == hetfl.__version__ == metadata("hetfl")["Version"]
    assert PROJECT["license"] == CITATION["license"] == metadata("hetfl")["License-Expression"]
    assert (ROOT / "LICENSE").read_text().split(maxsplit=4)[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_papers_are_cited_with_their_addresses() -> None:
    assert {paper["url"] for paper in CITATION["references"]} == set(PROJECT["urls"].values())


def test_continuous_integration_tests_every_python_that_is_promised() -> None:
    promised = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert CI["jobs"]["tests"]["strategy"]["matrix"]["python"] == promised
    known = re.search(r'^known="(.*)"$', (ROOT / ".ci/run").read_text(), flags=re.MULTILINE)
    assert known is not None
    runs = [step["run"] for job in CI["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == [f"bash .ci/run {step}" for step in known[1].split()]


def test_hooks_for_git_are_those_of_make_lint_and_need_no_network() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert lint is not None
    for command in lint[1].split("\n\t"):
        words = command.split()
        assert any(
            set(words) - {"."} <= {word.removeprefix(".venv/bin/") for word in entry.split()} for entry in entries
        )


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md"])
def test_links_to_files_exist(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_committed_curves_say_whether_they_are_means_over_seeds() -> None:
    drawn = [*ROOT.glob("tables/*/*-curves.svg"), *ROOT.glob("papers/tables/*/*-curves.svg")]
    drawn += [*ROOT.glob("tables/*/*-communication.svg"), *ROOT.glob("papers/tables/*/*-communication.svg")]
    assert len(drawn) > 20
    for drawing in drawn:
        table = json.loads((drawing.parent / f"{drawing.parent.name}.json").read_text())
        assert ("ean over seeds" in drawing.read_text()) == several_seeds(table), drawing
