"""Errors of params.yaml: one line, key, value, remedy."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetfl.errors import HetflError
from hetfl.federation.plan import cells, check_fit, check_models, load_params

PARAMS = Path("params.yaml")
HOMOGENEOUS = "experiments.digits-homogeneous"


def edit(raw: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        raw = raw.setdefault(key, {})
    if value is None:
        del raw[last]
    else:
        raw[last] = value


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str, Any], str]:
    """Loads params.yaml with one value changed; returns the message."""
    # By way of JSON, so that what an anchor repeats can be changed in one place.
    raw = json.loads(json.dumps(yaml.safe_load(PARAMS.read_text())))

    def load(path: str, value: Any) -> str:
        changed = copy.deepcopy(raw)
        edit(changed, path, value)
        file = tmp_path / "params.yaml"
        file.write_text(yaml.safe_dump(changed))
        with pytest.raises(HetflError) as caught:
            params = load_params(file)
            for group in params.models:
                check_models(params, group)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return load


EXPERIMENT = "experiments/digits-homogeneous"

MISTAKES = [
    ("experimnts", {}, "params.yaml: unknown setting 'experimnts'; did you mean 'experiments'?"),
    ("compute/device", "gpu", "compute.device: 'gpu' should match"),
    ("data/cifar", {}, "data: unknown data set 'cifar'"),
    ("data/digits/test", 2000, "data.digits.test: 2000 plus public 600 must be less than the 1797 images"),
    (
        "partitions/digits/splits/iid/scheme",
        "idd",
        "partitions.digits.splits.iid.scheme: unknown scheme 'idd'; did you mean 'iid'?",
    ),
    ("partitions/digits/splits/iid/scheme", None, "partitions.digits.splits.iid: needs 'scheme'"),
    (
        "partitions/digits/splits/iid/clients",
        0,
        "partitions.digits.splits.iid.clients: 0 should be greater than or equal to 1",
    ),
    (
        "partitions/digits/splits/dir/axs",
        "x",
        "partitions.digits.splits.dir: unknown setting 'axs'; did you mean 'axis'?",
    ),
    ("models/digits-homogeneous", [], "models.digits-homogeneous: [] should have at least 1 item"),
    (
        "models/digits-homogeneous",
        ["digits_vit_bse"],
        "unknown model 'digits_vit_bse'; did you mean 'digits_vit_base'?",
    ),
    (
        "models/digits-homogeneous",
        ["vit_base_patch16_224.augreg_in21k_ft_in2k"],
        "unknown weights tag 'vit_base_patch16_224.augreg_in21k_ft_in2k'; did you mean "
        "'vit_base_patch16_224.augreg_in21k_ft_in1k'?",
    ),
    (f"{EXPERIMENT}/title", None, f"{HOMOGENEOUS}.title: is missing"),
    (f"{EXPERIMENT}/seeds", [], f"{HOMOGENEOUS}.seeds: [] should have at least 1 item"),
    ("partitions/digits", None, ".dataset: 'digits' has no entry in partitions; add one"),
    (f"{EXPERIMENT}/seeds", [0, 7], f"{HOMOGENEOUS}.seeds: 7 is not among partitions.digits.seeds [0, 1, 2]; add it"),
    (f"{EXPERIMENT}/seeds", [0, 0], f"{HOMOGENEOUS}.seeds: [0, 0] names a seed twice"),
    (
        f"{EXPERIMENT}/dataset",
        "digit",
        f"{HOMOGENEOUS}.dataset: unknown data set 'digit'; did you mean 'digits'?",
    ),
    (f"{EXPERIMENT}/models", "digits", f"{HOMOGENEOUS}.models: unknown model group 'digits'"),
    (f"{EXPERIMENT}/models", "digits-heterogeneous", "rows.pfedpg.method: pfedpg needs one architecture"),
    (
        f"{EXPERIMENT}/splits",
        {"idi": "IID"},
        f"{HOMOGENEOUS}.splits: unknown split 'idi'; did you mean 'iid'?",
    ),
    (
        f"{EXPERIMENT}/defaults/rounds",
        0,
        f"{HOMOGENEOUS}.defaults.rounds: 0 should be greater than or equal to 1",
    ),
    (
        f"{EXPERIMENT}/defaults/round",
        1,
        f"{HOMOGENEOUS}.defaults: unknown setting 'round'; did you mean 'rounds'?",
    ),
    (
        f"{EXPERIMENT}/rows/fedhpl/method",
        "fedhlp",
        "rows.fedhpl.method: unknown method 'fedhlp'; did you mean 'fedhpl'?",
    ),
    (
        f"{EXPERIMENT}/rows/fedhpl/settings",
        {"gamma": -1},
        "rows.fedhpl.settings.gamma: -1 should be greater than",
    ),
    (f"{EXPERIMENT}/rows/fedhpl/settings", {"gama": 1}, "unknown setting 'gama'; did you mean 'gamma'?"),
    (
        f"{EXPERIMENT}/rows/fedhpl/settings",
        {"upload": "mean"},
        "settings.upload: 'mean' should be 'raw' or 'average'",
    ),
    (f"{EXPERIMENT}/rows/fedhpl/settings", {"lr": float("nan")}, "rows.fedhpl.settings.lr: nan should be"),
]


@pytest.mark.parametrize(("path", "value", "expected"), MISTAKES, ids=[f"{m[0]}={m[1]}"[-60:] for m in MISTAKES])
def test_a_mistake_is_one_line_with_key_value_and_remedy(broken, path, value, expected):
    message = broken(path, value)
    assert message.startswith("params.yaml: ")
    assert expected in message


def test_files_that_are_not_settings(tmp_path: Path):
    with pytest.raises(HetflError, match="does not exist"):
        load_params(tmp_path / "params.yaml")
    for content, expected in [("a: [", "is not valid YAML"), ("- 1", "holds list, a mapping")]:
        (tmp_path / "params.yaml").write_text(content)
        with pytest.raises(HetflError, match=expected):
            load_params(tmp_path / "params.yaml")


def test_the_committed_settings_are_sound():
    params = load_params(PARAMS)
    for name, experiment in params.experiments.items():
        expanded = cells(params, name)
        rows = experiment.rows.values()
        wanted = [(row.splits or [*experiment.splits], row.seeds or experiment.seeds) for row in rows]
        assert len(expanded) == sum(len(splits) * len(seeds) for splits, seeds in wanted)
        assert len({cell.path for cell in expanded}) == len(expanded)


def test_layered_heads_are_refused_where_linear_ones_are_shared():
    params = load_params(PARAMS)
    base = cells(params, "fedtgp-classifiers-res34-htc4")[0]
    wrong = base.model_copy(update={"method": "lg-fedavg", "settings": {"embedding": 512}})
    with pytest.raises(HetflError, match="lg-fedavg needs a linear head in all clients, resnet34-h512 has another"):
        check_fit(params, [wrong])
    check_fit(params, [base])
