"""Errors of params.yaml: one line, key, value, remedy."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetfl.errors import HetflError
from hetfl.federation.plan import cells, check_fit, check_models, load_params
from hetfl.federation.versions import keys
from hetfl.methods import METHODS
from hetfl.papers.figures import RESULT_FIGURES
from hetfl.papers.spec import Entry
from hetfl.papers.tables import ARITHMETIC_TABLES, PAPER_TABLES, table_spec

PARAMS = Path("params.yaml")
HOMOGENEOUS = "experiments.digits-homogeneous"


def edit(raw: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        raw = raw[key]
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


def stages(path: str) -> dict[str, Any]:
    return yaml.safe_load(Path(path).read_text())


def trained() -> list[tuple[str, dict[str, Any], dict[str, str]]]:
    """Every training stage of the papers: its file, what the file says of such stages, and what it trains.

    An item of FedHPL and FedTGP names an experiment by its models and data.
    """
    found = []
    for path in Path("pipeline").glob("*/dvc.yaml"):
        content = stages(str(path))
        variables = {name: value for entry in content["vars"] for name, value in entry.items()}
        for name, stage in content["stages"].items():
            if name.startswith("train"):
                items = variables[stage["foreach"].strip("${}")]
                for key, item in items.items():
                    named = (
                        item if "experiment" in item else item | {"experiment": f"{item['models']}-{item['data']}"}
                    )
                    found.append((str(path), stage["do"], {"key": key, **named}))
    return found


def trained_in_root() -> dict[str, dict[str, Any]]:
    """Experiments whose rows are all trained by one stage of the root file -> that stage, its item filled in."""
    found = {}
    for name, stage in stages("dvc.yaml")["stages"].items():
        if name.startswith("train"):
            items = stage.get("foreach", [name.removeprefix("train-")])
            for key in items:
                item = items[key] if isinstance(items, dict) else {}
                text = json.dumps(stage.get("do", stage)).replace("${item}", key).replace("${key}", key)
                for field, value in item.items():
                    text = text.replace(f"${{item.{field}}}", value)
                found[key] = json.loads(text)
    return found


def test_every_experiment_has_its_stages():
    params = load_params(PARAMS)
    wanted = {
        (name, row.method)
        for name, experiment in params.experiments.items()
        if name not in trained_in_root()
        for row in experiment.rows.values()
    }
    found = [(item["experiment"], item["method"]) for _, _, item in trained()]
    assert sorted(found) == sorted(wanted)
    for (name, method), (_, do, item) in zip(found, trained(), strict=True):
        experiment = params.experiments[name]
        assert experiment.dataset == item["data"]
        assert f"models.{experiment.models}" == do["params"][0]["params.yaml"][1].replace(
            "${item.models}", item.get("models", "")
        )
        assert item["key"] == f"{name.partition('-')[2]}-{method}"
        needs_public = METHODS[method].public
        assert ("public" in item) == needs_public == ("data/${item.public}" in do["deps"])
        if needs_public:
            assert experiment.public.dataset == item["public"]


def watched(stage: dict[str, Any], file: str) -> list[str]:
    """The parameters of a file that a stage depends on."""
    return [key for entry in stage["params"] if isinstance(entry, dict) for key in entry.get(file, [])]


def test_dvc_watches_the_versions_that_runs_rest_on():
    params = load_params(PARAMS)
    for name, stage in trained_in_root().items():
        assert set(keys(cells(params, name))) <= set(watched(stage, "versions.yaml"))
    for _, do, item in trained():
        chosen = [cell for cell in cells(params, item["experiment"]) if cell.method == item["method"]]
        found = {key.replace("${item.method}", item["method"]) for key in watched(do, "versions.yaml")}
        assert set(keys(chosen)) <= found
    for path in ("dvc.yaml", *map(str, Path("pipeline").glob("*/dvc.yaml"))):
        for name, stage in stages(path)["stages"].items():
            if name.startswith(("train", "evaluate", "pretrain")):
                stage = stage.get("do", stage)
                assert [dep for dep in stage["deps"] if dep.endswith(".py") or dep.startswith("src/")] == []
                wanted = {"train": "engine", "evaluate": "evaluation", "pretrain": "pretraining"}[name.split("-")[0]]
                assert wanted in watched(stage, "versions.yaml")


def test_dvc_watches_every_group_of_models_and_every_pre_trained_one():
    root, params = stages("dvc.yaml")["stages"], load_params(PARAMS)
    made = {
        name: {f"weights/{model}.safetensors" for model in settings.models}
        for name, settings in params.pretrain.items()
    }
    assert made.pop("digits") == (weights := set(root["pretrain"]["do"]["outs"]))
    (out,) = root["pretrain-mini"]["do"]["outs"]
    assert made == {name: {out.replace("${item}", name)} for name in root["pretrain-mini"]["foreach"]}
    for stage in (root["train"]["do"], root["evaluate"]["do"]):
        assert weights <= set(stage["deps"])
    for item in root["train-fgpt"]["foreach"].values():
        assert params.models[item["models"]] == [item["weights"]]
        assert f"weights/{item['weights']}.safetensors" in weights.union(*made.values())
    for name, stage in trained_in_root().items():
        settings = params.experiments[name]
        groups = {f"models.{row.models or settings.models}" for row in settings.rows.values()}
        assert {f"experiments.{name}"} | groups <= {key for key in stage["params"] if isinstance(key, str)}
        assert {f"data/{settings.dataset}", f"partitions/{settings.dataset}"} <= set(stage["deps"])


def test_evaluations_wait_for_the_number_of_features():
    params = load_params(PARAMS)
    root, of_fedtgp = (stages(path)["stages"] for path in ("dvc.yaml", "pipeline/fedtgp/dvc.yaml"))
    watched = {f"experiments.{name}.features" for name in root["evaluate-fedtgp"]["foreach"]}
    assert root["evaluate-fedtgp"]["do"]["params"][0] == "experiments.${key}.features"
    (param,) = of_fedtgp["evaluate"]["do"]["params"][0]["params.yaml"]
    for path, _, item in trained():
        if "fedtgp" in path:
            watched.add(param.replace("${item.models}", item["models"]).replace("${item.data}", item["data"]))
    raw = stages(str(PARAMS))["experiments"]
    # DVC wants a parameter to be there, whatever its default.
    assert watched == {f"experiments.{name}.features" for name in raw if "features" in raw[name]}
    assert {f"experiments.{name}.features" for name in raw if params.experiments[name].features} <= watched


def test_whatever_is_trained_is_evaluated():
    for path in [Path("dvc.yaml"), *Path("pipeline").glob("*/dvc.yaml")]:
        named = stages(str(path))["stages"]
        for name in [name for name in named if name.startswith("train")]:
            train, evaluate = named[name], named[name.replace("train", "evaluate")]
            assert train.get("foreach") == evaluate.get("foreach")
            train, evaluate = train.get("do", train), evaluate.get("do", evaluate)
            (runs,), (evaluations,) = (list(out) for stage in (train, evaluate) for out in stage["outs"])
            assert runs in evaluate["deps"]
            assert runs.replace("runs/", "evaluations/") == evaluations


def test_dvc_yaml_names_the_same_data_sets_and_digits_tables():
    root, params = stages("dvc.yaml")["stages"], load_params(PARAMS)
    assert set(root["download"]["foreach"]) == set(params.data.sets)
    assert set(root["partition"]["foreach"]) == set(params.partitions)
    for name in trained_in_root():
        assert {f"runs/{name}", f"evaluations/{name}"} <= set(root[name]["deps"])
        if name.startswith("digits"):
            assert f"tables/{name}.json" in root["report"]["deps"]


def outs(stage: dict[str, Any]) -> set[str]:
    return {path for out in stage["outs"] for path in out}


@pytest.mark.parametrize("name", [*PAPER_TABLES, *ARITHMETIC_TABLES])
def test_a_table_waits_for_what_it_prints_and_for_nothing_else(name):
    root = stages("dvc.yaml")["stages"]
    stage, params = root[name], load_params(PARAMS)
    assert stage["cmd"] == f"python pipeline/table.py {name}"
    folders = [dep for dep in stage["deps"] if dep.startswith("runs/")]
    assert [dep for dep in stage["deps"] if dep.startswith("evaluations/")] == [
        dep.replace("runs/", "evaluations/") for dep in folders
    ]
    files = {f"tables/{name}.{suffix}" for suffix in ("json", "md", "csv", "tex")}
    if name in ARITHMETIC_TABLES:
        assert (folders, outs(stage)) == ([], files)
        return
    spec = table_spec(name, params)
    if spec.curves:
        files |= {
            f"figures/{name}-{kind}.{suffix}" for kind in ("curves", "communication") for suffix in ("svg", "png")
        }
    assert outs(stage) == files
    printed = {entry.path(0).parts[:2] for row in spec.entries.values() for entry in row.values()}
    trained_by = {(item["experiment"], item["method"]) for _, _, item in trained()}
    trained_by |= {(e, row.method) for e in trained_in_root() for row in params.experiments[e].rows.values()}
    waited = {(e, m) for e, m in trained_by if f"runs/{e}" in folders or f"runs/{e}/{m}" in folders}
    assert waited == printed


def entries(node: Any) -> Iterator[Entry]:
    """Every cell that a figure reads, wherever in it."""
    if isinstance(node, Entry):
        yield node
    elif dataclasses.is_dataclass(node):
        yield from entries([getattr(node, field.name) for field in dataclasses.fields(node)])
    elif isinstance(node, dict):
        yield from entries(list(node.values()))
    elif isinstance(node, list | tuple):
        for inner in node:
            yield from entries(inner)


@pytest.mark.parametrize("name", RESULT_FIGURES)
def test_a_figure_waits_for_what_it_draws(name):
    stage = stages("dvc.yaml")["stages"][name]
    assert stage["cmd"] == f"python pipeline/figure.py {name}"
    assert outs(stage) == {f"figures/{name}.svg", f"figures/{name}.png"}
    drawn = {entry.path(0).parts[:2] for entry in entries(RESULT_FIGURES[name](load_params(PARAMS)))}
    assert drawn
    for experiment, method in drawn:
        for kind in ("runs", "evaluations"):
            assert {f"{kind}/{experiment}", f"{kind}/{experiment}/{method}"} & set(stage["deps"])


@pytest.mark.slow
def test_dvc_accepts_the_stages():
    done = subprocess.run([sys.executable, "-m", "dvc", "stage", "list", "--all", "--name-only"], capture_output=True)
    names = done.stdout.decode().split()
    assert done.returncode == 0, done.stderr
    keys = {f"{path}:train{'-public' if 'public' in item else ''}@{item['key']}" for path, _, item in trained()}
    assert {*PAPER_TABLES, *ARITHMETIC_TABLES, "fedhpl-theorem", *keys} <= set(names)


def test_layered_heads_are_refused_where_linear_ones_are_shared():
    params = load_params(PARAMS)
    base = cells(params, "fedtgp-res34-htc4-cifar100")[0]
    wrong = base.model_copy(update={"method": "lg-fedavg", "settings": {"embedding": 512}})
    with pytest.raises(HetflError, match="lg-fedavg needs a linear head in all clients, resnet34-h512 has another"):
        check_fit([wrong])
    check_fit([base])
