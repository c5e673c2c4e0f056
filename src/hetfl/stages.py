"""DVC's stages, generated from params.yaml and the papers' tables: ``hetfl stages`` writes every dvc.yaml.

DVC can repeat a stage over a mapping (``foreach``), but its lists of dependencies must then have the same length.
Those of experiments, tables and data sets differ in length, so each of these stages is written out.

A project is a folder with params.yaml and a DVC pipeline. This repository holds two: its root, with the embedded
default, and ``papers/``, which links to the code. DVC's commands act on one project, so the papers' stages stand in
nobody's way.

An experiment of params.yaml has one training stage. A paper's experiment takes days, so each of its methods has a
stage; a table then depends only on the methods that it prints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

import hetfl
from hetfl.data.sets import CATALOGUE, MODULES
from hetfl.errors import HetflError
from hetfl.experiments import versions
from hetfl.experiments.plan import Cell, Params, cells, parts_of, weights_read
from hetfl.experiments.settings import Experiment
from hetfl.figures.base import Figure
from hetfl.figures.catalogue import figures
from hetfl.files import write_text
from hetfl.tables.catalogue import ARITHMETIC_TABLES, table_entries, table_names, table_spec
from hetfl.tables.spec import Count, Entry

ROOT = "dvc.yaml"
_OURS = "# Written by `hetfl stages`"
_HEAD = f"{_OURS} from params.yaml, */params.yaml and src/hetfl/tables/: do not edit.\n"
_COMMAND = "python pipeline/"
"""How the command of each of hetfl's stages begins."""
_SOURCE = Path(hetfl.__file__).parent
COUNTED_ON = [
    f"src/hetfl/{part}"
    for part in (
        "data",
        "draws.py",
        "experiments/rehearsal.py",
        "message.py",
        "methods",
        "metrics",
        "models",
        "training",
    )
]
"""Source that computed tables depend on, since they build models and messages."""
_FINDING = ("data/entry.py", "data/fetch.py")
"""Source that names and finds a data set's files, which cannot change its content."""

WIDTH = 100
"""Maximum length of a list or mapping on one line."""

Stage = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """The cells of one training stage: an experiment, or one method of it.

    Attributes:
        file: the dvc.yaml with the stage.
        method: None: all methods.
    """

    experiment: str
    method: str | None
    file: str
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The suffix of its stages' names."""
        return self.experiment if self.method is None else f"{self.experiment}-{self.method}"

    @property
    def folder(self) -> str:
        """The folder of its runs below ``runs/`` and of its evaluations below ``evaluations/``."""
        return self.experiment if self.method is None else f"{self.experiment}/{self.method}"


def units(params: Params) -> list[Unit]:
    """All training stages."""
    found = []
    for name, experiment in params.experiments.items():
        every, folder = cells(params, name), Path(experiment.file).parent
        file = (folder / "dvc.yaml").as_posix()
        if file == ROOT:
            found.append(Unit(name, None, file, tuple(every)))
            continue
        for method in dict.fromkeys(cell.method for cell in every):
            found.append(Unit(name, method, file, tuple(cell for cell in every if cell.method == method)))
    return found


def trained_for(entries: Iterable[Entry], every: Iterable[Unit]) -> list[Unit]:
    """The training stages that a table or figure with these cells depends on."""
    wanted = {entry.path(0).parts[:2] for entry in entries}
    return [unit for unit in every if any((cell.experiment, cell.method) in wanted for cell in unit.cells)]


def trained_by(params: Params) -> dict[str, set[Path]]:
    """For every table, the cells that DVC trains for it: those of all stages that the table's stage depends on."""
    every, found = units(params), {}
    for name in table_names(params):
        entries = [] if name in ARITHMETIC_TABLES else table_entries(name, params)
        found[name] = {cell.path for unit in trained_for(entries, every) for cell in unit.cells}
    return found


def check(params: Params, root: Path) -> None:
    """Check that every dvc.yaml is up to date.

    Raises:
        HetflError: a file is out of date.
    """
    for file in stale(params, root):
        raise HetflError(f"{root / file}: is out of date with params.yaml or the papers' tables; run hetfl stages")


