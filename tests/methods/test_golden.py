"""Every method's golden curves, recorded with the versions of the numerics they come from."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import golden_numbers
import pytest
from golden_numbers import check, figures, numbers_in, unmoved
from playing import play_fine_tuning, play_round, start
from toy import VARIANTS, groups

from hetfl.draws import Draws
from hetfl.experiments.versions import ENGINE, MODELS, families, lineage
from hetfl.methods import METHODS
from hetfl.methods.fedprox import FedProx
from hetfl.schema import Round

ROUNDS = 3


def line_of(state: Any, round: Round) -> dict[str, Any]:
    """What is held of a round: what it tells, and figures of the state it leaves."""
    clients = [tensor for k in sorted(state.clients) for tensor in state.clients[k].params.values()]
    line = round.as_json()
    told = numbers_in([line.get("diagnostics", {}), line.get("clients", {})])
    return {
        **{name: line[name] for name in ("accuracy", "loss") if name in line},
        **{way: [line[way]["elements"], line[way]["bytes"]] for way in ("up", "down")},
        "told": [len(told), sum(told), sum(number**2 for number in told)],
        "server": figures(state.server.values()),
        "clients": figures(clients),
    }


def curve(engine: Any) -> list[dict[str, Any]]:
    """Registration, three rounds, and the closing where a method has one."""
    state, line = start(engine, Draws(0))
    found = [line_of(state, line)]
    for round in range(1, ROUNDS + 1):
        state, line = play_round(engine, state, Draws(0).at(round))
        found.append(line_of(state, line))
    if engine.method.fine_tuning():
        state, line = play_fine_tuning(engine, state, Draws(0).at(ROUNDS + 1))
        found.append(line_of(state, line))
    return found


def defaults(name: str) -> dict[str, Any]:
    """A method's settings as they are where nothing is said: what identities leave out."""
    return {f"settings.{key}": value for key, value in METHODS[name].Settings().model_dump(mode="json").items()}


@pytest.mark.golden
@pytest.mark.parametrize("name", sorted(METHODS))
def test_golden(exact_engine, request, name):
    """In float64, so that the digits are the same on every processor."""
    hold(name, exact_engine, request)


def hold(name: str, exact_engine: Any, request: Any, curve: Callable[..., Any] = curve) -> None:
    """Hold a method's curves to the recorded ones."""
    cls, found, used = METHODS[name], defaults(name), set()
    for variant, (method, settings) in VARIANTS.items():
        for group in groups(variant) if method == name else []:
            engine = exact_engine(method, group, **settings)
            found[f"{variant} {group}"] = curve(engine)
            used |= set(families(engine.method, (model.name for model in engine.federation.models)))
    of_models = {what: number for family in sorted(used) for what, number in lineage(MODELS[family]).items()}
    versions = {"engine": ENGINE, **of_models, **lineage(cls)}
    where = Path(inspect.getfile(cls)).name
    check(name, versions, found, f"`numerics` of {cls.__name__} (methods/{where})", request)


def stand_in(update: bool) -> Any:
    """What of pytest's request is asked for."""
    return SimpleNamespace(node=SimpleNamespace(nodeid="t::x"), config=SimpleNamespace(getoption=lambda _: update))


def test_a_changed_formula_fails_until_its_version_is_raised(exact_engine, monkeypatch, tmp_path):
    played: dict[Any, Any] = {}

    def once(engine: Any) -> list[dict[str, Any]]:
        formula = FedProx.objective
        return played.get(formula) or played.setdefault(formula, curve(engine))

    def run(update: bool = False) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(golden_numbers, "FOLDER", tmp_path)
            try:
                hold("fedprox", exact_engine, stand_in(update), once)
            except pytest.fail.Exception as failed:
                return str(failed)
        return ""

    shutil.copy(golden_numbers.FOLDER / "fedprox.json", tmp_path)
    assert run() == ""
    original = FedProx.objective
    monkeypatch.setattr(FedProx, "objective", lambda self, *given: 1.001 * original(self, *given))
    for update in (False, True):  # recording is no way around
        assert "fedprox homogeneous has other numbers, with the same versions" in (message := run(update))
        assert "raise `numerics` of FedProx (methods/fedprox.py)" in message
        assert "pytest --update-golden 't::x'" in message
    monkeypatch.setattr(FedProx, "numerics", 2)
    assert "versions are engine 1, Fitted 1, PromptedViT 1, FedAvg 1, FedProx 2, recorded are" in run()
    assert [run(update=True), run()] == ["", ""]
    assert unmoved({"fedprox": json.loads((tmp_path / "fedprox.json").read_text())}) == []
    monkeypatch.setattr(FedProx, "numerics", 3)  # and nothing else
    assert [run(update=True), run()] == ["", ""]
    assert unmoved({"fedprox": json.loads((tmp_path / "fedprox.json").read_text())}) == ["FedProx 3"]


def test_a_changed_default_is_a_changed_number_and_a_new_one_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(golden_numbers, "FOLDER", tmp_path)
    check("x", {"X": 1}, {"settings.a": 1.0}, "X", stand_in(True))
    with pytest.raises(pytest.fail.Exception, match="settings.a has other numbers"):
        check("x", {"X": 1}, {"settings.a": 2.0}, "X", stand_in(False))
    with pytest.raises(pytest.fail.Exception, match="cases differ; type:"):
        check("x", {"X": 1}, {"settings.a": 1.0, "settings.b": 0}, "X", stand_in(False))
    check("x", {"X": 1}, {"settings.a": 1.0, "settings.b": 0}, "X", stand_in(True))
    check("x", {"X": 1}, {"settings.a": 1.0, "settings.b": 0}, "X", stand_in(False))


def test_a_method_without_golden_numbers_is_told_what_to_type_in_one_line(exact_engine, monkeypatch, tmp_path):
    monkeypatch.setattr(golden_numbers, "FOLDER", tmp_path)
    given = "fedprox", exact_engine
    with pytest.raises(pytest.fail.Exception) as failed:
        hold(*given, stand_in(False), lambda engine: [])
    told = "fedprox: has no golden numbers; type: hetfl versions && pytest --update-golden 't::x'"
    assert str(failed.value) == told
    hold(*given, stand_in(True), lambda engine: [])
    hold(*given, stand_in(False), lambda engine: [])
