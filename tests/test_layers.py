"""The layers of the house: imports point down, and the training core stands without DVC, MLflow and Flower."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import hetfl

ROOT = Path(hetfl.__file__).parent
LEVELS = [
    {"errors", "process"},
    {"draws", "files", "config", "spawn", "torch_private"},
    {"message", "tensors", "optimisers", "schema"},
    {"captured", "compact", "fused"},
    {"data"},
    {"models"},
    {"methods"},
    {"metrics"},
    {"training"},
    {"experiments"},
    {"tables"},
    {"figures"},
    {"tracking", "report"},
    {"stages"},
    {"targets", "planning", "partition_doctor", "adhoc"},
    {"train", "ledger", "new", "overview", "doctor"},
    {"site"},
    {"sweep", "api", "deploy"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
CORE = [name for name, level in LEVEL.items() if level <= LEVEL["experiments"]]


@cache
def imports(path: Path) -> set[str]:
    """The modules below hetfl that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hetfl."):
            found.add(node.module)
            found |= {name for alias in node.names if (name := f"{node.module}.{alias.name}") in modules()}
        elif isinstance(node, ast.ImportFrom) and node.module == "hetfl":
            found |= {name for alias in node.names if (name := f"hetfl.{alias.name}") in modules()}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("hetfl.")}
    return found


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(["hetfl", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }


def test_imports_point_down():
    for name, path in modules().items():
        if name == "hetfl":
            continue
        layer = name.split(".")[1]
        for target in imports(path):
            below = target.split(".")[1]
            assert below == layer or LEVEL[below] < LEVEL[layer], f"{name} imports {target}"


def test_no_two_files_import_each_other():
    graph = {name: imports(path) & modules().keys() for name, path in modules().items()}

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += graph.get(name, ())
        return seen

    assert [name for name in graph if name in reachable(name)] == []


def test_method_files_import_nothing_of_one_another_except_ancestors():
    def others(path: Path) -> set[str]:
        return {name.removeprefix("hetfl.methods.") for name in imports(path) if name.startswith("hetfl.methods.")}

    contract = {"base", "contract", "registry"}
    for path in (ROOT / "methods" / "parts").glob("*.py"):
        assert all(name == "contract" or name.startswith("parts.") for name in others(path)), path.name
    parents = {
        path.stem: {
            base.id.lower()
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if isinstance(base, ast.Name)
        }
        for path in (ROOT / "methods").glob("*.py")
    }

    def ancestors(name: str) -> set[str]:
        return parents.get(name, set()).union(*map(ancestors, parents.get(name, set()) - {name}))

    for path in (ROOT / "methods").glob("*.py"):
        siblings = {name for name in others(path) if not name.startswith("parts.")}
        if path.stem not in contract | {"__init__"}:
            assert siblings - {"base"} <= ancestors(path.stem), path.name
