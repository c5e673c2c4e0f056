"""Versions of the numerics: small integers, declared in code, raised by one when a formula gives other numbers.

A run is what it is by its settings, the checksums of what it reads and these versions, never by source code:
comments, names and new files leave it as it is. Methods and model families declare ``numerics`` in the class whose
body holds the formulas. A class's version is the list of its parents' integers and its own, so that raising FedAvg
makes runs of FedProx stale, too. Partition schemes, corruptions and what reads data sets have none: a run knows the
checksums of what they made.

``tests/golden`` holds numbers of all of them, with the versions they are from: other numbers without a raised version
fail there, and so does a raised version without other numbers.

``versions.yaml`` is a copy of :func:`versions` for DVC: a stage depends on the entries that its runs use.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from hetfl.config import read_yaml
from hetfl.data.inputs import Augmentation
from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell
from hetfl.files import write_text
from hetfl.methods import METHODS, Method, create
from hetfl.models.pixels import PIXEL_PROMPTS
from hetfl.models.registry import FAMILIES, family_of

ENGINE = 1
"""Of what every run goes through: rounds, participation, batches, resizing and normalisation, optimisers and draws
(``training/``, ``data/batches.py``, ``optimisers.py``, ``captured.py``, ``draws.py``), and of what methods and
models share (``methods/contract.py``, ``methods/parts/``, ``models/base.py``)."""

EVALUATION = 1
"""Of what an evaluation makes of a finished run (``experiments/evaluation.py``, ``metrics/``)."""

PRETRAINING = 1
"""Of the training of backbones (``training/pretrain.py``)."""

MODELS: dict[str, type] = {**FAMILIES, **PIXEL_PROMPTS}
"""What of the models has a version."""

FILE = "versions.yaml"

_HEAD = """\
# Versions of the numerics, from the code. `hetfl versions` writes this file.
"""


def lineage(cls: type) -> dict[str, int]:
    """The ``numerics`` that a class and its parents declare, by name of class, parents first."""
    return {base.__name__: base.__dict__["numerics"] for base in reversed(cls.__mro__) if "numerics" in vars(base)}


def version(cls: type) -> str:
    """A class's version: its parents' integers and its own, e.g. ``1.2``."""
    return ".".join(str(number) for number in lineage(cls).values())


def versions() -> dict[str, Any]:
    """All there are: of the engine, the evaluation, the pre-training, augmentations, methods and models, by name."""
    return {
        "engine": ENGINE,
        "evaluation": EVALUATION,
        "pretraining": PRETRAINING,
        "augmentation": Augmentation.numerics,
        "methods": {name: version(cls) for name, cls in sorted(METHODS.items())},
        "models": {name: version(cls) for name, cls in MODELS.items()},
    }


def families(method: Method, models: Iterable[str]) -> list[str]:
    """The entries of ``models`` in :func:`versions` that a method uses with some models, its own ones included."""
    options, query = method.model_options(), method.queries()
    names = [*models, *([options.auxiliary] if options.auxiliary else [])]
    found = {family_of(name, options.prompts) for name in names}
    if query is not None and query.model is not None:
        found.add(family_of(query.model))
    if options.prompts in PIXEL_PROMPTS:
        found.add(options.prompts)
    return sorted(found)


def used(cell: Cell) -> dict[str, int | str]:
    """The versions that a run rests on, by their keys in :func:`versions`, such as ``methods.fedavg``."""
    models = families(create(cell.method, cell.settings, 2), cell.models)
    every = versions()
    return {
        "engine": every["engine"],
        **({"augmentation": every["augmentation"]} if cell.input.transform() else {}),
        f"methods.{cell.method}": every["methods"][cell.method],
        **{f"models.{name}": every["models"][name] for name in models},
    }


def keys(cells: Iterable[Cell]) -> list[str]:
    """What a stage that trains these cells depends on in ``versions.yaml``."""
    return sorted({key for cell in cells for key in used(cell)})


def keys_of_pretraining(models: Iterable[str]) -> list[str]:
    """What a stage that pre-trains these models depends on."""
    return ["engine", *sorted({f"models.{family_of(name)}" for name in models}), "pretraining"]


def write_versions(root: Path) -> dict[str, tuple[Any, Any]]:
    """Bring ``versions.yaml`` up to date.

    Returns:
        What changed, by key: the old version, None of a new entry, and the new one, None of one that is gone.
    """
    path = root / FILE
    old, new = _flat(read_yaml(path) if path.exists() else {}), _flat(versions())
    changed = {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}
    write_text(path, _HEAD + yaml.safe_dump(versions(), sort_keys=False))
    return changed


def check_versions(root: Path, keys: Iterable[str]) -> None:
    """Check that DVC sees what the code declares, where there is a ``versions.yaml``.

    Args:
        root: the repository's root.
        keys: of the versions that matter, see :func:`keys`.

    Raises:
        HetflError: one of them is another or missing.
    """
    path = root / FILE
    if not path.exists():
        return
    told, declared = _flat(read_yaml(path)), _flat(versions())
    for key in keys:
        if told.get(key) != declared[key]:
            was = told.get(key, "missing")
            raise HetflError(f"{path}: {key} is {was}, the code says {declared[key]}; run hetfl versions")


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= {f"{key}.{name}": entry for name, entry in value.items()} if isinstance(value, dict) else {key: value}
    return flat
