"""What a rehearsal says of a run is what the run does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from playing import play_round, start
from toy import CLASSES, GROUPS, TOY, most_varied

from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Partition
from hetfl.draws import Draws
from hetfl.experiments.rehearsal import Rehearsal, own_cost
from hetfl.methods import METHODS
from hetfl.metrics.flops import step_flops
from hetfl.models import build
from hetfl.models.base import Model, ModelOptions
from hetfl.models.outline import outline
from hetfl.training.blank import Holdings
from hetfl.training.rounds import play_fine_tuning


@pytest.fixture(scope="module")
def held(toy_data, toy_partition, toy_public) -> Holdings:
    labels, tests = (torch.from_numpy(toy_data.subset(name).labels) for name in ("train", "test"))
    train = [labels[part] for part in toy_partition.train]
    return Holdings(train, [tests] * 3, CLASSES, 8, torch.from_numpy(toy_public.labels), 2, 8)


def rehearse(held: Holdings, method: str, group: str, **settings) -> Rehearsal:
    made = METHODS[method].Settings(**{"rounds": 3, "batch_size": 8, **TOY.get(method, {}), **settings})
    return Rehearsal(method, made.model_dump(), GROUPS[group], InputSettings(), held)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_of_a_real_round(method, held, two_rounds):
    group = most_varied(method)
    played, rehearsal = two_rounds(method, group), rehearse(held, method, group)
    second, real = rehearsal.rounds(2, 2, seed=0), played.line
    if method in ("fedkd", "fedhpl"):  # what they send depends on what was learned: the rehearsal has the most
        assert real.up.bytes <= second.up and real.down.bytes <= second.down
        return
    assert (second.up, second.down) == (real.up.bytes, real.down.bytes)
    assert rehearsal.start().up == played.registration.up.bytes


@pytest.mark.parametrize("method", ["fedbabu", "fedrep"])
def test_fine_tuning_takes_what_it_does_after_a_real_round(method, held, toy_engine):
    engine = toy_engine(method, most_varied(method), batch_size=8, finetune_epochs=2)
    state, _ = start(engine, Draws(0))
    state, _ = play_round(engine, state, Draws(0).at(1))
    line = play_fine_tuning(engine, state.server, Draws(0).at(2))
    found = rehearse(held, method, most_varied(method), finetune_epochs=2).end()
    assert found.down == line.down.bytes > 0 and found.up == line.up.bytes == 0
    assert found.trained == 2 * sum(map(len, held.train))


@pytest.mark.parametrize("method", ["fedproto", "feddistill"])
def test_a_client_without_a_whole_batch_sends_what_it_does_in_a_real_round(method, held, toy_engine, toy_partition):
    """It comes after one that trains, takes no step, and so gathers nothing."""
    first, second, third = toy_partition.train
    partition = Partition((third, first, second[:4]), None)
    engine = toy_engine(method, most_varied(method), partition=partition, drop_last=True)
    state, _ = start(engine, Draws(0))
    _, line = play_round(engine, state, Draws(0).at(1))
    labels = [data.train_images.labels[data.train] for data in engine.federation.data]
    found = rehearse(replace(held, train=labels), method, most_varied(method), drop_last=True).rounds(1, 1, seed=0)
    assert (found.up, found.down) == (line.up.bytes, line.down.bytes)
    assert found.trained == 24 + 8


def test_images_are_those_that_clients_train_on_and_are_tested_on(held):
    # 15, 19 and 26 samples, two epochs; a test of 30 images, which all share and each client's own model sees.
    load = rehearse(held, "lg-fedavg", "resnets", local_epochs=2).rounds(1, 3, seed=0)
    assert (load.trained, load.seen) == (3 * 2 * 60, 3 * 3 * 30)
    rarely = rehearse(held, "lg-fedavg", "resnets", evaluate_every=2).rounds(1, 3, seed=0)
    assert rarely.seen == 2 * 3 * 30  # after round 2 and after the last one
    few = rehearse(held, "lg-fedavg", "resnets", drop_last=True).rounds(1, 1, seed=0)
    assert few.trained == 8 + 16 + 24


def test_a_client_may_have_no_test_sample(held):
    """The first of an architecture, too, whose test is counted for all clients that have it."""
    some = replace(held, test=[held.test[0][:0], held.test[0][:4], held.test[0][:6]])
    assert rehearse(some, "lg-fedavg", "resnets").rounds(1, 1, seed=0).seen == 10


@pytest.mark.parametrize("method", ["fedhpl", "fedtgp", "fedgh", "fedmd", "fedhe", "fgpt"])
def test_images_that_are_only_looked_at_are_those_of_a_real_round(method, held, toy_engine, monkeypatch):
    """Those of tests and of statistics, of every client."""
    engine = toy_engine(method, most_varied(method))
    state, _ = start(engine, Draws(0))
    state, _ = play_round(engine, state, Draws(0).at(1))
    seen, run = [], Model.__call__

    def counted(model: Model, params, images: torch.Tensor, *more):
        seen.append(0 if torch.is_grad_enabled() else len(images))
        return run(model, params, images, *more)

    monkeypatch.setattr(Model, "__call__", counted)
    play_round(engine, state, Draws(0).at(2))
    assert rehearse(held, method, most_varied(method)).rounds(2, 2, seed=0).seen == sum(seen)


def test_rounds_add_up_whoever_takes_part(held):
    rehearsal = rehearse(held, "fedavg", "homogeneous", participation=0.67)
    whole, parts = rehearsal.rounds(1, 3, seed=4), [rehearsal.rounds(r, r, seed=4) for r in (1, 2, 3)]
    assert whole.trained == sum(part.trained for part in parts)
    assert (whole.up, whole.down) == (sum(part.up for part in parts), sum(part.down for part in parts))
    assert whole.up == 3 * 2 * rehearse(held, "fedavg", "homogeneous").rounds(1, 1, seed=4).up // 3


def test_operations_are_those_that_are_counted_on_a_real_model(held, two_rounds):
    played, rehearsal = two_rounds("fedavg", "homogeneous"), rehearse(held, "fedavg", "homogeneous")
    client, images = played.engine.federation.clients[0], played.engine.federation.data[0].train_images
    batch, params = images.batch(torch.arange(4)), played.updates[0].state.params or {}
    received = played.engine.method.receive(played.downlinks[0], {})
    params = played.engine.method.adopt(played.engine.method.initial(client.model, Draws(0), 0), received)
    counted = step_flops(played.engine.method, client.model, params, batch, received)
    load = rehearsal.rounds(1, 1, seed=0)
    trained = load.operations["digits_vit_base", "train"]
    # A layer's two gradients cost as much as the layer; the first one needs none for the images.
    assert trained == pytest.approx(60 * sum(counted) / 4, rel=0.15)


@pytest.mark.parametrize("method", ["pt-fedavg", "fedmoon"])
def test_passes_without_gradients_are_counted_as_such(method, held, two_rounds):
    group = most_varied(method)
    played, rehearsal = two_rounds(method, group), rehearse(held, method, group)
    client, images = played.engine.federation.clients[0], played.engine.federation.data[0].train_images
    state = played.updates[0].state
    received = played.engine.method.receive(played.downlinks[0], state.memory)
    params = played.engine.method.adopt(played.engine.method.initial(client.model, Draws(0), 0), received)
    batch = images.batch(torch.arange(4))
    counted = step_flops(played.engine.method, client.model, params, batch, received)
    assert rehearsal.of_clients(2)[0] == pytest.approx(len(held.train[0]) * sum(counted) / 4, rel=0.2)


def test_a_gradient_of_a_gradient_is_counted(held):
    """torch counts no operations there; by hand, FedMix takes 76.1 GMAC for a sample of ViT-B/16, PT-FedAvg 36.8."""
    plain, mixed = (rehearse(held, name, most_varied(name)).of_clients(2)[0] for name in ("pt-fedavg", "fedmix"))
    assert mixed / plain == pytest.approx(76.1 / 36.8, rel=0.05)


def test_networks_are_made_and_counted_once():
    options = ModelOptions(body="trained", weights="scratch")
    first = outline("digits_resnet_small", 10, options, InputSettings())
    assert first is outline("digits_resnet_small", 10, options, InputSettings())
    other = outline("digits_resnet_small", 100, options, InputSettings())
    assert other._module.body is first._module.body
    assert own_cost(other).forward - own_cost(first).forward == 2 * 90 * first.width


@pytest.mark.parametrize(
    "options",
    [
        {"body": "trained", "auxiliary": "digits_resnet_small", "transform": True, "embedding": 16, "reduce": "pool"},
        {"prompts": "frame", "prompt_length": 2},
    ],
)
def test_an_outline_has_as_many_elements_as_the_model(options):
    made = ModelOptions(weights="scratch", **options)
    shapes = outline("digits_resnet_large", 10, made, InputSettings())
    model = build("digits_resnet_large", 10, made)
    assert shapes.total_elements == model.total_elements and shapes.groups.keys() == model.groups.keys()
    assert [shapes.elements([role]) for role in shapes.groups] == [model.elements([role]) for role in model.groups]


def test_memory_grows_with_the_clients_that_train_at_once(held):
    rehearsal = rehearse(held, "lg-fedavg", "resnets")
    assert 0 < rehearsal.memory(1) < rehearsal.memory(3)
