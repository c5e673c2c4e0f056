"""pyproject.toml names what is imported, in the list of those who import it, and nothing else."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from test_layers import CORE

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
TOOLS = {"dvc", "ruamel-yaml-clib", "setuptools", "pytest-xdist", "ruff", "mypy", "types-pyyaml"}
"""Distributions that are run, not imported."""
PEERS = {"blazefl", "fedlab", "fluke", "pfl"}
"""Frameworks that benchmarks/peers.py compares with; whoever runs it installs them."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(extra: str = "") -> set[str]:
    """The distributions that the core needs, or that an extra adds."""
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}


CORE_LIST, TEST = listed(), listed("test")
EXTRAS = ("pipeline", "slurm", "ray", "tables", "flower", "privacy")
PIPELINE = set().union(*map(listed, EXTRAS))


def core_files() -> list[Path]:
    """The files of the rooms below the pipeline's."""
    root = REPOSITORY / "src/hetfl"
    return [path for path in root.rglob("*.py") if path.relative_to(root).with_suffix("").parts[0] in CORE]


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]


@cache
def distributions() -> dict[str, list[str]]:
    return {name: [normal(found) for found in names] for name, names in packages_distributions().items()}


@cache
def not_others() -> set[str]:
    """The modules of Python and of this repository, and those that are not declared."""
    return {path.stem for path in files("tests", "benchmarks")} | {"hetfl"} | sys.stdlib_module_names | PEERS


@cache
def imported(path: Path, at_once: bool = False) -> set[str]:
    """The modules of others that a file imports: anywhere, or as soon as it is imported itself."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    found = set()
    while waiting:
        node = waiting.pop()
        if at_once and isinstance(node, ast.FunctionDef | ast.Lambda):
            continue
        waiting += ast.iter_child_nodes(node)
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            top = name.partition(".")[0]
            if top not in not_others():
                found.add(top)
    return found


def undeclared(paths: list[Path], allowed: set[str], at_once: bool = False) -> set[str]:
    return {
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in paths
        for name in imported(path, at_once)
        if not allowed & set(distributions().get(name, []))
    }


@pytest.mark.parametrize(
    ("paths", "allowed", "at_once"),
    [
        (core_files(), CORE_LIST, True),
        (files("src", "pipeline"), CORE_LIST | PIPELINE, False),
        (files("tests", "benchmarks"), CORE_LIST | PIPELINE | TEST, False),
    ],
    ids=["core", "pipeline", "tests"],
)
def test_what_is_imported_is_declared(paths: list[Path], allowed: set[str], at_once: bool) -> None:
    assert len(paths) > 5
    assert undeclared(paths, allowed, at_once) == set()


def test_what_is_declared_is_imported() -> None:
    found = {name for path in files("src", "pipeline", "tests", "benchmarks") for name in imported(path)}
    used = {distribution for name in found for distribution in distributions().get(name, [])}
    assert (CORE_LIST | PIPELINE | TEST) - used - TOOLS == set()


def test_nothing_is_declared_twice() -> None:
    assert not CORE_LIST & PIPELINE and not (CORE_LIST | PIPELINE) & TEST
