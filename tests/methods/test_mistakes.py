"""A mistake in the file of a method is told in one line that leads to it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from playing import run
from pydantic import ValidationError
from toy import LOCAL_ENGINES

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.experiments.rehearsal import Rehearsal
from hetfl.message import Message, flatten, group, ungrouped
from hetfl.methods import METHODS
from hetfl.methods.fedavg import FedAvg
from hetfl.methods.mistakes import MistakeError, located
from hetfl.methods.registry import mistake
from hetfl.models import build
from hetfl.training.blank import Holdings
from hetfl.training.client_run import alignment_index
from hetfl.training.contract import contracts
from hetfl.training.engines import make_engine

HERE = str(Path(__file__).relative_to(Path.cwd())) if Path(__file__).is_relative_to(Path.cwd()) else __file__


def line_of(function) -> str:
    return f"{HERE}:{function.__wrapped__.__code__.co_firstlineno}"


def rehearse(method: type[FedAvg], monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    """Play two rounds of a method of one's own, without training."""
    monkeypatch.setitem(METHODS, "own", method)
    held = Holdings([torch.arange(3).repeat(3)] * 2, [torch.arange(3)] * 2, 3, 8)
    settings = method.Settings(rounds=2, batch_size=4).model_dump()
    return Rehearsal("own", settings, ["digits_resnet_small"], InputSettings(), held)


@pytest.mark.parametrize(
    ("hook", "result", "wrong"),
    [
        ("aggregate", None, "returned nothing; it should return ServerState"),
        ("aggregate", {"w": torch.ones(2)}, "returned a dict of a tensor of shape [2]; it should return ServerState"),
        ("uplink", {}, "returned a dict; it should return Message"),
        ("downlink", torch.ones(1), "returned a tensor of shape [1]; it should return Message"),
        ("objective", torch.ones(4), "returned a tensor of shape [4]; it should return a scalar"),
        ("objective", 0.5, "returned 0.5; it should return Tensor"),
        ("predict", torch.zeros(3), "returned a tensor of shape [3]; it should return scores [B, C]"),
        ("phases", ["body"], "returned a list of 'body'; it should return Sequence[Phase]"),
        (
            "observe",
            {"a": 1, "b": "x"},
            "returned a dict of 'x'; it should return Mapping[str, Number | list[Number]]",
        ),
        ("remember", {1: torch.ones(1)}, "returned a dict with the key 1; it should return Tensors"),
        (
            "predict",
            torch.zeros(1, 2),
            "scores [1, 2]; it should return a row for each image with a score for each class, [1, 3]",
        ),
        ("adopt", {"w": 1}, "returned a dict of 1; it should return dict[str, Tensor]"),
        ("statistics_source", "onw", "returned 'onw'; it should return StatisticsSource"),
    ],
)
def test_a_wrong_result_is_found_before_training(hook, result, wrong, monkeypatch):
    def function(self, *args):
        return result

    function.__qualname__ = f"Own.{hook}"
    own = type("Own", (FedAvg,), {hook: function, "numerics": 1, "__module__": __name__})
    with pytest.raises(MistakeError) as told:
        rehearse(own, monkeypatch)
    place = f"{HERE}: predict" if "scores [1" in wrong else line_of(getattr(own, hook))
    assert str(told.value).startswith(place) and str(told.value).endswith(wrong)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"optimiser": "adamw"}, "Phase.optimiser is 'adamw'; it should be 'sgd' or 'adam'"),
        ({"trains": ["body"]}, "Phase.trains is a list of 'body'; it should be a valid tuple"),
        ({"epochs": 1.5}, "Phase.epochs is 1.5; it should be a valid integer"),
        ({"batch_size": 0}, "Phase.batch_size is 0; it should be greater than 0"),
        ({"lr": "0.1"}, "Phase.lr is '0.1'; it should be a valid number"),
        ({"clip": float("nan")}, "Phase.clip is nan; it should be a finite number"),
        ({"data": "public"}, "uses public samples and is given none; write public = True in the class"),
    ],
)
def test_a_phase_that_nobody_can_train_is_found_before_training(changes, wrong, monkeypatch):
    class Own(FedAvg):
        numerics = 1

        def phases(self, round):
            return [self.phase(**changes)]

    with pytest.raises((MistakeError, ValidationError)) as raised:
        rehearse(Own, monkeypatch)
    told = str(mistake(raised.value) or raised.value)
    assert told.startswith(f"{HERE}:") and told.endswith(wrong) and "\n" not in told


