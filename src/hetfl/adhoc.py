"""Single cells that stand in no table: ``hetfl run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetfl.config import read_pairs
from hetfl.data.inputs import InputSettings
from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Cell, Params, cells, normalised
from hetfl.experiments.settings import ADHOC, Experiment, Row
from hetfl.methods import METHODS


def assignments(pairs: Sequence[str], rounds: int | None = None) -> dict[str, Any]:
    """Settings from ``key=value``, each value read as YAML.

    Raises:
        HetflError: one is not of this form, its value is not YAML, or a setting is given twice.
    """
    found = read_pairs(pairs, "--set", "is no setting; write e.g. lr=0.01")
    if rounds is not None and "rounds" in found:
        raise HetflError("--rounds: rounds are given by --set, too; remove one")
    return found if rounds is None else {"rounds": rounds, **found}


def adhoc(
    params: Params,
    method: str,
    dataset: str | None = None,
    split: str | None = None,
    seed: int = 0,
    models: str | None = None,
    given: Mapping[str, Any] = {},
    like: str | None = None,
) -> tuple[Params, Cell]:
    """One cell, and the settings with the experiment that it belongs to.

    All that is not given is taken from an experiment on the data set: from its row of the method if there is one.

    Args:
        params: the settings.
        method: the method.
        dataset: a data set with partitions; None: that of ``like``, or else the first in the settings.
        split: one of them; None: the first of ``like``, or else of the data set.
        seed: of partition and training.
        models: a group of models; None: that of the experiment.
        given: settings of the method.
        like: the experiment; None: the first on the data set, if possible with a row of the method.

    Raises:
        HetflError: a name is unknown, or a setting is wrong.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS, "--method")
    if like is not None and like not in params.experiments:
        raise unknown("experiment", like, params.experiments, "--like")
    alike = None if like is None else params.experiments[like]
    if not params.partitions:
        raise HetflError("params.yaml: partitions: is empty; add one for a data set")
    if dataset is None:
        dataset = next(iter(params.partitions)) if alike is None else alike.dataset
    if dataset not in params.partitions:
        raise unknown("data set", dataset, params.partitions, "--data")
    known = params.partitions[dataset]
    if split is None:
        split = next(iter(known.splits if alike is None or alike.dataset != dataset else alike.splits))
    if split not in known.splits:
        raise unknown("split", split, known.splits, "--split")
    if seed not in known.seeds:
        raise HetflError(f"--seed: {seed} is not among partitions.{dataset}.seeds {known.seeds}; add it there")
    if models is not None and models not in params.models:
        raise unknown("model group", models, params.models, "--models")
    template = _template(params, method, dataset, split, models) if alike is None else alike
    # A row with the method's name comes first: another one may be a variant, such as one without communication.
    rows = sorted(template.rows.items(), key=lambda item: item[0] != method)
    row = next((row for _, row in rows if row.method == method), Row.plain(method))
    for name in given:
        if name not in METHODS[method].Settings.model_fields:
            raise unknown("setting", name, METHODS[method].Settings.model_fields, f"--set: {method}")
    words = [f"{key}-{_shown(value)}" for key, value in sorted(given.items())]
    parts = [method, *([models] if models else []), *words, *([f"like-{like}"] if like else [])]
    name = "-".join(parts).replace("_", "-").lower()
    own = row.model_copy(
        update={
            "written": name,
            "title": ", ".join([METHODS[method].title, *(f"{key} {value}" for key, value in sorted(given.items()))]),
            "settings": {**row.settings, **row.swept, **given},
            "swept": {},
            "models": models or row.models,
            "splits": None,
            "seeds": None,
        }
    )
    experiment = template.model_copy(
        update={
            "file": "hetfl run",
            "written": f"{ADHOC}{dataset}",
            "title": f"Single runs on {dataset}",
            "dataset": dataset,
            "splits": {split: split},
            "seeds": [seed],
            "rows": {name: own},
            "features": 0,
            "note": "",
        }
    )
    found = params.model_copy(update={"experiments": {**params.experiments, experiment.written: experiment}})
    try:
        (cell,) = cells(found, experiment.written)
    except HetflError as error:
        # Nobody wrote this key: it was made of the options.
        key = f"{experiment.file}: experiments.{experiment.written}.rows.{name}.settings."
        raise HetflError(str(error).replace(key, "--set: ")) from error
    return found, cell


def _template(params: Params, method: str, dataset: str, split: str, models: str | None) -> Experiment:
    """The experiment on the data set that everything else is taken from."""
    on = [one for one in params.experiments.values() if one.dataset == dataset]
    same = [one for one in on if any(row.method == method for row in one.rows.values())]
    with_split = [one for one in [*same, *on] if split in one.splits]
    for one in [*with_split, *same, *on]:
        return one
    if models is None:
        known = ", ".join(params.models)
        raise HetflError(f"--models: no experiment is on {dataset}, so name a group of models: {known}")
    if not params.experiments:
        raise HetflError("params.yaml: experiments: is empty; add one, e.g. with hetfl new experiment")
    own = params.data.own.get(dataset)
    first = next(iter(params.experiments.values()))
    plain: dict[str, Any] = {"protocol": None, "defaults": {}, "rows": {}, "public": None, "paper": ""}
    inputs = InputSettings() if own is None else normalised(own)
    return first.model_copy(update={**plain, "dataset": dataset, "models": models, "input": inputs})


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return "".join(letter if letter.isalnum() or letter == "." else "-" for letter in text).strip("-")
