"""Clients that are tested without having trained, clients without samples, and what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from playing import accuracies, params_for_test, predictions, run

from hetfl.data.partitions import Partition
from hetfl.draws import Draws
from hetfl.training.engine import same_for_all
from hetfl.training.local import predict

SMALL = {"shared_blocks": (1,), "group_blocks": (2,), "prompt_length": 2, "local_epochs": 1, "participation": 1.0}
PARTS = tuple(np.arange(60)[start::5] for start in range(5))
TESTS = (np.arange(10), np.arange(10, 17), np.arange(0), np.arange(17, 29), np.arange(29, 30))
FIVE = Partition(PARTS, TESTS)
"""Five clients with 12 training samples each, of which the third is tested on nothing."""


@pytest.mark.parametrize("method", ["fedavg", "pt-fedavg", "fgpt", "sgpt"])
def test_one_pass_over_all_images_predicts_what_each_client_would(toy_engine, method):
    engine = toy_engine(method, partition=FIVE, dtype=torch.float64, **({} if method == "fedavg" else SMALL))
    state, _ = run(engine, 1)
    draws = Draws(0).at(1)
    assert same_for_all(engine.method, engine.models)
    for k, (predicted, true) in enumerate(predictions(engine, state, draws)):
        data = engine.federation.data[k]
        params, received = params_for_test(engine, state, draws, k)
        own = predict(engine.method, engine.models[k], params, received, data.test_images, data.test)
        assert torch.equal(predicted, own)
        assert torch.equal(true, data.test_images.labels[data.test])


@pytest.mark.parametrize("method", ["pfedhn", "fedhpl"])
def test_clients_with_parameters_of_their_own_are_tested_by_themselves(toy_engine, method):
    engine = toy_engine(method, partition=FIVE, **(SMALL if method == "pfedhn" else {}))
    state, _ = run(engine, 1)
    assert not same_for_all(engine.method, engine.models)
    assert [len(true) for _, true in predictions(engine, state, Draws(0).at(1))] == [10, 7, 0, 12, 1]


def test_a_client_without_test_samples_has_no_accuracy(toy_engine):
    engine = toy_engine("fgpt", partition=FIVE, groups=3, **SMALL)
    state, lines = run(engine, 1)
    accuracy = lines[1].accuracy
    assert accuracy[2] is None and None not in accuracy[:2] + accuracy[3:]
    right = sum(share * len(part) for share, part in zip(accuracy, TESTS, strict=True) if share is not None)
    assert lines[1].pooled == pytest.approx(right / 30)
    assert accuracies(engine, state, Draws(0).at(1)) == lines[1].test()


@pytest.mark.parametrize("method", ["fgpt", "sgpt", "pt-fedavg", "fedmix", "fedavg"])
def test_held_out_clients_are_tested_and_change_nothing(toy_engine, method):
    more = {} if method == "fedavg" else SMALL
    whole = toy_engine(method, partition=FIVE, held_out=2, dtype=torch.float64, **more)
    without = toy_engine(method, partition=Partition(PARTS[:3], TESTS[:3]), dtype=torch.float64, **more)
    state, lines = run(whole)
    expected, known = run(without)
    assert state.server.keys() == expected.server.keys()
    for name, tensor in expected.server.items():
        assert torch.equal(state.server[name], tensor), name
    for line, other in zip(lines, known, strict=True):
        assert line.participants == other.participants == [0, 1, 2]
        assert (line.up, line.down) == (other.up, other.down)
        if line.accuracy is not None:
            assert len(line.accuracy) == 5 and line.accuracy[:3] == other.accuracy


@pytest.mark.parametrize(
    ("method", "kept"), [("fgpt", 0), ("sgpt", 0), ("pt-fedavg", 0), ("fedmoon", 2), ("pfedhn", 0)]
)
def test_only_participants_with_something_to_remember_have_a_state(toy_engine, method, kept):
    engine = toy_engine(method, partition=FIVE, **SMALL | {"participation": 0.4})
    state, lines = run(engine, 1)
    assert len(lines[1].participants) == 2
    assert len(state.clients) == kept and set(state.clients) <= set(lines[1].participants)


def test_a_client_that_only_looked_at_its_data_before_the_first_round_keeps_nothing(toy_engine):
    engine = toy_engine("fedhpl", theorem=True)
    assert len(list(engine.introduce(range(3), Draws(0)))) == 3
    assert engine.client_states() == {}