@pytest.mark.parametrize(
    ("index", "wrong"),
    [
        (torch.arange(3), ""),
        (torch.tensor([0.0, 1.0]), r"a tensor torch.float32 \[2\]; it should return indices \[n\] torch.int64"),
        (torch.tensor(1), r"a tensor torch.int64 \[\]; it should return indices"),
        (torch.tensor([0, 999]), r"indices from 0 to 999; those of the public samples are 0 to \d+$"),
        (torch.tensor([-1, 0]), r"indices from -1 to 0; those"),
    ],
)
def test_public_samples_are_drawn_from_those_that_there_are(index, wrong, toy_engine, monkeypatch):
    class Own(METHODS["fedmd"]):
        numerics = 1

        def alignment(self, labels, draws):
            return index

    monkeypatch.setitem(METHODS, "own", Own)
    played = toy_engine("own")
    data = played.federation.data[0]
    if not wrong:
        assert alignment_index(played.method, data, Draws(0, 1)).equal(index)
        return
    with pytest.raises(MistakeError, match=rf"^{HERE}: alignment returned {wrong}"):
        alignment_index(played.method, data, Draws(0, 1))


def test_a_function_that_takes_other_arguments_is_refused_where_it_is_defined():
    with pytest.raises(
        MistakeError, match=r"objective takes \(self, model, params, batch\); it should take \(.*phase\)"
    ):

        class Own(FedAvg):
            def objective(self, model, params, batch):
                return params


def test_an_error_inside_a_method_names_every_method_that_it_went_through(monkeypatch):
    class Own(FedAvg):
        numerics = 1

        def aggregate(self, server, uplinks, draws):
            return super().aggregate({}, uplinks, draws)

    with pytest.raises(KeyError) as raised:
        rehearse(Own, monkeypatch)
    told = str(mistake(raised.value))
    assert told.count(" > ") == 1 and "\n" not in told
    assert told.startswith(HERE) and "Own.aggregate > " in told
    assert "methods/fedavg.py:" in told and told.endswith("in FedAvg.aggregate: KeyError: 'samples'")


class WrongShape(FedAvg):
    numerics = 1

    def aggregate(self, server, uplinks, draws):
        after = super().aggregate(server, uplinks, draws)
        return after | {"model": {name: tensor.flatten() for name, tensor in after.group("model").items()}}


class WrongType(FedAvg):
    numerics = 1

    def aggregate(self, server, uplinks, draws):
        after = super().aggregate(server, uplinks, draws)
        return after | {"model": {name: tensor.double() for name, tensor in after.group("model").items()}}


class NotPersonal(FedAvg):
    numerics = 1

    def downlink(self, server, client):
        return Message({name: tensor + client for name, tensor in super().downlink(server, client).items()})


class NoGradient(FedAvg):
    numerics = 1

    def objective(self, model, params, batch, received, phase):
        return super().objective(model, params, batch, received, phase).detach()


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (
            WrongShape,
            r"after the client took over what the server sent, \S+ has the shape \[\d+\]; that of \S+ is \[",
        ),
        (
            WrongType,
            r"after the client took over what the server sent, \S+ is torch.float64; that of \S+ is torch.float32",
        ),
        (NotPersonal, r"downlink gives clients different tensors; write personal = True in the class"),
        (NoGradient, r"the objective depends on none of the parameters that phase 'local' trains \(body, head\)"),
    ],
)
def test_what_only_training_can_show_names_the_file_of_the_method(method, wrong, engine, toy_engine, monkeypatch):
    monkeypatch.setitem(METHODS, "own", method)
    played = toy_engine("own")
    with pytest.raises(MistakeError, match=rf"^{HERE}: {wrong}"):
        run(make_engine(played.method, played.federation, engine))


class KeepsUnknownGroup(FedAvg):
    numerics = 1

    def keeps(self):
        return ("head", "bodi")


class TrainsUnknownGroup(FedAvg):
    numerics = 1

    def trains(self):
        return ("body", "heads")


class TunesUnknownGroup(FedAvg):
    numerics = 1

    def fine_tuning(self):
        return [self.phase(name="tuning", trains=groups) for groups in (("adapter",), ("head",))]


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (KeepsUnknownGroup, r"keeps returned head, bodi: unknown parameter group 'bodi'; did you mean 'body'\?"),
        (TrainsUnknownGroup, r"phase 'local' trains body, heads: unknown parameter group 'heads'; did you mean"),
        (TunesUnknownGroup, r"phase 'tuning' trains adapter: unknown parameter group 'adapter'; known: auxiliary"),
    ],
)
def test_a_group_that_no_model_has_is_told_before_anything_trains(method, wrong, toy_engine, monkeypatch):
    monkeypatch.setitem(METHODS, "own", method)
    with pytest.raises(MistakeError, match=rf"^{HERE}: {wrong}"):
        toy_engine("own")


class Momentum(FedAvg):
    """Has a state at the server and one at each client; its copies change in place."""

    numerics = 1

    def initial_server(self, models, registrations, draws):
        first = super().initial_server(models, registrations, draws)
        return first | {"mean": {name: torch.zeros_like(tensor) for name, tensor in first.group("model").items()}}

    def receive(self, message, memory):
        return Message({**message, **flatten({"memory": memory})})

    def adopt(self, params, received):
        return super().adopt(params, ungrouped(received))

    def remember(self, work):
        kept = group(work.received, "memory") or {"count": torch.zeros(())}
        return {name: tensor.clone().add_(1) for name, tensor in kept.items()}


