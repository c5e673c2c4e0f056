"""The layers of the house: imports point down, and the training core stands without DVC, MLflow and Flower."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import hetfl

ROOT = Path(hetfl.__file__).parent
LEVELS = [
    {"errors"},
    {"draws", "files", "config", "spawn", "torch_private"},
    {"message", "tensors", "optimisers", "schema"},
    {"captured", "compact"},
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
        elif isinstance(node, ast.ImportFrom) and node.module == "hetfl":
            found |= {f"hetfl.{alias.name}" for alias in node.names if (ROOT / alias.name).exists()}
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


def test_the_core_runs_without_the_pipelines_libraries():
    """As on a GPU machine that has torch, timm, scikit-learn, pydantic and little else."""
    blocked = ["mlflow", "dvc", "flwr", "ray", "rich", "typer", "jinja2", "matplotlib", "pandas", "tabulate"]
    names = [name for name in modules() if name.split(".")[1:2] and name.split(".")[1] in CORE]
    program = f"""
import gc, sys
gc.disable()  # it would go through all that is imported, again and again
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from importlib import import_module
for name in {sorted(names)}:
    import_module(name)
from hetfl.experiments.plan import load_params, cells
from pathlib import Path
params = load_params(Path("params.yaml"))
assert cells(params, "digits-homogeneous")
# Commands that list stages know of figures, and start without what draws them.
import hetfl.stages
assert hetfl.stages.figures(params)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
