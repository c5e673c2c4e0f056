"""Names for shell completion, from files alone: whoever presses the tab key does not wait for torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

MADE = ("download-", "pretrain-", "train-", "evaluate-", "partition", "report")
"""Beginnings of the names of stages that are no tables."""


def tables() -> list[str]:
    """Names of tables and figures, which are stages of DVC."""
    return [name for name in _stages() if not name.startswith(MADE)]


def experiments() -> list[str]:
    """Names of experiments, as stages train them; a paper's experiment has such a stage for each method."""
    trained = [re.findall(r"(?m)^    cmd: python pipeline/train\.py ([\w.-]+)", text) for text in _pipelines(Path())]
    return [*dict.fromkeys([*chain(*trained), *_folders("runs", 1)])]


def cells(incomplete: str = "") -> list[str]:
    """Paths of cells that have a record, below ``runs/``, and of the folders that lead there, one level at a time."""
    start = incomplete.removeprefix("runs/")
    level = start.count("/") + 1
    prefix = "runs/" if incomplete.startswith("runs/") else ""
    return [f"{prefix}{name}{'/' if level < 4 else ''}" for name in _folders("runs", level)]


def targets(incomplete: str) -> list[str]:
    """Tables, experiments and cells."""
    if "/" in incomplete:
        return _matching(incomplete, cells(incomplete))
    return _matching(incomplete, [*dict.fromkeys([*tables(), *experiments()])])


def results(incomplete: str) -> list[str]:
    """Runs and made tables."""
    found = cells(incomplete) if "/" in incomplete else [*made_tables(""), *experiments()]
    return _matching(incomplete, found)


def made_tables(incomplete: str) -> list[str]:
    """Tables that are made, as folders of ``tables/``."""
    return _matching(incomplete, _folders("tables", 1))


def known_tables(incomplete: str) -> list[str]:
    """All tables."""
    return _matching(incomplete, tables())


def known_experiments(incomplete: str) -> list[str]:
    """Experiments."""
    return _matching(incomplete, experiments())


def methods(incomplete: str) -> list[str]:
    """Methods."""
    return _matching(incomplete, _keys("versions.yaml", "methods"))


def datasets(incomplete: str) -> list[str]:
    """Data sets with partitions."""
    return _matching(incomplete, _keys("params.yaml", "partitions"))


def model_groups(incomplete: str) -> list[str]:
    """Groups of models."""
    return _matching(incomplete, _keys("params.yaml", "models"))


def splits(incomplete: str) -> list[str]:
    """Splits of any data set."""
    text = _text(Path("params.yaml")).partition("\npartitions:")[2]
    block = re.split(r"(?m)^\S", text)[0]
    return _matching(incomplete, re.findall(r"(?m)^ {6}([\w.-]+):", block))


def rows(incomplete: str) -> list[str]:
    """Rows of any experiment."""
    found = []
    for path in [Path("params.yaml"), *sorted(Path().glob("*/params.yaml"))]:
        for indent, block in re.findall(r"(?m)^( +)rows:\n((?:\1 .*\n)+)", _text(path)):
            found += re.findall(rf"(?m)^{indent}  ([\w.-]+):", block)
    return _matching(incomplete, found)


def _matching(incomplete: str, found: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def _keys(file: str, key: str) -> list[str]:
    """The keys of a mapping at the top of a YAML file, as hetfl and DVC write it."""
    block = re.split(r"(?m)^\S", _text(Path(file)).partition(f"\n{key}:\n")[2])[0]
    return re.findall(r"(?m)^ {2}([\w.-]+):", block)


def elsewhere(words: Iterable[str]) -> str:
    """A remark on the first of these words that names a table or experiment of another project; else empty.

    Where there is no project, nothing has a name.
    """
    if not Path("params.yaml").exists():
        return "this folder has no params.yaml; run from the repository's root"
    for folder in [*(path.parent for path in Path().glob("*/.dvc")), Path("..")]:
        if not (folder / "params.yaml").exists():
            continue
        known = {re.sub("^(train|evaluate)-", "", name) for name in _stages(folder)}
        for word in words:
            name = word.removeprefix("runs/").split("/")[0]
            if name in known or any(one.startswith(f"{name}-") for one in known if len(name) > 6):
                return f"{name} belongs to the project {folder}; add --cd {folder} after hetfl or dvc"
    return ""


def _stages(root: Path = Path()) -> Iterator[str]:
    for text in _pipelines(root):
        yield from re.findall(r"(?m)^  ([\w.-]+):", text)


def _pipelines(root: Path) -> Iterator[str]:
    """The stages of each dvc.yaml of a project, as text."""
    inner = (path for path in root.glob("*/dvc.yaml") if not (path.parent / ".dvc").exists())
    for path in (root / "dvc.yaml", *inner):
        yield re.split(r"(?m)^(?!stages:)[^\s#]", _text(path))[0]


def _folders(name: str, level: int) -> list[str]:
    root = Path(name)
    found = (path for path in root.glob("/".join(["[!.]*"] * level)) if path.is_dir())
    return sorted(path.relative_to(root).as_posix() for path in found)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
