"""Participants that take no step, since they have fewer samples than a batch and incomplete ones are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from playing import play_round, start
from toy import LOCAL_ENGINES

from hetfl.draws import Draws
from hetfl.message import ServerState
from hetfl.methods.base import Uplinks
from hetfl.training.client_run import used_samples
from hetfl.training.engines import make_engine

COLLECTING = {
    "fedproto": {"collect": "training", "optimiser": "adam", "keep_optimiser": True},
    "fedtgp": {"collect": "training", "server_batch": 8},
    "feddistill": {"collect": "training"},
    "fedhe": {"collect": "training"},
    "sgpt": {},
}
"""Methods that collect from the training passes."""


@pytest.mark.parametrize("size", [16, 20, 32])  # the clients have 15, 19 and 26 samples
@pytest.mark.parametrize("method", COLLECTING)
def test_who_takes_no_step_sends_no_rows(toy_engine, method, size):
    ends = []
    for engine in LOCAL_ENGINES:
        reference = toy_engine(method, dtype=torch.float64, drop_last=True, batch_size=size, **COLLECTING[method])
        chosen = make_engine(reference.method, reference.federation, engine)
        state, _ = start(chosen, Draws(0))
        sent = {}
        real = chosen.train

        def watched(*given, sent=sent, real=real):
            for update in real(*given):
                sent[update.client] = update.uplink
                yield update

        chosen.train = watched
        for round in (1, 2):
            state, line = play_round(chosen, state, Draws(0).at(round))
            for k, samples in enumerate((15, 19, 26)):
                rows = sent[k]["counts"].sum() if method == "sgpt" else sent[k].size.elements
                assert bool(rows) == bool(line.loss[k]) == (samples >= size)
        assert all(torch.isfinite(tensor).all() for tensor in state.server.values())
        ends.append(state.tensors())
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("batch_norm", "drop_last", "used"), [(False, False, 17), (True, False, 16), (False, True, 16)]
)
def test_a_last_batch_of_one_sample_counts_without_batch_normalisation(toy_engine, batch_norm, drop_last, used):
    phase = toy_engine("fedavg", batch_size=16, drop_last=drop_last).method.phases(1)[0]
    assert used_samples(17, phase, batch_norm) == used


def test_scaffolds_control_stays_where_no_step_was_taken(toy_engine):
    engine = toy_engine("scaffold", drop_last=True, batch_size=20)
    state, _ = start(engine, Draws(0))
    state, line = play_round(engine, state, Draws(0).at(1))
    assert [bool(loss) for loss in line.loss] == [False, False, True]
    memories = [engine.client_states()[client].memory for client in range(3)]
    moved = [any(tensor.any() for tensor in memory.values()) for memory in memories]
    assert moved == [False, False, True]
    assert all(torch.isfinite(tensor).all() for tensor in state.tensors().values())


def test_others_class_means_are_as_without_those_who_take_no_step(toy_engine):
    engine = toy_engine("fedproto", collect="training", drop_last=True, batch_size=20)
    state, _ = start(engine, Draws(0))
    state, line = play_round(engine, state, Draws(0).at(1))
    only = engine.method.aggregate(
        ServerState(), Uplinks.of({2: engine.method.downlink(state.server, 0)}), Draws(0).at(1)
    )
    assert all(torch.equal(state.server[name], only[name]) for name in only)
    assert line.up.elements == 3 * (16 + 1)


def test_the_mean_loss_is_of_those_who_took_a_step(toy_engine):
    engine = toy_engine("fedavg", drop_last=True, batch_size=16)
    _, line = play_round(engine, start(engine, Draws(0))[0], Draws(0).at(1))
    assert line.loss[0] == 0 and line.mean_loss == pytest.approx(sum(line.loss) / 2)


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
def test_a_phase_without_a_step_leaves_no_optimiser_to_the_next_round(toy_engine, monkeypatch, engine):
    reference = toy_engine("fedavg", momentum=0.9)
    first = reference.method.phases(1)[0]
    for steps in (1, 0):
        phases = (first, replace(first, epochs=steps))
        monkeypatch.setattr(reference.method, "phases", lambda round, phases=phases: phases)
        chosen = make_engine(reference.method, reference.federation, engine)
        play_round(chosen, start(chosen, Draws(0))[0], Draws(0).at(1))
        assert not any(state.optimiser for state in chosen.client_states().values()), steps
