"""The batched engine trains clients together and gives what one after another gives."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from playing import assert_close, play_round, run, start, train
from record_factory import make_run

from hetfl.data.batches import DeviceImages
from hetfl.draws import Draws
from hetfl.experiments.cell import run_rounds
from hetfl.experiments.record import Record
from hetfl.methods.fedkd import restore
from hetfl.training import batched
from hetfl.training.batched import Batched
from hetfl.training.client_run import ClientRun
from hetfl.training.engine import Task
from hetfl.training.engines import make_engine
from hetfl.training.local import LocalEngine
from hetfl.training.memory import SHARE, client_bytes, saved_bytes
from hetfl.training.program import Program
from hetfl.training.state import ResumePoints


def together(one_by_one: LocalEngine) -> LocalEngine:
    return make_engine(one_by_one.method, one_by_one.federation, "batched")


@pytest.mark.parametrize("method", ["scaffold", "fedhpl", "fedmd", "fedproto", "fedkd", "fedgen", "pfedhn", "sgpt"])
def test_uplinks_in_float32_differ_by_rounding(two_rounds, method):
    """By less than 1e-5 of a message's length, for messages of each kind; tests of the contract play all methods."""
    played = two_rounds(method, "homogeneous")
    for found in train(together(played.engine), played.downlinks, Draws(0).at(2), played.first.clients):
        expected = played.updates[found.client]
        # Factors of a matrix are free to change their signs.
        sent, wanted = (restore(u) if method == "fedkd" else u for u in (found.uplink, expected.uplink))
        assert list(sent) == list(wanted)
        difference, whole = 0.0, 0.0
        for name, tensor in wanted.items():
            difference += float((sent[name].double() - tensor.double()).square().sum())
            whole += float(tensor.double().square().sum())
        assert difference <= 1e-10 * whole


def test_engines_are_chosen_by_device_or_name(toy_engine):
    reference = toy_engine("fedavg")
    parts = reference.method, reference.federation
    on_gpu = replace(reference.federation, device=torch.device("cuda"))
    assert make_engine(*parts).name == make_engine(*parts, "sequential").name == "sequential"
    assert make_engine(*parts, "batched").name == make_engine(parts[0], on_gpu).name == "batched"


def test_methods_that_cannot_be_mapped_run_one_by_one(toy_engine, monkeypatch):
    reference = toy_engine("fedmix")
    engine = make_engine(reference.method, reference.federation, "batched")
    monkeypatch.setattr(Batched, "_train_together", None)
    state, _ = start(engine, Draws(0))
    assert play_round(engine, state, Draws(0).at(1))[1].round == 1


def test_clients_go_in_chunks_that_fit_and_in_smaller_ones_after_an_error(toy_engine, monkeypatch, caplog):
    """Whatever the chunks, numbers are the same."""
    reference = toy_engine("fedavg", dtype=torch.float64)
    sizes: list[int] = []
    together = Batched._train_together

    def limited(self, runs, *more):
        sizes.append(len(runs))
        if len(runs) > limit:
            raise torch.OutOfMemoryError
        yield from together(self, runs, *more)

    monkeypatch.setattr(Batched, "_train_together", limited)
    ends = []
    for limit, free, expected, warnings in (  # noqa: B007, limited() reads it
        (3, None, [3, 3], 0),
        (3, 2.6, [2, 1, 2, 1], 0),  # room for two
        (1, None, [3, 1, 1, 1, 1, 1, 1], 1),  # and remembered in the second round
        (3, 0.1, [1, 1, 1, 1, 1, 1], 0),
    ):
        need = client_bytes(reference.method, arrived(reference), reference.method.phase(), images_of(reference))
        there = None if free is None else int(free * need / SHARE)
        monkeypatch.setattr(batched, "free_bytes", lambda device, there=there: there)
        engine = make_engine(reference.method, reference.federation, "batched")
        sizes.clear()
        caplog.clear()
        state, _ = start(engine, Draws(0))
        for round in (1, 2):
            state, _ = play_round(engine, state, Draws(0).at(round))
        assert sizes == expected
        assert [record.getMessage() for record in caplog.records] == [
            "out of memory with 3 clients of digits_vit_base at once; going on with 1"
        ] * warnings
        ends.append(state.tensors())
    for end in ends[1:]:
        assert_close(end, ends[0])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedproto", {"optimiser": "adam", "keep_optimiser": True}),
        ("fedtgp", {"momentum": 0.9, "keep_optimiser": True, "server_epochs": 3}),
        ("fedkd", {}),  # clipped gradients
        ("fedrep", {"local_epochs": 2}),  # two phases
    ],
)
def test_clients_apart_train_like_one_after_another(toy_engine, method, settings):
    """As on a GPU: each has a program of its own, with channels-last weights and without ``vmap``."""
    group = "homogeneous" if method == "fedrep" else "two resnets"
    reference = toy_engine(method, group, torch.float64, **settings)
    expected, lines = run(reference, 3)
    engine = together(reference)
    engine.trainer.apart = 3
    found, same = run(engine, 3)
    assert_close(found.tensors(), expected.tensors())
    assert [line.accuracy for line in same] == [line.accuracy for line in lines]
    programs = engine.trainer._programs.values()
    assert [program.capacity for program in programs] == [1] * 3 * len(reference.method.phases(1))
    if method != "fedrep":
        convolutions = [tensor for one in programs for tensor in one._params.values() if tensor.dim() == 5]
        assert convolutions and all(tensor.stride(2) == 1 for tensor in convolutions)


