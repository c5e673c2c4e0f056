"""The identity of a run: its settings, the checksums of its inputs, and the versions of its numerics."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from hetfl.errors import HetflError
from hetfl.experiments.plan import SCHEME, Cell, Workspace, weights_read
from hetfl.experiments.versions import used
from hetfl.files import read_json, sha256_json
from hetfl.methods import method_class
from hetfl.models.registry import weights_checksum
from hetfl.schema import Inputs, Run


def identity(cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Everything that decides a run's numbers, as JSON.

    It has only the settings that differ from their defaults, so that a new setting leaves all identities unchanged.
    If a default changes, a version must be raised instead; the golden curves check this.

    Args:
        cell: the run's cell.
        inputs: from :func:`inputs`.
    """
    settings = method_class(cell.method).Settings.model_validate(cell.settings)
    return {
        "method": cell.method,
        "settings": settings.model_dump(mode="json", exclude_defaults=True),
        "models": cell.models,
        "input": cell.input.model_dump(mode="json", exclude_defaults=True),
        "public": cell.public and cell.public.subset,
        "seed": cell.seed,
        "inputs": inputs.as_json(),
        "numerics": used(cell),
    }


def fingerprint(cell: Cell, inputs: Inputs) -> str:
    """The checksum of a run's :func:`identity`, in hex."""
    return sha256_json(identity(cell, inputs))


def differences(run: Run, cell: Cell, inputs: Inputs) -> list[str]:
    """Why a record does not belong to a cell, e.g. ``methods.fedavg 1, now 2``; empty if it does.

    Args:
        run: the record.
        cell: the cell as params.yaml describes it.
        inputs: from :func:`inputs`.
    """
    if run.fingerprint == fingerprint(cell, inputs):
        return []
    models = [] if run.models == cell.dealt(len(run.models)) else ["other models"]
    told = {"method": run.method, "seed": run.seed, **run.settings, "input": run.input}
    told |= {"public": run.public, **_flat(run.inputs), **run.numerics}
    wanted = {"method": cell.method, "seed": cell.seed, **cell.settings, "input": cell.input.model_dump()}
    wanted |= {"public": cell.public and cell.public.model_dump(), **_flat(inputs), **used(cell)}
    told, wanted = json.loads(json.dumps([told, wanted]))
    found = [
        f"{name} {_short(told[name])}, now {_short(wanted[name])}"
        for name in wanted
        if name in told and told[name] != wanted[name]
    ]
    return [*found, *models, *_one_sided(run, cell)] or ["what is not recorded"]


def own_differences(run: Run, cell: Cell, workspace: Workspace) -> list[str]:
    """As :func:`differences`, for a record whose inputs need not be here: judged by those that it names itself.

    Its data sets must have the names of today, or be what lies here under these. Its partition must have been drawn
    with the settings of today, or be the one that is drawn here with these.
    """
    found = [*_other_data(run, cell, workspace), *differences(run, cell, run.inputs)]
    if found or not (redrawn := _redrawn(run, cell)):
        return found
    with suppress(HetflError):
        return [] if _partition_checksum(cell, workspace) == run.inputs.partition else redrawn
    return redrawn


def _other_data(run: Run, cell: Cell, workspace: Workspace) -> list[str]:
    """The data sets that are others now."""
    named = [("data set", run.dataset, run.inputs.dataset, cell.dataset)]
    if run.public and run.inputs.public and cell.public:
        named.append(("public data set", run.public["dataset"], run.inputs.public, cell.public.dataset))

    def here(dataset: str, what: str) -> str | None:
        with suppress(HetflError):
            return _checksum(dataset, workspace, what)
        return None

    return [f"{what} {was}, now {now}" for what, was, read, now in named if was != now and here(now, what) != read]


