"""Skeletons of one's own work: a method, a data set or an experiment, that runs as it is written."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any, get_args

import yaml

import hetfl
from hetfl import stages
from hetfl.config import read_yaml, validate
from hetfl.data.catalogue import CATALOGUE
from hetfl.data.own import OwnSettings, layout_of, look, statistics
from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Params, Workspace, cells, check_fit, load_params
from hetfl.experiments.settings import LONGEST
from hetfl.experiments.versions import FILE, write_versions
from hetfl.files import write_text
from hetfl.methods import METHODS, method_class
from hetfl.tables.catalogue import table_names

PARENT = "fedavg"
"""The method that a new one is written as the difference from."""

METHOD = Template('''\
"""$title: what it changes about FedAvg, in one sentence.

What the clients do and send. What the server makes of it. The report shows this text; a test wants three sentences.
"""

from __future__ import annotations

import torch
from pydantic import Field, field_validator

from hetfl.draws import Draws
from hetfl.message import ServerState
from hetfl.methods.base import Uplinks, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.methods.parts.robust import COMBINING, mean_only


@register_method("$name")
class $cls(FedAvg):
    """Authors, venue, and the equation or algorithm that this class is.

    Fill in: ``title``, ``source``, ``travels`` and this docstring; the settings; and the step that differs from
    FedAvg, with a docstring of its own, which the report shows. It is one of ``objective`` (what a client minimises),
    ``statistics`` (what it sums over its data), ``uplink`` (what it sends), ``aggregate`` (what the server makes of
    that) and ``downlink`` (what the server sends). The whole contract is in ``contract.py``. This skeleton changes
    ``aggregate``: the server goes only a part of the way to the average.
    """

    numerics = 1
    title = "$title"
    source = "authors, venue, equation"
    travels = "all parameters"

    class Settings(FedAvg.Settings):
        """``step``: part of the way from the server's weights to the clients' average; 1 is FedAvg."""

        step: float = Field(default=0.9, gt=0, le=1)

        # FedAvg's rules against hostile clients and its noise are refused: they hold for its own messages only.
        _mean_only = field_validator(*COMBINING)(mean_only)

    settings: Settings

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """w + step (w' - w), w' being FedAvg's average of the clients' weights."""
        averaged, before = super().aggregate(server, uplinks, draws), server.group("model")
        moved = {
            name: torch.lerp(before[name], after, self.settings.step)
            for name, after in averaged.group("model").items()
        }
        return averaged | {"model": moved}
''')

TEST = Template('''\
"""$title against its equations, written down anew."""

import pytest
import torch

from hetfl.draws import Draws
from hetfl.message import Message, ServerState
from hetfl.methods import create
from hetfl.methods.base import Uplinks


@pytest.mark.equation("$name")
def test_the_server_goes_a_part_of_the_way_to_the_average():
    """w + step (w' - w), computed by hand for two clients with 1 and 3 samples."""
    method = create("$name", {"step": 0.5}, 2)
    server = ServerState({"samples": torch.tensor([1, 3]), "model": {"w": torch.tensor([0.0, 8.0])}})
    uplinks = Uplinks.of({0: Message({"w": torch.tensor([4.0, 4.0])}), 1: Message({"w": torch.tensor([8.0, 0.0])})})
    after = method.aggregate(server, uplinks, Draws(0).at(1))
    assert after["model/w"].tolist() == [3.5, 4.5]  # half of the way to [7, 1]
''')


def new_method(name: str, root: Path, experiment: str) -> list[str]:
    """Write a method that runs, with its test and a row in an experiment.

    The row has the settings of the experiment's FedAvg row, if there is one, so that only the method differs.

    Args:
        name: as it is called in params.yaml, e.g. ``fedmine`` or ``fed-mine``.
        root: the checkout.
        experiment: an experiment of params.yaml that gets the row.

    Returns:
        What was written, line by line, and the commands that come next.

    Raises:
        HetflError: the name is taken or cannot be one, or the experiment does not exist; nothing was written.
    """
    stem = _check_method(name)
    params = load_params(Workspace(root).params)
    block = _block(params, experiment, root)
    if name in (block["rows"] or {}):
        raise HetflError(f"params.yaml: experiments.{experiment}.rows: {name!r} is there already; use another name")
    beside = (block["rows"] or {}).get(PARENT) or {}
    row = {key: value for key, value in beside.items() if key in ("models", "protocol", "input", "splits", "seeds")}
    folder = root / "src" / "hetfl" / "methods"
    if folder.resolve() != Path(hetfl.__file__).parent.resolve() / "methods":
        raise HetflError(f"{folder}: is not the hetfl that runs; install this checkout with pip install -e .")
    words = {"name": name, "cls": _class_name(name), "title": name}
    files = {folder / f"{stem}.py": METHOD}
    if (root / "tests" / "methods").is_dir():
        files[root / "tests" / "methods" / f"test_{stem}.py"] = TEST
    for path in files:
        if path.exists():
            raise HetflError(f"{path}: is there already; use another name")
    edited = insert(Workspace(root).params, ("experiments", experiment, "rows"), {name: row})
    for path, template in files.items():
        write_text(path, template.substitute(words))
    try:
        import_module(f"hetfl.methods.{stem}")
        changed = _apply(root, edited)
    except Exception:
        for path in files:
            path.unlink()
        raise
    lines = [f"{path.relative_to(root)}: written" for path in files]
    lines += [f"params.yaml: row {name} of {experiment}", *changed]
    seed = min(params.experiments[experiment].seeds)
    split = next(iter(params.experiments[experiment].splits))
    return [
        *lines,
        "",
        "It runs as it is. Fill in the step that is yours, then:",
        f"  hetfl train {experiment} --row {name} --split {split} --seed {seed}",
        f"  dvc repro {experiment}   # all its cells, beside the other rows; these are not trained again",
        f"  pytest tests/methods/test_{stem}.py",
        f"  pytest --update-golden 'tests/methods/test_golden.py::test_golden[{name}]'   # seconds",
        "  pytest --update-certificates tests/certificates/test_page.py",
        "Raise numerics by one whenever you change a formula after a training, so that its runs are stale.",
    ]


SIZE = 32
"""Pixels of an own data set's images unless others are asked for, or they are smaller."""

MODELS = {"own": ("cnn", 0.001), "": ("digits-resnet", 0.01)}
"""The model group of a new experiment and its learning rate: on a data set of one's own, and on others."""


def new_dataset(
    name: str, root: Path, folder: Path, size: int | None = None, title: str = "", clients: int = 5
) -> list[str]:
    """Add a folder of images to params.yaml as a data set with three partitions, and its stage to dvc.yaml.

    Args:
        name: of the data set.
        root: the checkout.
        folder: the images; see :data:`hetfl.data.own.Layout`.
        size: pixels in which images are stored; None: :data:`SIZE`, or less where they are smaller.
        title: its name in tables.
        clients: among whom the partitions share it.

    Returns:
        What was found and written, line by line, and the commands that come next.

    Raises:
        HetflError: the name is taken or cannot be one, or the folder holds no data set; nothing was written.
    """
    _check_name(name, "a data set")
    params = load_params(Workspace(root).params)
    if name in params.data.sets or name in CATALOGUE:
        raise HetflError(f"{name}: is a data set already; use another name")
    given = folder.expanduser().resolve()
    layout = layout_of(given)
    inside = given.is_relative_to(root.resolve())
    path = given.relative_to(root.resolve()).as_posix() if inside else str(given)
    raw: dict[str, Any] = {"path": path, "layout": layout, **({"title": title} if title else {})}
    found = look(name, validate(OwnSettings, raw, name), root)
    if not 1 <= clients <= len(found.samples):
        raise HetflError(f"--clients: {clients} should be from 1 to {len(found.samples)}, the number of images")
    stored = validate(OwnSettings, {"path": path, "size": SIZE if size is None else size}, "--size")
    mean, std, grey, side = statistics(found, stored)
    raw |= {"size": min(SIZE, side) if size is None else size, "grey": grey}
    for key, values in (("mean", mean), ("std", std)):
        rounded = [round(value, 3) for value in values]
        raw[key] = rounded[0] if grey else rounded
    if not grey:
        del raw["grey"]
    least = {"minimum": 0.01}
    splits = {
        "iid": {"scheme": "iid", "clients": clients},
        "dir": {"scheme": "dirichlet-overlap", "clients": clients, "axis": "classes", **least},
        "noniid": {"scheme": "dirichlet", "clients": clients, **least},
    }
    validate(OwnSettings, raw, name)
    edited = insert(Workspace(root).params, ("data",), {name: raw})
    edited = insert_text(edited, ("partitions",), {name: {"seeds": 3, "splits": splits}})
    written = _apply(root, edited)
    sizes = ", ".join(f"{part or 'not divided'} {count}" for part, count in found.sizes.items())
    colour = "grey" if grey else "colour"
    return [
        f"{given}: {len(found.class_names)} classes, {sizes}; {colour}, median side {side} pixels",
        f"params.yaml: data.{name}, partitions.{name} with {', '.join(splits)}",
        *written,
        "",
        "It is ready. Edit its lines in params.yaml (size, fit, test, partitions), then:",
        f"  dvc repro download-{name}            # read the images; DVC watches the folder from here on",
        f"  hetfl data {name} --check             # which splits can be drawn, with a picture of each",
        f"  hetfl new experiment mine --dataset {name}",
    ]


def new_experiment(
    name: str,
    root: Path,
    dataset: str = "digits",
    models: str = "",
    methods: Sequence[str] = (),
    splits: Sequence[str] = (),
) -> list[str]:
    """Add an experiment to params.yaml, and its stages to dvc.yaml.

    Args:
        name: of the experiment, and of its table.
        root: the checkout.
        dataset: one with partitions.
        models: a group of models; empty: see :data:`MODELS`.
        methods: one row for each; empty: FedAvg, FedProx and FedBABU.
        splits: partitions of the data set; empty: the first two.

    Returns:
        What was written, line by line, and the commands that come next.

    Raises:
        HetflError: a name is taken or unknown, or a method does not support the models; nothing was written.
    """
    _check_name(name, "an experiment")
    params = load_params(Workspace(root).params)
    taken = {*table_names(params), *params.experiments, *stages.stage_names(params)}
    if name in taken:
        raise HetflError(f"{name}: is an experiment, a table or a stage already; use another name")
    if dataset not in params.partitions:
        raise unknown("data set", dataset, params.partitions, "--dataset")
    usual, lr = MODELS["own" if dataset in params.data.own else ""]
    models = models or usual
    if models not in params.models:
        raise unknown("model group", models, params.models, "--models")
    known = params.partitions[dataset].splits
    for split in splits:
        if split not in known:
            raise unknown("split", split, known, "--split")
    for method in methods:
        method_class(method, "--method")
    rows, adam = methods or ("fedavg", "fedprox", "fedbabu"), {"optimiser": "adam", "lr": lr}
    every = all(map(_takes_adam, rows))
    block: dict[str, Any] = {
        "title": name,
        "dataset": dataset,
        "models": models,
        "splits": {split: split for split in splits or [*known][:2]},
        "seeds": 1,
        "defaults": {"rounds": 3, "local_epochs": 2, **(adam if every else {})},
        "rows": {method: {} if every or not _takes_adam(method) else {"settings": dict(adam)} for method in rows},
    }
    lines = _apply(root, insert(Workspace(root).params, ("experiments",), {name: block}), name)
    return [
        f"params.yaml: experiments.{name}, {len(block['rows'])} methods x {len(block['splits'])} splits",
        *lines,
        "",
        "It runs as it is. Edit its block in params.yaml, then:",
        f"  hetfl plan {name}    # what it takes",
        f"  dvc repro {name}     # partition, train, evaluate, make its table",
        f"  hetfl show {name}    # the table",
    ]


def _takes_adam(method: str) -> bool:
    return "adam" in get_args(method_class(method).Settings.model_fields["optimiser"].annotation)


def insert(file: Path, keys: Sequence[str], entry: Mapping[str, Any]) -> str:
    """The text of a YAML file with an entry added at the end of a mapping, and all other lines as they are.

    The entry has the form in which DVC writes what ``dvc exp run --set-param`` changes.

    Args:
        file: the file.
        keys: those that lead to the mapping.
        entry: what is added; innermost mappings and lists are written on one line.

    Raises:
        HetflError: the mapping is written on one line or is empty.
    """
    return insert_text(file.read_text(), keys, entry, file.name)


def insert_text(text: str, keys: Sequence[str], entry: Mapping[str, Any], name: str = "params.yaml") -> str:
    """As :func:`insert`, with the text of a file of this name."""
    node: Any = yaml.compose(text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    for key in keys:
        node = next((value for written, value in node.value if written.value == key), None)
    if node is None and len(keys) == 1:  # the papers' project has no experiments but in the papers' folders
        return f"{text.rstrip()}\n\n{_as_yaml({keys[0]: dict(entry)})}"
    if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
        raise HetflError(f"{name}: {'.'.join(keys)}: is written on one line; write each entry on its own line")
    last, column = _last_line(node.value[-1][1]), node.value[0][0].start_mark.column
    written = _as_yaml(entry)
    added = "".join(f"{' ' * column}{line}\n" for line in written.splitlines())
    lines = text.splitlines(keepends=True)
    if not lines[last].endswith("\n"):
        lines[last] += "\n"
    return "".join([*lines[: last + 1], added, *lines[last + 1 :]])


def _as_yaml(entry: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(entry), default_flow_style=None, sort_keys=False, allow_unicode=True))


def _last_line(node: yaml.Node) -> int:
    """The line, from 0, in which a node's last word stands; marks of block mappings end where the next key begins."""
    if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
        return _last_line(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and node.value and not node.flow_style:
        return _last_line(node.value[-1])
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return int(node.end_mark.line) - 1
    return int(node.end_mark.line)


def _apply(root: Path, text: str, experiment: str = "") -> list[str]:
    """Write params.yaml and what follows from it; back to what it was if it has a mistake.

    The models of a new ``experiment`` must support its methods.
    """
    file = Workspace(root).params
    was = file.read_text()
    write_text(file, text)
    try:
        params = load_params(file)
        check_fit(params, cells(params, experiment) if experiment else [])
        changed = stages.write(params, root)
    except HetflError:
        write_text(file, was)
        raise
    versions = [f"{FILE}: {key} {new}" for key, (_, new) in write_versions(root).items()]
    return [*versions, *(f"{path}: stages updated" for path in changed)]


def _block(params: Params, experiment: str, root: Path) -> dict[str, Any]:
    """An experiment as it is written in params.yaml."""
    own = read_yaml(Workspace(root).params).get("experiments") or {}
    if experiment in params.experiments and experiment not in own:
        found = params.experiments[experiment]
        raise HetflError(f"{found.file}: experiments.{found.written}: add the row there, or name one of params.yaml")
    if experiment not in own:
        raise unknown("experiment", experiment, own, "--experiment")
    return dict(own[experiment])


def _check_method(name: str) -> str:
    """The name of a new method's file, without suffix."""
    _check_name(name, "a method")
    if not name[0].isalpha():
        raise HetflError(f"{name}: is not a name of a method; begin with a letter")
    stem, cls = name.replace("-", ""), _class_name(name)
    if name in METHODS or (Path(hetfl.__file__).parent / "methods" / f"{stem}.py").exists() or stem == "parts":
        raise HetflError(f"{name}: there is a method or file of this name (src/hetfl/methods/{stem}.py); use another")
    if keyword.iskeyword(stem) or keyword.iskeyword(cls) or cls in _imported(METHOD.template):
        raise HetflError(f"{name}: Python or the contract uses this name; use another")
    return stem


def _check_name(name: str, kind: str) -> None:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise HetflError(f"{name}: is not a name of {kind}; use lower-case letters, digits and single dashes")
    if len(name) > LONGEST:
        raise HetflError(f"{name}: has {len(name)} characters, a name of {kind} at most {LONGEST}; use a shorter one")


def _class_name(name: str) -> str:
    return "".join(part[0].upper() + part[1:] for part in name.split("-"))


def _imported(template: str) -> Iterable[str]:
    """The names that the file of a new method imports."""
    tree = ast.parse(Template(template).substitute(name="x", cls="X", title="x"))
    return {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