def files(params: Params) -> dict[str, str]:
    """The text of every dvc.yaml, by its path.

    Raises:
        HetflError: a name contains a dot, which DVC interprets as a path into a mapping.
    """
    return {file: _HEAD + _dump(content) for file, content in _contents(params).items()}


def stage_names(params: Params) -> set[str]:
    """The names of all stages."""
    return {name for content in _contents(params).values() for name in content["stages"]}


def _contents(params: Params) -> dict[str, dict[str, Any]]:
    for key, names in (("experiments", {e.written for e in params.experiments.values()}), ("models", params.models)):
        for name in names:
            if "." in name:
                raise HetflError(f"{key}.{name}: DVC interprets a dot as a path into a mapping; use a dash")
    every, mine = units(params), own(params)
    stages: dict[str, dict[str, Stage]] = {ROOT: {}}
    stages[ROOT] |= {f"download-{name}": _download(name, params) for name in params.data.sets}
    stages[ROOT] |= {f"pretrain-{name}": _pretrain(name, params) for name in params.pretrain}
    stages[ROOT] |= {"partition": _partition()}
    for unit in every:
        stages.setdefault(unit.file, {})
        stages[unit.file] |= {
            f"train-{unit.name}": _train(unit, params),
            f"evaluate-{unit.name}": _evaluate(unit, params),
        }
    stages[ROOT] |= {name: _table(name, params, every) for name in table_names(params)}
    drawn = figures(params)
    stages[ROOT] |= {name: _figure(figure, params, every) for name, figure in drawn.items()}
    stages[ROOT] |= {"report": _report(params)}
    contents: dict[str, dict[str, Any]] = {file: {"stages": some} for file, some in stages.items()}
    # DVC warns of files that are not there, as most of the papers' are; it shows those that its command line names.
    if mine:
        contents[ROOT]["metrics"] = [f"tables/{name}/metrics.yaml" for name in mine]
        contents[ROOT]["plots"] = [plot for name in mine for plot in _curves(name, params)]
        contents[ROOT]["plots"] += [_drawing(name) for name, figure in drawn.items() if _belongs(figure, mine)]
    return contents


def own(params: Params) -> list[str]:
    """The experiments of params.yaml itself, which have a table each and are in the report."""
    return [name for name, experiment in params.experiments.items() if experiment.file == "params.yaml"]


def _belongs(figure: Figure, experiments: Sequence[str]) -> bool:
    return bool(figure.experiments()) and {*figure.experiments()} <= {*experiments}


def stale(params: Params, root: Path) -> dict[str, str | None]:
    """The dvc.yaml files below ``root`` that are out of date, with their new content; None: the file must go."""
    wanted: dict[str, str | None] = dict(files(params))
    there = [path for path in parts_of(root, "dvc.yaml") if path.read_text().startswith(_OURS)]
    wanted |= {file: None for path in there if (file := path.relative_to(root).as_posix()) not in wanted}
    found = {file: (root / file).read_text() if (root / file).exists() else None for file in wanted}
    return {file: text for file, text in wanted.items() if found[file] != text}


def write(params: Params, root: Path) -> list[str]:
    """Update every dvc.yaml; returns the paths of those that were out of date.

    Raises:
        HetflError: a stage that hetfl did not write would be lost; nothing was written.
    """
    changed = stale(params, root)
    for file in changed:
        _check_ours(root / file)
    for file, text in changed.items():
        if text is None:
            (root / file).unlink()
        else:
            write_text(root / file, text)
    return [*changed]


def _check_ours(path: Path) -> None:
    with suppress(FileNotFoundError, yaml.YAMLError):  # nobody can use a file that is no YAML
        content = yaml.safe_load(path.read_text())
        found = content.get("stages") if isinstance(content, dict) else None
        for name, stage in found.items() if isinstance(found, dict) else ():
            command = (stage.get("do") or stage).get("cmd") if isinstance(stage, dict) else stage
            if not str(command).startswith(_COMMAND):
                where = "put it into a dvc.yaml in a folder of its own"
                raise HetflError(f"{path}: {name}: is no stage of hetfl, which would remove it; {where}")