def test_clients_with_shared_weights_and_many_clients_are_stacked(toy_engine):
    for method, group, apart, sizes in (("fedhpl", "homogeneous", 3, [3]), ("fedproto", "two resnets", 2, [2, 1])):
        engine = together(toy_engine(method, group))
        engine.trainer.apart = apart
        run(engine, 1)
        assert [program.capacity for program in engine.trainer._programs.values()] == sizes


def test_clients_apart_are_stacked_when_memory_ends(toy_engine, monkeypatch, caplog):
    """The one that could not train does it with the rest of the round done, and later rounds are stacked."""
    reference = toy_engine("fedproto", "two resnets", torch.float64, momentum=0.9, keep_optimiser=True)
    expected, _ = run(reference, 2)
    engine, step, failed = together(reference), Program.step, []
    engine.trainer.apart = 3

    def full(self, *given):
        if engine.trainer.apart and len(failed) < 1 and self is [*engine.trainer._programs.values()][-1]:
            failed.append(self.capacity)
            raise torch.OutOfMemoryError
        step(self, *given)

    monkeypatch.setattr(Program, "step", full)
    found, _ = run(engine, 2)
    assert failed == [1]
    assert caplog.messages == ["out of memory with 3 clients apart; from now on they train stacked"]
    assert [program.capacity for program in engine.trainer._programs.values()] == [2, 1]
    assert_close(found.tensors(), expected.tensors())


def test_memory_that_ends_when_all_steps_are_done_changes_no_client(toy_engine, monkeypatch):
    """What is copied out of the buffers of all clients is written to all of them or to none."""
    reference = toy_engine("fedproto", "homogeneous", torch.float64, momentum=0.9, keep_optimiser=True)
    expected, _ = run(reference, 2)
    failures, real = [], Program.unload

    def unload(self, schedules):
        with monkeypatch.context() as patch:
            if len(schedules) > 1:
                made, empty_like = [], torch.empty_like

                def last(tensor):
                    made.append(tensor)
                    if len(made) > len(self._own) * (len(schedules) - 1):
                        failures.append(len(schedules))
                        raise torch.OutOfMemoryError
                    return torch.full_like(empty_like(tensor), torch.nan)

                patch.setattr(torch, "empty_like", last)
            real(self, schedules)

    monkeypatch.setattr(Program, "unload", unload)
    found, _ = run(together(reference), 2)
    assert failures == [3]
    assert_close(found.tensors(), expected.tensors())


