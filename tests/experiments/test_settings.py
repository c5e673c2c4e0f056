"""Experiments as written: sweeps, data sets, protocols; and where a setting comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetfl.errors import HetflError
from hetfl.experiments.plan import Params, cells, load_params, origins

RAW: dict[str, Any] = {
    "data": {"digits": {}, "mnist": {}},
    "partitions": {
        name: {"seeds": 2, "splits": {"iid": {"scheme": "iid", "clients": 3}}} for name in ("digits", "mnist")
    },
    "models": {"small": ["digits_resnet_small"], "base": ["digits_resnet_base"]},
    "protocols": {
        "common": {
            "paper": "fedhpl",
            "seeds": 2,
            "input": {"size": 8, "mean": 0.5},
            "settings": {"rounds": 7, "lr": 0.5, "mu": 0.3},
            "methods": {"fedprox": {"lr": 0.25}},
        },
        "quick": {"settings": {"local_epochs": 4}},
    },
}
BLOCK = {
    "title": "Mine",
    "protocol": "common",
    "dataset": "digits",
    "models": "small",
    "splits": {"iid": "IID"},
    "defaults": {"batch_size": 5},
    "rows": {"fedavg": None, "fedprox": {"protocol": "quick", "settings": {"batch_size": 6}, "seeds": 1}},
}

Make = Callable[..., Params]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Loads settings with one experiment; changes replace its keys."""

    def load(paper: dict[str, Any] | None = None, **changes: Any) -> Params:
        block = {key: value for key, value in (BLOCK | changes).items() if value != "gone"}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(RAW | {"experiments": {"mine": block}}, sort_keys=False))
        if paper is not None:
            (tmp_path / "paper").mkdir(parents=True)
            (tmp_path / "paper/params.yaml").write_text(yaml.safe_dump(paper))
        return load_params(tmp_path / "params.yaml")

    return load


def test_an_experiment_s_images_come_before_its_protocol_s(make: Make) -> None:
    assert {cell.input.size for cell in cells(make(input={"size": 16}), "mine")} == {16}


def test_settings_come_from_the_nearest_place(make: Make) -> None:
    params = make()
    found = {cell.row: origins(params, cell) for cell in cells(params, "mine")}
    assert found["fedavg"]["lr"] == (0.5, "params.yaml: protocols.common.settings")
    assert found["fedprox"]["lr"] == (0.25, "params.yaml: protocols.common.methods.fedprox")
    assert found["fedavg"]["batch_size"] == (5, "params.yaml: experiments.mine.defaults")
    assert found["fedprox"]["batch_size"] == (6, "params.yaml: experiments.mine.rows.fedprox.settings")
    assert found["fedprox"]["local_epochs"] == (4, "params.yaml: protocols.quick.settings")
    assert found["fedavg"]["momentum"][1] == "default"
    # What many rows share reaches those whose method knows it.
    assert "mu" not in found["fedavg"] and found["fedprox"]["mu"][0] == 0.3
    for cell in cells(params, "mine"):
        assert {name: value for name, (value, _) in found[cell.row].items()} == cell.settings
        assert (cell.title, cell.paper) == ({"fedavg": "FedAvg", "fedprox": "FedProx"}[cell.row], "fedhpl")
        assert (cell.input.size, cell.input.mean) == (8, (0.5, 0.5, 0.5))
    assert [(cell.row, cell.seed) for cell in cells(params, "mine")] == [("fedavg", 0), ("fedavg", 1), ("fedprox", 0)]


def test_a_sweep_is_a_grid_of_rows(make: Make) -> None:
    sweep = {"lr": [0.1, 0.2], "optimiser": ["sgd", "adam"]}
    rows = {"fedavg": None, "fedprox": {"sweep": {"mu": [0, 1]}, "settings": {"lr": 0.9}}}
    params = make(sweep=sweep, rows=rows, seeds=1)
    found = {cell.row: cell for cell in cells(params, "mine")}
    assert list(found) == [
        "fedavg-lr-0.1-optimiser-sgd",
        "fedavg-lr-0.1-optimiser-adam",
        "fedavg-lr-0.2-optimiser-sgd",
        "fedavg-lr-0.2-optimiser-adam",
        "fedprox-mu-0",
        "fedprox-mu-1",
    ]
    swept = found["fedavg-lr-0.2-optimiser-adam"]
    assert (swept.settings["lr"], swept.settings["optimiser"]) == (0.2, "adam")
    assert swept.title == "FedAvg, lr 0.2, optimiser adam"
    assert origins(params, swept)["lr"] == (0.2, "params.yaml: experiments.mine.sweep")
    assert found["fedprox-mu-1"].settings["lr"] == 0.9
    assert origins(params, found["fedprox-mu-1"])["mu"][1] == "params.yaml: experiments.mine.rows.fedprox.sweep"