def sources(module: Path) -> list[str]:
    """The source files that decide a data set's content: its module, and what that imports from ``data/``."""
    waiting, seen = [module], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        waiting += _imports(path)
    relative = {path.relative_to(_SOURCE).as_posix() for path in seen}
    kept = {name for name in relative if name.startswith("data/") and name not in _FINDING} | {"draws.py"}
    return sorted(f"src/hetfl/{name}" for name in kept)


def _imports(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hetfl."):
            found = _SOURCE.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py")
            if found.exists():
                yield found


def _download(name: str, params: Params) -> Stage:
    if name in params.data.own:
        return _own_data(name, params)
    return {
        "desc": f"prepare {CATALOGUE[name].title}",
        "cmd": f"python pipeline/download.py {name}",
        "deps": ["pipeline/download.py", *sources(_SOURCE / "data" / "sets" / f"{MODULES[name]}.py")],
        "params": [f"data.{name}"],
        "outs": [f"data/{name}"],
    }


def _own_data(name: str, params: Params) -> Stage:
    settings = params.data.own[name]
    return {
        "desc": f"prepare {_literal(settings.title or name)}",
        "cmd": f"python pipeline/prepare.py {name}",
        "deps": [_literal(settings.path), "pipeline/prepare.py", *sources(_SOURCE / "data" / "own.py")],
        "params": [f"data.{name}"],
        "outs": [f"data/{name}"],
    }


def _literal(text: str) -> str:
    """A text of the settings as DVC reads it, which would put a value in place of ``${key}``."""
    return text.replace("${", r"\${")


def title_of(dataset: str, params: Params) -> str:
    """A data set's name in print."""
    own = params.data.own.get(dataset)
    return CATALOGUE[dataset].title if own is None else own.title or dataset


def _pretrain(name: str, params: Params) -> Stage:
    settings = params.pretrain[name]
    numerics = versions.keys_of_pretraining(settings.models)
    numerics += ["augmentation"] if settings.input.transform() else []
    return {
        "desc": f"train backbones on {_literal(title_of(settings.dataset, params))}, {settings.subset}",
        "cmd": f"python pipeline/pretrain.py {name}",
        "deps": [f"data/{settings.dataset}"],
        "params": [f"pretrain.{name}", {versions.FILE: sorted(numerics)}],
        "outs": [_weights(model) for model in settings.models],
    }


def _partition() -> Stage:
    return {
        "foreach": "${partitions}",
        "do": {
            "desc": "share a data set among clients, once per split and seed",
            "cmd": "python pipeline/partition.py ${key}",
            "deps": ["data/${key}", "pipeline/partition.py", "src/hetfl/data/partitions", "src/hetfl/draws.py"],
            "params": ["partitions.${key}"],
            "outs": ["partitions/${key}"],
        },
    }


def _train(unit: Unit, params: Params) -> Stage:
    return _at(unit.file) | {
        "cmd": f"python pipeline/train.py {unit.folder.replace('/', ' ')}",
        "deps": reads(unit, params),
        "params": watched(unit, params),
        "outs": [_grown(f"runs/{unit.folder}")],
    }


def _evaluate(unit: Unit, params: Params) -> Stage:
    # Other settings of the experiment change the runs, which are dependencies.
    features = any(cell.features for cell in unit.cells)
    block = [_key(params.experiments[unit.experiment])] if features else []
    return _at(unit.file) | {
        "cmd": f"python pipeline/evaluate.py {unit.folder.replace('/', ' ')}",
        "deps": [*reads(unit, params), f"runs/{unit.folder}"],
        "params": [*_by_file(block), {versions.FILE: ["evaluation"]}],
        "outs": [_grown(f"evaluations/{unit.folder}")],
    }


def reads(unit: Unit, params: Params) -> list[str]:
    """The files and folders that a unit's runs read."""
    made = {model for settings in params.pretrain.values() for model in settings.models}
    data = {cell.dataset for cell in unit.cells}
    public = {cell.public.dataset for cell in unit.cells if cell.public}
    weights = {name for cell in unit.cells for name in weights_read(cell)}
    return [
        *(f"data/{name}" for name in sorted(data | public)),
        *(f"partitions/{name}" for name in sorted(data)),
        # Other weights are not made by a stage; if one is missing, the run says so.
        *(_weights(name) for name in sorted(weights & made)),
    ]


def watched(unit: Unit, params: Params) -> list[Any]:
    """The keys of params.yaml and of versions.yaml that decide a unit's runs."""
    experiment = params.experiments[unit.experiment]
    rows = [experiment.rows[name] for name in dict.fromkeys(cell.row for cell in unit.cells)]
    groups = sorted({row.models or experiment.models for row in rows})
    protocols = sorted({name for name in (experiment.protocol, *(row.protocol for row in rows)) if name})
    shared = [*(f"models.{name}" for name in groups), *(f"protocols.{name}" for name in protocols)]
    # The mean and standard deviation of a data set of one's own are those of the images that the runs see.
    shared = [*(f"data.{name}" for name in [experiment.dataset] if name in params.data.own), *shared]
    keys = [_key(experiment), *((params.file(key), key) for key in shared)]
    return [*_by_file(keys), {versions.FILE: versions.keys(unit.cells)}]


def _table(name: str, params: Params, every: Sequence[Unit]) -> Stage:
    if name in ARITHMETIC_TABLES:
        used, deps = [params.experiments[one] for one in ARITHMETIC_TABLES[name]], COUNTED_ON
        shared = [f"models.{one.models}" for one in used] + [f"partitions.{one.dataset}" for one in used]
        title = f"{name}, counted"
    else:
        shared = []
        entries = table_entries(name, params)
        used = [params.experiments[one] for one in dict.fromkeys(entry.experiment for entry in entries)]
        counted = any(entry.statistic in get_args(Count) for entry in entries)
        deps = [*_results(_folders(trained_for(entries, every), every)), *(COUNTED_ON if counted else [])]
        title = table_spec(name, params).title
    return {
        "desc": _literal(title),
        "cmd": f"python pipeline/table.py {name}",
        "deps": [*deps, "pipeline/table.py", "src/hetfl/figures", "src/hetfl/tables", "src/hetfl/report"],
        **_shown(used, params, shared),
        # If only the commit differs, the stage leaves the table unchanged, so DVC must not remove it first.
        "outs": [{f"tables/{name}": {"cache": False, "persist": True}}],
    }


def _figure(figure: Figure, params: Params, every: Sequence[Unit]) -> Stage:
    used = [params.experiments[name] for name in figure.experiments()]
    made = {model for settings in params.pretrain.values() for model in settings.models}
    datasets, backbones, entries = figure.datasets(params), figure.backbones(params), [*figure.entries]
    deps = [
        *(f"partitions/{dataset}" for dataset in figure.partitions()),
        *(f"data/{dataset}" for dataset in datasets),
        *(_weights(model) for model in backbones if model in made),
        *_results(_folders(trained_for(entries, every), every)),
        *(["src/hetfl/data"] if datasets else []),
        *(["src/hetfl/models"] if backbones else []),
        *(["src/hetfl/metrics"] if entries else []),
    ]
    return {
        "desc": figure.title,
        "cmd": f"python pipeline/figure.py {figure.name}",
        "deps": [*deps, "pipeline/figure.py", "src/hetfl/figures", "src/hetfl/tables", "src/hetfl/report"],
        **_shown(used, params, [f"models.{experiment.models}" for experiment in used] if backbones else []),
        "outs": [_kept(f"figures/{figure.name}")],
    }


def _report(params: Params) -> Stage:
    mine = own(params)
    # Training for the report alone is for a project's own experiments; those of papers may take months.
    tables = mine or [name for name in table_names(params) if name in ARITHMETIC_TABLES]
    drawn = [name for name, figure in figures(params).items() if _belongs(figure, mine)]
    sets = sorted({params.experiments[name].dataset for name in mine})
    return {
        "desc": "report over all tables",
        "cmd": "python pipeline/report.py",
        "deps": [
            *(f"tables/{name}" for name in tables),
            *(f"figures/{name}" for name in drawn),
            *(f"partitions/{name}" for name in sets),
            *_results(mine),
            "pipeline/report.py",
            "src/hetfl/figures",
            "src/hetfl/tables",
            "src/hetfl/report",
            "src/hetfl/site",
            "src/hetfl/ledger",
            "src/hetfl/methods",  # whose sources its pages show
        ],
        # Tables of papers are shown, too, once they are made; a stage that watched them would train them.
        **({} if mine else {"always_changed": True}),
        "outs": [_kept("report")],
    }


def _folders(wanted: Sequence[Unit], every: Sequence[Unit]) -> list[str]:
    """The folders of these units' results: the experiment's folder if all of its methods are among them."""
    names = {unit.name for unit in wanted}
    whole = {unit.experiment for unit in wanted}
    whole -= {unit.experiment for unit in every if unit.name not in names}
    return [*dict.fromkeys(unit.experiment if unit.experiment in whole else unit.folder for unit in wanted)]


def _results(folders: Iterable[str]) -> list[str]:
    return [f"{kind}/{folder}" for kind in ("runs", "evaluations") for folder in folders]


def _shown(used: Iterable[Experiment], params: Params, more: Iterable[str] = ()) -> dict[str, list[Any]]:
    """The ``params`` of a stage that shows experiments: their keys, those of their protocols, and some more."""
    used = [*used]
    protocols = sorted({experiment.protocol for experiment in used if experiment.protocol})
    keys = [_key(experiment) for experiment in used]
    shared = [*more, *(f"protocols.{name}" for name in protocols)]
    keys += [(params.file(key), key) for key in shared]
    return {"params": _by_file(keys)} if keys else {}


def _key(experiment: Experiment) -> tuple[str, str]:
    """The file and key of an experiment."""
    return experiment.file, f"experiments.{experiment.written}"


def _by_file(keys: Iterable[tuple[str, str]]) -> list[Any]:
    """Keys in the form of a stage's ``params``: those of params.yaml as they are, others below their file."""
    own: list[str] = []
    others: dict[str, list[str]] = {}
    for file, key in dict.fromkeys(keys):
        if file == "params.yaml":
            own.append(key)
        else:
            others.setdefault(file, []).append(key)
    return [*own, *({file: names} for file, names in others.items())]


def _at(file: str) -> Stage:
    """The stage's working directory, so that all its paths start at the checkout's root."""
    return {} if file == ROOT else {"wdir": "/".join([".."] * (len(Path(file).parts) - 1))}


def _weights(model: str) -> str:
    return f"weights/{model}.safetensors"


def _grown(path: str) -> dict[str, Any]:
    """A folder of finished cells: in DVC's cache, and not emptied before its stage adds those that are missing."""
    return {path: {"persist": True}}


def _kept(path: str) -> dict[str, Any]:
    return {path: {"cache": False}}


def _curves(name: str, params: Params) -> Iterator[dict[str, Any]]:
    """Accuracies of a table as DVC draws them, with the template ``.dvc/plots/curves.json``."""
    if not table_spec(name, params).curves:
        return
    for across, label in (("round", "round"), ("megabytes", "sent so far by all clients and the server, MB")):
        file = f"tables/{name}/curves.csv"
        yield {
            f"{name} by {across}": {
                "template": "curves",
                "title": f"{name}: accuracy by {across}",
                "x": {file: across},
                "y": {file: "accuracy"},
                "x_label": label,
                "y_label": "accuracy (%)",
            }
        }


def _drawing(name: str) -> str:
    return f"figures/{name}/{name}.svg"


_BASE: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_BASE):  # type: ignore[misc]
    """YAML with lists and mappings of scalars on one line where they fit, as DVC reads it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True  # what stages have in common is written out in each

    def represent_str(self, text: str) -> Any:
        # YAML 1.2, which DVC reads, has numbers that PyYAML takes for text, such as 1e3. None begins with a letter.
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if text[:1].isalpha() else '"')

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        node = super().represent_sequence(tag, sequence, flow_style)
        node.flow_style = _fits(node.value)
        return node

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:
        node = super().represent_mapping(tag, mapping, flow_style)
        node.flow_style = _fits([part for pair in node.value for part in pair])
        return node


_Dumper.add_representer(str, _Dumper.represent_str)


def _fits(parts: Sequence[yaml.Node]) -> bool:
    scalars = [part.value for part in parts if isinstance(part, yaml.ScalarNode)]
    return len(scalars) == len(parts) and sum(len(text) + 2 for text in scalars) <= WIDTH


def _dump(content: Mapping[str, Any]) -> str:
    # A file has no line of a million characters, so none is folded.
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6))
