"""Errors of params.yaml: one line, key, value, remedy."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS

from hetfl.config import read_yaml
from hetfl.errors import HetflError
from hetfl.experiments.plan import cells, check_fit, check_models, load_params

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
    ("data/My_birds", {"path": "b"}, "data: 'My_birds' is not a name; use lower-case letters, digits and dashes"),
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
    (f"{EXPERIMENT}/seeds", [0, 0], f"{HOMOGENEOUS}.seeds: [0, 0] names 0 twice; remove one (line "),
    (f"{EXPERIMENT}/rows/fedhpl/seeds", [0, 1, 0], "rows.fedhpl.seeds: [0, 1, 0] names 0 twice; remove one (line "),
    (f"{EXPERIMENT}/rows/fedhpl/splits", ["iid", "iid"], "rows.fedhpl.splits: ['iid', 'iid'] names 'iid' twice"),
    ("partitions/digits/seeds", [0, 0, 1, 2], "partitions.digits.seeds: [0, 0, 1, 2] names 0 twice"),
    (
        "pretrain/digits/models",
        ["digits_vit_base"] * 2,
        "digits.models: ['digits_vit_base', 'digits_vit_base'] names",
    ),
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


DUPLICATES = {
    "a setting": ("a:\n  lr: 1\n  mu: 2\n  lr: 3\n", "line 4); key 'lr' is given twice, first in line 2"),
    "a row": (
        "rows:\n  x: {lr: 1}\n  y: {lr: 1}\n  x: {lr: 2}\n",
        "line 4); key 'x' is given twice, first in line 2",
    ),
    "a section": ("compute: {}\ndata: {}\ncompute: {}\n", "line 3); key 'compute' is given twice, first in line 1"),
    "in quotes": ("a: {lr: 1, 'lr': 2}\n", "line 1); key 'lr' is given twice, first in line 1"),
    "beside a merge": (
        "x-a: &a {lr: 1}\nb:\n  <<: *a\n  lr: 2\n  lr: 3\n",
        "line 5); key 'lr' is given twice, first in line 4",
    ),
}


@pytest.mark.parametrize(("content", "expected"), DUPLICATES.values(), ids=DUPLICATES)
def test_a_key_that_is_given_twice_is_refused_with_its_line(tmp_path, content, expected):
    file = tmp_path / "params.yaml"
    file.write_text(content)
    with pytest.raises(HetflError) as caught:
        load_params(file)
    assert str(caught.value) == f"{file}: is not valid YAML ({expected}; remove one"


def test_what_is_merged_may_be_overridden(tmp_path):
    file = tmp_path / "settings.yaml"
    # The chained merge is resolved before the mapping that it reads is.
    file.write_text("a: &a {x: 1, y: 2}\nb: &b\n  <<: *a\n  x: 3\nc:\n  <<: *b\n  y: 4\nd: {<<: [*b, *a], x: 5}\n")
    assert read_yaml(file) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 3, "y": 2},
        "c": {"x": 3, "y": 4},
        "d": {"x": 5, "y": 2},
    }


def test_a_mistake_names_its_line(tmp_path):
    row = "      fedhpl: {}\n"
    before, found, after = PARAMS.read_text().partition(row)
    assert found
    (tmp_path / "params.yaml").write_text(before + row.replace("{}", "{seeds: [1, 1]}") + after)
    line = before.count("\n") + 1
    with pytest.raises(HetflError) as caught:
        load_params(tmp_path / "params.yaml")
    assert "rows.fedhpl.seeds: [1, 1] names 1 twice; remove one" in str(caught.value)
    assert str(caught.value).endswith(f"(line {line})")


def test_the_committed_settings_are_sound():
    params = load_params(PARAMS)
    for name, experiment in params.experiments.items():
        expanded = cells(params, name)
        rows = experiment.rows.values()
        wanted = [(row.splits or [*experiment.splits], row.seeds or experiment.seeds) for row in rows]
        assert len(expanded) == sum(len(splits) * len(seeds) for splits, seeds in wanted)
        assert len({cell.path for cell in expanded}) == len(expanded)


def test_layered_heads_are_refused_where_linear_ones_are_shared():
    params = PAPER_PARAMS
    base = cells(params, "fedtgp-classifiers-res34-htc4")[0]
    wrong = base.model_copy(update={"method": "lg-fedavg", "settings": {"embedding": 512}})
    with pytest.raises(HetflError, match="lg-fedavg needs models with a linear head, resnet34-h512 has another"):
        check_fit(params, [wrong])
    check_fit(params, [base])


def test_an_unknown_public_subset_is_refused_before_anything_is_downloaded():
    name, experiment = next((name, one) for name, one in PAPER_PARAMS.experiments.items() if one.public)
    public = experiment.public.model_copy(update={"subset": "trian"})
    wrong = {name: experiment.model_copy(update={"public": public})}
    with pytest.raises(HetflError, match="public.subset: unknown subset 'trian'; did you mean 'train'"):
        cells(PAPER_PARAMS.model_copy(update={"experiments": wrong}), name)


@pytest.mark.parametrize("method", ["lg-fedavg", "fedgen", "fedproto", "fedtgp"])
def test_features_of_different_sizes_are_refused_where_they_are_compared(method):
    base = next(cell for cell in cells(EMBEDDED_PARAMS, "digits-fedtgp") if cell.method == method)
    check_fit(EMBEDDED_PARAMS, [base])
    models = {"models": ["digits_resnet_small", "digits_resnet_large"]}
    wrong = base.model_copy(update={"settings": {**base.settings, "embedding": None}} | models)
    with pytest.raises(HetflError, match=f"{method} needs features of one size, digits_resnet_small has 16 values"):
        check_fit(EMBEDDED_PARAMS, [wrong])
    check_fit(EMBEDDED_PARAMS, [wrong.model_copy(update={"models": ["digits_resnet_small"]})])
