"""FedAvg, FedProx and FedProto on numbers worked by hand, and their equivalences."""

from __future__ import annotations

import pytest
import torch
from playing import play_round, start

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState
from hetfl.methods import create
from hetfl.methods.base import Uplinks
from hetfl.schema import Traffic


def run(engine, rounds: int = 3):
    state, _ = start(engine, Draws(0))
    for round in range(1, rounds + 1):
        state, line = play_round(engine, state, Draws(0).at(round))
    return state, line


def test_fedavg_weights_by_samples():
    method = create("fedavg", {}, 3)
    server = ServerState({"samples": torch.tensor([10, 30, 5], dtype=torch.int32)})
    uplinks = {0: Message({"w": torch.tensor([4.0])}), 1: Message({"w": torch.tensor([8.0])})}
    assert method.aggregate(server, Uplinks.of(uplinks), Draws(0))["model/w"].item() == 7  # over the participants


def test_fedavg_sends_everything_both_ways(toy_engine):
    engine = toy_engine("fedavg")
    elements = engine.federation.clients[0].model.total_elements
    state, line = run(engine, 1)
    assert line.up == line.down == Traffic(elements=3 * elements, bytes=12 * elements)
    assert all(not client.params for client in state.clients.values())
    assert len(set(line.accuracy)) == 1