class AtTheServer(Momentum):
    numerics = 1

    def aggregate(self, server, uplinks, draws):
        after = super().aggregate(server, uplinks, draws)
        for name, tensor in server.group("mean").items():
            tensor.mul_(0.9).add_(after.group("model")[name])
        return after


class InTheMessage(Momentum):
    numerics = 1

    def downlink(self, server, client):
        message = super().downlink(server, client)
        for tensor in message.values():
            tensor.mul_(0.9)
        return message


class AtTheClient(Momentum):
    numerics = 1

    def remember(self, work):
        return {name: t.add_(1) for name, t in group(work.received, "memory").items()} or super().remember(work)


class InTheParameters(Momentum):
    """Of which a client's state is made."""

    numerics = 1

    def remember(self, work):
        return {"bias": work.params["head.bias"].mul_(0.5)}


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
@pytest.mark.parametrize(
    ("method", "function", "name"),
    [
        (AtTheServer, "aggregate", "mean/"),
        (InTheMessage, "downlink", "model/"),
        (AtTheClient, "remember", "memory/count"),
        (InTheParameters, "remember", "head.bias"),
    ],
)
def test_what_others_still_use_may_not_change_in_place(method, function, name, engine, toy_engine, monkeypatch):
    monkeypatch.setitem(METHODS, "own", method)
    played = toy_engine("own")
    with pytest.raises(MistakeError) as told:
        run(make_engine(played.method, played.federation, engine))
    assert str(told.value).startswith(
        f"{line_of(getattr(method, function))}: {method.__name__}.{function} changed '{name}"
    )
    assert str(told.value).endswith("' in place; it should make a new tensor")


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
def test_copies_may_change_in_place(engine, toy_engine, monkeypatch):
    monkeypatch.setitem(METHODS, "own", Momentum)
    played = toy_engine("own")
    run(make_engine(played.method, played.federation, engine))


def test_an_error_in_the_work_of_a_client_is_not_one_of_aggregate(toy_engine, monkeypatch):
    """Which asks for the uplinks one by one, so that clients are trained meanwhile."""

    def train(*_):
        raise RuntimeError("from an engine")
        yield

    played = toy_engine("fedavg")
    monkeypatch.setattr(played.trainer, "train", train)
    with pytest.raises(RuntimeError, match="from an engine") as raised:
        run(played)
    assert any(frame.name == "aggregate" for frame in raised.traceback)
    assert mistake(raised.value) is None


def test_a_method_may_put_a_body_and_a_head_together_and_read_their_values(monkeypatch):
    """Bodies have no values in a rehearsal, so these are played once more with zeros; the sizes are FedAvg's."""

    class Own(FedAvg):
        numerics = 1

        def uplink(self, work):
            length = sum(tensor.square().sum() for tensor in work.params.values())
            return super().uplink(work) if length.numpy() >= 0 else Message()

        def aggregate(self, server, uplinks, draws):
            after = super().aggregate(server, uplinks, draws)
            moved = sum((after[name] - server[name]).sum() for name in server if name.startswith("model/"))
            return after if moved == 0 else server

    own, parent = rehearse(Own, monkeypatch), rehearse(FedAvg, monkeypatch)
    assert own.rounds(1, 2, seed=0).up == parent.rounds(1, 2, seed=0).up > 0
    assert own.memory() == parent.memory()
    model = build("digits_resnet_small", 3, FedAvg(FedAvg.Settings(), 3).model_options())
    sent, theirs = (contracts(cls(cls.Settings(), 3), model)[1] for cls in (Own, FedAvg))
    assert sent.entries == theirs.entries


def test_a_server_may_learn_for_some_epochs_from_messages_without_rows(monkeypatch):
    class Own(FedAvg):
        numerics = 1

        class Settings(FedAvg.Settings):
            server_epochs: int = 2

    assert rehearse(Own, monkeypatch).rounds(1, 2, seed=0).up == rehearse(FedAvg, monkeypatch).rounds(1, 2, seed=0).up


def test_what_is_raised_elsewhere_is_no_mistake_of_a_method():
    try:
        Holdings()  # type: ignore[call-arg]
    except TypeError as error:
        assert mistake(error) is None
    for error in (torch.OutOfMemoryError(), KeyboardInterrupt()):
        assert mistake(error) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\ny = {", "broken_method.py:2: SyntaxError: '{' was never closed"),
        ("from hetfl.methods.base import Uplink", "broken_method.py:1, in <module>: ImportError: cannot import name"),
        ("def f():\n    return 1 / 0\nf()", "broken_method.py:2, in f: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named(text, told, tmp_path, monkeypatch):
    (tmp_path / "broken_method.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((SyntaxError, ImportError, ZeroDivisionError)) as raised:
        importlib.import_module("broken_method")
    assert told in str(located(raised.value, ["broken_method"]))