def _redrawn(run: Run, cell: Cell) -> list[str]:
    """The settings of the partition that are others now."""
    told = run.partition
    with suppress(ValidationError):  # a scheme that is gone stays as it was told
        told = SCHEME.validate_python(told).model_dump()
    return [
        f"partition's {name} {told.get(name)}, now {value}"
        for name, value in cell.partition.items()
        if told.get(name) != value
    ]


def _one_sided(run: Run, cell: Cell) -> list[str]:
    """The settings that a method lost or got since its record; a new one counts if it is not at its default."""
    if run.method != cell.method:
        return []
    settings = method_class(cell.method).Settings.model_validate(cell.settings)
    got = settings.model_dump(mode="json", exclude_defaults=True)
    gone = {name: was for name, was in run.settings.items() if name not in cell.settings}
    new = {name: value for name, value in got.items() if name not in run.settings}
    return [
        *(f"{name} {_short(was)}, no setting now" for name, was in gone.items()),
        *(f"{name} now {_short(value)}, no setting then" for name, value in new.items()),
    ]


def _flat(inputs: Inputs) -> dict[str, Any]:
    weights = {f"weights of {name}": value for name, value in inputs.weights.items()}
    named = {**inputs.as_json(), "weights": {}} | weights
    return {"public data" if name == "public" else name: value for name, value in named.items()}


def _short(value: Any) -> str:
    return value[:8] if isinstance(value, str) and len(value) == 64 else str(value)


def inputs(cell: Cell, workspace: Workspace) -> Inputs:
    """Checksums of a run's inputs: the data set, the partition and the weights it starts from.

    Raises:
        HetflError: an input is missing, or the partition was made with other settings. The message names the command
            that makes or fetches it.
    """
    public = {"public": _checksum(cell.public.dataset, workspace, "public data set")} if cell.public else {}
    return Inputs(
        dataset=_checksum(cell.dataset, workspace, "data set"),
        partition=_partition_checksum(cell, workspace),
        weights={name: weights_checksum(name, workspace.weights) for name in weights_read(cell)},
        **public,
    )


def _checksum(dataset: str, workspace: Workspace, what: str) -> str:
    card, make = workspace.dataset(dataset) / "card.json", f"make it with dvc repro download-{dataset}"
    if not card.exists():
        raise HetflError(f"{card}: the {what} is missing; {make}")
    found = read_json(card)
    if not isinstance(found, dict) or not isinstance(found.get("checksum"), str):
        raise HetflError(f"{card}: is not the card of a data set; {make}")
    return str(found["checksum"])


def _partition_checksum(cell: Cell, workspace: Workspace) -> str:
    """SHA-256 over the parts of a partition that decide a run: the indices, and the subsets that they refer to.

    The rest of the card belongs to the identity as well: settings and seed are compared with the cell's here, and
    what follows from the indices is checked when they are read, see :func:`hetfl.data.partitions.read_partition`. The
    card's key ``splits`` names the subsets.
    """
    path = workspace.partition(cell.dataset, cell.split, cell.seed) / "card.json"
    make = f"make it with dvc repro partition@{cell.dataset}"
    if not path.exists():
        raise HetflError(f"{path}: the partition is missing; {make}")
    card = read_json(path)
    try:
        scheme = SCHEME.validate_python(cell.partition)
        same = SCHEME.validate_python(card["settings"]) == scheme
        seed = cell.seed if scheme.seed is None else scheme.seed
        decisive = {name: card[name] for name in ("sha256", "clients", "splits", "dataset_checksum")}
    except (KeyError, TypeError, ValidationError) as error:
        raise HetflError(f"{path}: is not the card of a partition; {make}") from error
    if not same:
        where = f"params.yaml: partitions.{cell.dataset}.splits.{cell.split}"
        raise HetflError(f"{path}: has other settings than {where}; {make}")
    if card.get("seed") != seed:
        raise HetflError(f"{path}: is of seed {card.get('seed')}, seed {seed} is needed; {make}")
    return sha256_json(decisive)