@pytest.mark.equation("fedavg")
def test_fedavg_with_one_client_is_central_training(toy_engine, toy_partition):
    """The server's mean of one client is that client."""
    from hetfl.data.partitions import Partition

    engine = toy_engine("fedavg", partition=Partition(toy_partition.train[:1], None))
    state, _ = run(engine, 1)
    draws, client, data = Draws(0).at(1), engine.federation.clients[0], engine.federation.data[0]
    params = {n: t.clone().requires_grad_() for n, t in client.model.init(Draws(0), -1).items()}
    optimiser = torch.optim.SGD(params.values(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    order = data.train[torch.randperm(15, generator=draws.generator("batches", 0, 0, 0))]
    for part in order.split(8):
        batch = data.train_images.batch(part)
        loss = torch.nn.functional.cross_entropy(client.model(params, batch.images).logits, batch.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, tensor in params.items():
        assert torch.allclose(state.server[f"model/{name}"], tensor, atol=1e-7)


def test_fedprox_without_its_term_is_fedavg(toy_engine):
    (avg, _), (prox, _) = run(toy_engine("fedavg")), run(toy_engine("fedprox", mu=0))
    assert all(torch.equal(avg.server[name], prox.server[name]) for name in avg.server)


def test_fedprox_holds_clients_near_the_server(toy_engine):
    def moved(mu: float) -> float:
        engine = toy_engine("fedprox", mu=mu)
        before, _ = start(engine, Draws(0))
        after, _ = play_round(engine, before, Draws(0).at(1))
        return sum(
            (after.server[n] - before.server[n]).square().sum().item() for n in before.server if n != "samples"
        )

    assert moved(10.0) < moved(1.0) < moved(0.0)


@pytest.mark.equation("fedprox")
def test_fedprox_gradient_is_the_papers():
    method = create("fedprox", {"mu": 0.5}, 2)

    class Linear:
        def __call__(self, params, images):
            from hetfl.models import Output

            return Output(images, images @ params["w"])

    w = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    reference = {"w": torch.tensor([[0.0, 0.0], [0.0, 1.0]])}
    batch = Batch(torch.zeros(1, 2), torch.tensor([0]))
    method.objective(Linear(), {"w": w}, batch, reference, None).backward()
    assert torch.allclose(w.grad, 0.5 * (w.detach() - reference["w"]))


@pytest.fixture
def fedproto():
    return create("fedproto", {"embedding": 2}, 3)


def test_fedproto_averages_over_the_owners(fedproto):
    uplinks = {
        0: Message(
            {
                "means": torch.tensor([[1.0, 0], [0, 4]]),
                "labels": torch.tensor([0, 2], dtype=torch.int32),
            }
        ),
        1: Message({"means": torch.tensor([[3.0, 2]]), "labels": torch.tensor([0], dtype=torch.int32)}),
    }
    server = fedproto.aggregate(ServerState(), Uplinks.of(uplinks), Draws(0))
    assert server["labels"].tolist() == [0, 2]
    assert server["means"].tolist() == [[2, 1], [0, 4]]
    received = fedproto.receive(fedproto.downlink(server, 0), {})
    assert received["valid"].tolist() == [True, False, True]


@pytest.mark.equation("fedproto")
def test_fedproto_objective_and_prediction(fedproto):
    from hetfl.models import Output

    received = {
        "means": torch.tensor([[2.0, 1], [0, 0], [0, 4]]),
        "valid": torch.tensor([True, False, True]),
    }
    features = torch.tensor([[0.0, 1], [1, 5], [0, 1]])
    batch = Batch(features, torch.tensor([0, 1, 2]))

    def model(params, images):
        return Output(images, torch.zeros(3, 3))

    plain = fedproto.objective(model, {}, batch, {}, None)
    pulled = fedproto.objective(model, {}, batch, received, None)
    # Mean over dimensions, class 1 has no prototype, mean over the whole batch.
    assert (pulled - plain).item() == pytest.approx((4 / 2 + 0 + 9 / 2) / 3)
    scores = fedproto.predict(model, {}, batch, received)
    assert scores.argmax(dim=1).tolist() == [0, 2, 0]
    assert scores[:, 1].tolist() == [-torch.inf] * 3


def test_fedproto_predicts_the_nearest_prototype_far_from_the_origin(fedproto):
    """With more than 25 samples, in float32: features at 1000 differ from their prototypes by less than 0.1."""
    from hetfl.models import Output

    prototypes = 1000 + torch.arange(30.0)[:, None].expand(30, 2) / 4
    features = prototypes + torch.rand(30, 2, generator=torch.Generator().manual_seed(0)) / 10
    batch = Batch(features, torch.arange(30))
    received = {"means": prototypes, "valid": torch.ones(30, dtype=torch.bool)}
    scores = fedproto.predict(lambda params, images: Output(images, images), {}, batch, received)
    assert scores.argmax(dim=1).tolist() == list(range(30))
    exact = -(features.double()[:, None] - prototypes.double()[None]).square().sum(dim=2)
    assert torch.allclose(scores.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("group", ["homogeneous", "heterogeneous"])
def test_fedproto_sends_its_own_classes_only(toy_engine, group):
    """Table 9: (d + 1) elements per class; the first client has two of the three classes."""
    _, line = run(toy_engine("fedproto", group, embedding=16), 2)
    assert line.up.elements == (16 + 1) * (2 + 3 + 3)
    assert line.down.elements == (16 + 1) * 3 * 3


def test_fedproto_with_no_pull_trains_as_if_alone(toy_engine):
    pulled, _ = run(toy_engine("fedproto", embedding=8, pull=0))
    alone, _ = run(toy_engine("fedproto", embedding=8, pull=5))
    name = "projection.weight"
    assert not torch.equal(pulled.clients[0].params[name], alone.clients[0].params[name])
    first, _ = run(toy_engine("fedproto", embedding=8, pull=5), 1)
    second, _ = run(toy_engine("fedproto", embedding=8, pull=0), 1)
    assert torch.equal(first.clients[0].params[name], second.clients[0].params[name])


def test_a_method_that_sorts_no_samples_says_so():
    method = create("fedavg", {}, 3)
    assert method.queries() is None
    for asked in (lambda: method.choose({}, None, {}), lambda: method.points(None)):
        with pytest.raises(NotImplementedError, match="FedAvg sorts no samples into groups"):
            asked()


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_heads_are_tested_as_well_where_asked_for(toy_engine, method):
    engine = toy_engine(method, embedding=4, test_head=True)
    state, line = run(engine, 2)
    plain, without = run(toy_engine(method, embedding=4), 2)
    assert without.extra == {} and without.accuracy == line.accuracy and without.loss == line.loss
    right = []
    for client, data in zip(engine.federation.clients, engine.federation.data, strict=True):
        batch = data.test_images.batch(data.test)
        predicted = client.model(state.clients[client.index].params, batch.images).logits.argmax(dim=1)
        right.append((predicted == batch.labels).float().mean().item())
    assert line.extra["head"].accuracy == pytest.approx(right)
