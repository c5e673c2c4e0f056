"""Versions of the numerics: small integers, declared in code, which increase by one when a formula's numbers change.

Settings, checksums of inputs and these versions identify a run; source code does not. So comments, names and new
files leave a run's identity unchanged. Methods and model families declare ``numerics`` in the class that has the
formulas. A class's version is the list of its parents' integers and its own, so that raising FedAvg's also makes
runs of FedProx stale. Partition schemes, corruptions and readers of data sets have no version: a run knows the
checksums of their results.

``tests/golden`` has golden numbers with the versions that they belong to. A test fails if numbers change without a
raised version, or if a version is raised and no number changes.

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
from hetfl.files import sha256_json, write_text
from hetfl.methods import METHODS, Method, create
from hetfl.models.pixels import PIXEL_PROMPTS
from hetfl.models.registry import FAMILIES, family_of
from hetfl.schema import flat

ENGINE = 1
"""Version of the code that every run uses: rounds, participation, batches, resizing and normalisation, optimisers and
draws (``training/``, ``data/batches.py``, ``optimisers.py``, ``captured.py``, ``draws.py``), and what methods and
models share (``methods/contract.py``, ``methods/parts/``, ``models/base.py``)."""

EVALUATION = 1
"""Version of the evaluation (``experiments/evaluation.py``, ``metrics/``)."""

PRETRAINING = 1
"""Version of the pre-training of backbones (``training/pretrain.py``)."""

MODELS: dict[str, type] = {**FAMILIES, **PIXEL_PROMPTS}
"""The classes of models that have a version."""

FILE = "versions.yaml"

_HEAD = """\
# Versions of the numerics, from the code. `hetfl versions` writes this file.
"""


def lineage(cls: type) -> dict[str, int]:
    """The ``numerics`` of a class and its parents, by name of class, parents first."""
    return {base.__name__: base.__dict__["numerics"] for base in reversed(cls.__mro__) if "numerics" in vars(base)}


def version(cls: type) -> str:
    """A class's version: the integers of its parents and its own, e.g. ``1.2``."""
    return ".".join(str(number) for number in lineage(cls).values())


def versions() -> dict[str, Any]:
    """All versions by name: of the engine, the evaluation, pre-training, augmentation, methods and models."""
    return {
        "engine": ENGINE,
        "evaluation": EVALUATION,
        "pretraining": PRETRAINING,
        "augmentation": Augmentation.numerics,
        "methods": {name: version(cls) for name, cls in sorted(METHODS.items())},
        "models": {name: version(cls) for name, cls in MODELS.items()},
    }


def declared() -> dict[str, Any]:
    """All versions by their keys, such as ``engine`` and ``methods.fedavg``."""
    return flat(versions())


def families(method: Method, models: Iterable[str]) -> list[str]:
    """The keys in ``models`` of :func:`versions` that a method uses with these models and its auxiliary ones."""
    options, query = method.model_options(), method.queries()
    names = [*models, *([options.auxiliary] if options.auxiliary else [])]
    found = {family_of(name, options.prompts) for name in names}
    if query is not None and query.model is not None:
        found.add(family_of(query.model))
    if options.prompts in PIXEL_PROMPTS:
        found.add(options.prompts)
    return sorted(found)


def used(cell: Cell) -> dict[str, int | str]:
    """The versions that decide a run's numbers, by their keys in :func:`versions`, such as ``methods.fedavg``."""
    models = families(create(cell.method, cell.settings, 2), cell.models)
    every = versions()
    return {
        "engine": every["engine"],
        **({"augmentation": every["augmentation"]} if cell.input.transform() else {}),
        f"methods.{cell.method}": every["methods"][cell.method],
        **{f"models.{name}": every["models"][name] for name in models},
    }


def kept_features(folder: Path) -> Path:
    """The folder below another one for features of frozen backbones, as the present versions compute them."""
    every = versions()
    return folder / "features" / sha256_json([every["engine"], every["models"]])[:16]


def keys(cells: Iterable[Cell]) -> list[str]:
    """The keys of ``versions.yaml`` that a stage depends on if it trains these cells."""
    return sorted({key for cell in cells for key in used(cell)})


def keys_of_pretraining(models: Iterable[str]) -> list[str]:
    """The keys of ``versions.yaml`` that a stage depends on if it pre-trains these models."""
    return ["engine", *sorted({f"models.{family_of(name)}" for name in models}), "pretraining"]


def write_versions(root: Path) -> dict[str, tuple[Any, Any]]:
    """Update ``versions.yaml``.

    Returns:
        The changes by key: the old version (None for a new entry) and the new one (None for a removed entry).
    """
    path = (root / FILE).resolve()  # papers/ has a link
    old, new = flat(read_yaml(path) if path.exists() else {}), flat(versions())
    changed = {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}
    write_text(path, _HEAD + yaml.safe_dump(versions(), sort_keys=False))
    return changed


def check_versions(root: Path, keys: Iterable[str]) -> None:
    """Check that ``versions.yaml``, if it exists, has the versions that the code declares.

    Args:
        root: the repository's root.
        keys: the keys to check, see :func:`keys`.

    Raises:
        HetflError: one of them is missing or has another version.
    """
    path = root / FILE
    if not path.exists():
        return
    told, known = flat(read_yaml(path)), declared()
    for key in keys:
        if told.get(key) != known[key]:
            was = told.get(key, "missing")
            raise HetflError(f"{path}: {key} is {was}, the code says {known[key]}; run hetfl versions")