def test_rows_of_one_method_without_titles_are_told_apart(make: Make) -> None:
    rows = {
        "fedavg": None,
        "slow": {"method": "fedavg", "against": "fedavg"},
        "fedprox": {"against": "slow"},
        "named": {"method": "fedprox", "title": "Named", "against": "fedprox"},
    }
    titles = {row: settings.title for row, settings in make(rows=rows).experiments["mine"].rows.items()}
    assert titles == {
        "fedavg": "FedAvg",
        "slow": "FedAvg (slow), against fedavg",
        "fedprox": "FedProx, against slow",
        "named": "Named",
    }


def test_an_experiment_over_axes_is_one_of_each_choice(make: Make) -> None:
    over = {
        "dataset": {"digits": {"defaults": {"rounds": 1}}, "mnist": None},
        "size": {"small": {}, "large": {"models": "base", "seeds": 1}},
    }
    params = make(over=over, dataset="gone")
    assert list(params.experiments) == [
        "mine-digits-small",
        "mine-digits-large",
        "mine-mnist-small",
        "mine-mnist-large",
    ]
    large = cells(params, "mine-digits-large")
    assert {(cell.dataset, cell.models[0], cell.settings["rounds"]) for cell in large} == {
        ("digits", "digits_resnet_base", 1)
    }
    assert {cell.settings["rounds"] for cell in cells(params, "mine-mnist-small")} == {7}
    # What an entry says is merged with the block, key by key.
    assert {cell.settings["batch_size"] for cell in large} == {5, 6}
    assert params.experiments["mine-digits-large"].title == "Mine, Digits (scikit-learn), large"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "comon"}, "params.yaml: experiments.mine.protocol: unknown protocol 'comon'; did you mean"),
        ({"rows": {"fedavg": {"protocol": "x"}}}, "experiments.mine.rows.fedavg.protocol: unknown protocol 'x'"),
        (
            {"rows": {"fedag": None}},
            "experiments.mine.rows.fedag.method: unknown method 'fedag'; did you mean 'fedavg'?",
        ),
        ({"sweep": {"lr": [0.1, -1]}}, "experiments.mine.sweep.lr: -1 should be greater than 0"),
        ({"sweep": {"rate": [1]}}, "experiments.mine.sweep: unknown setting 'rate'"),
        (
            {"sweep": {"mu": [1]}},
            "experiments.mine.sweep: fedavg has no setting 'mu'; remove it there, and give each row",
        ),
        ({"rows": {"fedavg": {"sweep": {"mu": [1]}}}}, "experiments.mine.rows.fedavg.sweep: unknown setting 'mu'"),
        ({"sweep": {"lr": []}}, "experiments.mine.sweep.lr: [] should have at least 1 item"),
        ({"sweep": {"optimiser": ["a b"]}}, "is not a valid name of a row; sweep over numbers and plain words"),
        ({"over": {"dataset": []}}, "experiments.mine.over: must be a mapping of axes"),
        ({"over": {"dataset": {"digits": 3}}}, "experiments.mine.over.dataset.digits: 3 is not a mapping"),
        ({"over": {"dataset": {"digit": {}}}}, "experiments.mine.dataset: unknown data set 'digit'"),
        ({"over": {"a": {"B": {}}}}, "params.yaml: experiments: 'mine-B' is not a valid name"),
        ({"over": {"a": {"b" * 200: {}}}}, "bbb' is not a valid name; use at most 60 lower-case letters"),
        ({"protocol": "quick"}, "experiments.mine.seeds: is missing"),
        ({"title": "gone"}, "params.yaml: experiments.mine.title: is missing"),
        ({"defaults": {"batch_size": 0}}, "experiments.mine.defaults.batch_size: 0 should be greater than"),
        (
            {"paper": {"experiments": {"mine": BLOCK}}},
            "paper/params.yaml: experiments: 'mine' is in params.yaml",
        ),
        ({"paper": {"models": {}}}, "paper/params.yaml: unknown setting 'models'; known: experiments"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HetflError) as caught:
        make(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_project_knows_what_the_one_around_it_shares(make: Make, tmp_path: Path) -> None:
    outer = make()
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner/params.yaml"
    file.write_text(yaml.safe_dump({"data": {}, "partitions": {}, "models": {"other": ["cnn"]}}))
    (tmp_path / "inner/.dvc").mkdir()
    found = load_params(file)
    assert found.protocols == outer.protocols and found.models == {**outer.models, "other": ["cnn"]}
    assert found.file("models.other") == "params.yaml"
    assert {found.file(f"protocols.{name}") for name in outer.protocols} == {"../params.yaml"}
    assert not found.experiments and load_params(tmp_path / "params.yaml") == outer
    twice = min(outer.models)
    file.write_text(yaml.safe_dump({"data": {}, "partitions": {}, "models": {twice: ["cnn"]}}))
    with pytest.raises(HetflError, match=rf"params.yaml: models.{twice}: is in .* already; use another name"):
        load_params(file)