def test_one_client_that_does_not_fit_is_an_error(toy_engine, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("all 1 GiB are taken")

    reference = toy_engine("fedavg")
    engine = make_engine(reference.method, reference.federation, "batched")
    monkeypatch.setattr(Batched, "_train_together", full)
    state, _ = start(engine, Draws(0))
    with pytest.raises(torch.OutOfMemoryError, match="1 GiB"):
        play_round(engine, state, Draws(0).at(1))


def test_architectures_take_turns(toy_engine, monkeypatch):
    """So that no architecture's steps keep another's out of the device's queues."""
    reference = toy_engine("fedhpl", "two vits")
    engine = make_engine(reference.method, reference.federation, "batched")
    steps: list[str] = []
    real = Program.step
    monkeypatch.setattr(Program, "step", lambda self, *given: (steps.append(self.model.name), real(self, *given)))
    state, _ = start(engine, Draws(0))
    play_round(engine, state, Draws(0).at(1))
    # Clients with 15, 19 and 26 samples in batches of 8; two of them have the small network.
    small, base = reference.federation.clients[0].model.name, reference.federation.clients[1].model.name
    taken = [(steps[: 2 * turn].count(small), steps[: 2 * turn].count(base)) for turn in range(1, 4)]
    assert taken == [(1, 1), (2, 2), (3, 3)]


def test_a_killed_run_ends_like_an_uninterrupted_one(toy_engine, tmp_path, monkeypatch):
    """Stacked parameters and optimisers live on from round to round, but not from process to process."""

    def play(name: str) -> bytes:
        reference = toy_engine("fedproto", "two resnets", optimiser="adam", keep_optimiser=True, rounds=2)
        record, resume = Record(tmp_path / name), ResumePoints(tmp_path / f"{name}-resume")
        engine = make_engine(reference.method, reference.federation, "batched")
        run_rounds(engine, Draws(0), record, resume, make_run())
        return (tmp_path / name / "model.safetensors").read_bytes()

    whole, save = play("whole"), ResumePoints.save

    def killed(self, state):
        save(self, state)
        if state.round == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ResumePoints, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            play("killed")
    assert play("killed") == whole


def test_a_replaced_program_and_used_gradients_leave_memory_at_once(toy_engine, monkeypatch):
    seen: list[weakref.ref[Program]] = []

    def create(*given):
        assert all(there() is None for there in seen)
        program = Program(*given)
        seen.append(weakref.ref(program))
        return program

    monkeypatch.setattr(batched, "Program", create)
    reference = toy_engine("fedproto", "homogeneous")  # receives nothing in its first round
    engine = make_engine(reference.method, reference.federation, "batched")
    state, _ = start(engine, Draws(0))
    gc.disable()
    try:
        for round in (1, 2, 3):
            state, _ = play_round(engine, state, Draws(0).at(round))
            for program in engine.trainer._programs.values():
                leaves = [leaf for segment, _ in program._segments.values() for leaf in segment.leaves.values()]
                assert leaves and all(leaf.grad is None for leaf in leaves)
            del program
        assert [there() is None for there in seen] == [True, False]
    finally:
        gc.enable()


def test_memory_that_a_program_holds_is_free_for_it(toy_engine, monkeypatch):
    sizes: list[int] = []
    together = Batched._train_together

    def counted(self, runs, *more):
        sizes.append(len(runs))
        yield from together(self, runs, *more)

    monkeypatch.setattr(Batched, "_train_together", counted)
    reference = toy_engine("fedavg")
    engine = make_engine(reference.method, reference.federation, "batched")
    state, _ = start(engine, Draws(0))
    for round, free in ((1, None), (2, 0)):
        monkeypatch.setattr(batched, "free_bytes", lambda device, free=free: free)
        state, _ = play_round(engine, state, Draws(0).at(round))
    assert sizes == [3, 3]


def test_each_stream_of_clients_apart_needs_memory(toy_engine, monkeypatch):
    predicted = []
    for stream in (0, 1000):
        monkeypatch.setattr(batched, "stream_bytes", lambda device, stream=stream: stream)
        engine = together(toy_engine("fedproto", "resnets"))
        engine.trainer.apart = 3
        run(engine, 1)
        predicted.append(engine.trainer.predicted_memory)
    assert predicted[1] - predicted[0] == 3 * 1000


def arrived(engine: LocalEngine) -> ClientRun:
    state, _ = start(engine, Draws(0))
    return engine.begin(Task(2, engine.method.downlink(state.server, 2)), Draws(0).at(1))


def images_of(engine: LocalEngine) -> DeviceImages:
    return engine.federation.data[2].train_images


@pytest.mark.parametrize(
    ("method", "group", "changes", "slots"),
    [
        ("fedavg", "homogeneous", {}, 1),
        ("fedavg", "homogeneous", {"momentum": 0.0}, 0),
        ("fedavg", "homogeneous", {"optimiser": "adam"}, 2),
        ("fedhpl", "homogeneous", {}, 1),
        ("fedproto", "resnets", {}, 1),
    ],
)
def test_memory_is_predicted_from_shapes(toy_engine, method, group, changes, slots):
    """What a real backward pass keeps, byte for byte, beside what is held anyway."""
    engine = toy_engine(method, group)
    run, phase, images = arrived(engine), replace(engine.method.phase(), **changes), images_of(engine)
    model, params = run.client.model, {name: tensor.clone() for name, tensor in run.params.items()}
    names = model.names(phase.trains)
    for name in names:
        params[name].requires_grad_()
    batch = images.batch(run.data.train[:8])
    known = [*model.tensors(), *params.values(), *run.received.values()]
    kept = saved_bytes(lambda: engine.method.objective(model.train(), params, batch, run.received, phase), known)
    trained = sum(4 * params[name].numel() for name in names)
    held = sum(4 * tensor.numel() for tensor in [*params.values(), *run.received.values()])
    # The gradient and each slot of the optimiser have the parameters' size, and the largest gradient is copied.
    largest = max(4 * params[name].numel() for name in names)
    expected = held + (1 + slots) * trained + largest + 4 * batch.images.numel() + kept
    assert client_bytes(engine.method, run, phase, images) == pytest.approx(expected, rel=0.01)
