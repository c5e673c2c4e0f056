"""The methods that FedTGP is compared with, and its switches: equations on small numbers, and equivalences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from playing import predictions, run, start, train

from hetfl.data.batches import Batch
from hetfl.data.partitions import Partition
from hetfl.draws import Draws
from hetfl.message import Message, ServerState
from hetfl.methods import create, fedkd
from hetfl.methods.base import Uplinks
from hetfl.methods.fedkd import restore, truncate
from hetfl.methods.parts.feature_generator import generate
from hetfl.models import ModelOptions, Output, build
from hetfl.training.local import predict

PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "lr": 0.05}


def means(labels, rows):
    return Message({"means": torch.tensor(rows), "labels": torch.tensor(labels, dtype=torch.int32)})


def train_alone(engine, params, names, forward, rounds: int, clip: float | None = None):
    """A client's first network alone: cross-entropy, plain SGD, the engine's batches."""
    client, data = engine.federation.clients[0], engine.federation.data[0]
    params = {name: tensor.clone() for name, tensor in params.items()}
    for round in range(1, rounds + 1):
        generator = Draws(0).at(round).generator("batches", 0, 0, 0)
        order = torch.randperm(client.samples, generator=generator)
        for rows in order.split(engine.method.settings.batch_size):
            leaves = {name: params[name].requires_grad_() for name in names}
            batch = data.train_images.batch(data.train[rows])
            loss = F.cross_entropy(forward(client.model.train())(params, batch.images).logits, batch.labels)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            factor = min(1.0, clip / (norm.item() + 1e-6)) if clip else 1.0
            for name, gradient in zip(leaves, gradients, strict=True):
                params[name] = (params[name] - PLAIN["lr"] * factor * gradient).detach()
    return params


@pytest.fixture
def one_client(toy_partition):
    return Partition((toy_partition.train[1],), None)


@pytest.mark.equation("lg-fedavg")
def test_lg_fedavg_with_one_client_is_local_training(toy_engine, one_client):
    engine = toy_engine("lg-fedavg", "resnets", torch.float64, partition=one_client, **PLAIN)
    state, _ = run(engine, 3)
    model = engine.federation.clients[0].model
    head = {name: model.init(Draws(0), -1)[name] for name in model.names(["head"])}
    names = model.names(["body", "projection", "head"])
    alone = train_alone(engine, model.init(Draws(0), 0) | head, names, lambda model: model, 3)
    for name in model.names(["body", "projection", "buffers"]):
        assert torch.allclose(state.clients[0].params[name], alone[name], atol=1e-12), name
    for name in head:
        assert torch.allclose(state.server["model/" + name], alone[name], atol=1e-12)


def test_lg_fedavg_sends_heads_and_is_tested_with_the_servers(toy_engine):
    engine = toy_engine("lg-fedavg", "resnets")
    state, lines = run(engine)
    head = 3 * 16 + 3
    assert lines[1].up.elements == lines[1].down.elements == 3 * head
    assert not any(name.startswith("head") for name in state.clients[0].params)
    assert engine.method.evaluates == "global"


@pytest.mark.parametrize("clip", [None, 0.5])
def test_fml_without_distillation_is_two_independent_trainings(toy_engine, one_client, clip):
    settings = {**PLAIN, "alpha": 1.0, "beta": 1.0, "clip": clip}
    engine = toy_engine("fml", "resnets", torch.float64, partition=one_client, **settings)
    state, _ = run(engine, 2)
    model = engine.federation.clients[0].model
    fresh = model.init(Draws(0), 0)
    own = train_alone(engine, fresh, model.names(["body", "projection", "head"]), lambda model: model, 2, clip)
    for name in model.names(["body", "projection", "head"]):
        assert torch.allclose(state.clients[0].params[name], own[name], atol=1e-10), name
    common = {name: model.init(Draws(0), -1)[name] for name in model.names(["auxiliary"])}
    second = train_alone(engine, fresh | common, model.names(["auxiliary"]), lambda m: m.auxiliary, 2, clip)
    for name in common:
        assert torch.allclose(state.server[name], second[name], atol=1e-10), name


class Pair:
    """Two models whose parameters are their logits and features."""

    def __init__(self, own: Output, common: Output) -> None:
        self.own, self.common = own, common

    def __call__(self, params, images):
        return self.own

    def auxiliary(self, params, images):
        return self.common


def pair():
    generator = torch.Generator().manual_seed(3)
    p, q, f, g = (torch.randn(4, 5, generator=generator, requires_grad=True) for _ in range(4))
    return p, q, f, g, Batch(torch.zeros(4, 1), torch.tensor([0, 3, 1, 1]))


@pytest.mark.equation("fml")
@pytest.mark.parametrize("reduction", ["elements", "batch"])
@pytest.mark.parametrize("detach", [False, True])
def test_fmls_loss_is_both_losses(reduction, detach):
    p, q, f, g, batch = pair()
    method = create("fml", {"alpha": 0.3, "beta": 0.6, "reduction": reduction, "detach": detach}, 5)
    loss = method.objective(Pair(Output(f, p), Output(g, q)), {}, batch, {}, None)
    by = 4 if reduction == "batch" else 20

    def kl(first, second):
        first, second = first.softmax(1), second.softmax(1)
        return (first * (first / second).log()).sum() / by

    def cut(logits):
        return logits.detach() if detach else logits

    expected = 0.3 * F.cross_entropy(p, batch.labels) + 0.7 * kl(cut(q), p)
    expected = expected + 0.6 * F.cross_entropy(q, batch.labels) + 0.4 * kl(cut(p), q)
    assert torch.allclose(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, [p, q]), torch.autograd.grad(expected, [p, q]), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.equation("fedkd")
def test_fedkds_loss_is_divided_by_the_cross_entropies():
    p, q, f, g, batch = pair()
    w = torch.randn(5, 5, generator=torch.Generator().manual_seed(4), requires_grad=True)
    method = create("fedkd", {}, 5)
    params = {"transform.weight": w}
    loss = method.objective(Pair(Output(f, p), Output(g, q)), params, batch, {}, None)
    hard = [F.cross_entropy(logits, batch.labels) for logits in (p, q)]
    kl = [F.kl_div(a.log_softmax(1), b.softmax(1), reduction="sum") / 20 for a, b in ((p, q), (q, p))]
    feature = (f - g @ w.T).square().mean()
    expected = sum(own + (other + feature) / sum(hard) for own, other in zip(hard, kl, strict=True))
    assert torch.allclose(loss, expected)
    leaves = [p, q, f, g, w]
    for ours, theirs in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("method", ["fml", "fedkd"])
def test_gradients_are_clipped_network_by_network(toy_engine, one_client, method):
    engine = toy_engine(method, "resnets", partition=one_client, **PLAIN, clip=1e-3, batch_size=64)
    state, _ = start(engine, Draws(0))
    down = engine.method.downlink(state.server, 0)
    client = engine.federation.clients[0]
    before = engine.method.adopt(engine.method.initial(client.model, Draws(0), 0), down)
    (update,) = train(engine, {0: down}, Draws(0).at(1))
    after = {**update.state.params, **(update.uplink if method == "fml" else {})}
    for groups in engine.method.networks():
        names = client.model.names(groups)
        moved = torch.cat([(after[name] - before[name]).flatten() for name in names]).norm().item()
        assert moved == pytest.approx(PLAIN["lr"] * 1e-3, rel=1e-2), groups


def test_the_rank_is_the_smallest_whose_squares_exceed_the_share():
    u, _ = torch.linalg.qr(torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    v, _ = torch.linalg.qr(torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    matrix = (u * torch.tensor([4.0, 2.0, 2.0, 1.0])) @ v.T  # squares 16, 4, 4, 1 of 25
    for energy, rank in {0.1: 1, 0.63: 1, 0.65: 2, 0.79: 2, 0.81: 3, 0.95: 3, 0.97: 4, 1.0: 5}.items():
        sent = truncate({"w": matrix}, energy)
        assert [list(sent["w" + part].shape) for part in ("/u", "/s", "/v")] == [[6, rank], [rank], [rank, 5]], energy
    assert torch.allclose(restore(truncate({"w": matrix}, 1.0))["w"], matrix, atol=1e-12)
    left = restore(truncate({"w": matrix}, 0.9))["w"] - matrix
    assert left.norm().item() == pytest.approx(1.0)  # what was cut off


def test_kernels_are_stacks_of_small_matrices_and_vectors_stay_whole():
    kernel, vector, row = torch.randn(8, 3, 5, 5), torch.randn(7), torch.randn(1, 9)
    sent = truncate({"k": kernel, "b": vector, "r": row}, 0.9)
    rank = sent["k/s"].shape[-1]
    assert sum(sent["k" + part].numel() for part in ("/u", "/s", "/v")) == rank * 8 * 3 * (5 + 5 + 1)
    assert torch.equal(sent["b"], vector) and torch.equal(sent["r"], row)
    values = torch.linalg.svdvals(kernel).square()
    share = values.sum((0, 1)).cumsum(0) / values.sum()
    assert share[rank - 1] > 0.9 >= share[rank - 2]
    whole = restore(truncate({"k": kernel}, 1.0))
    assert torch.allclose(whole["k"], kernel, atol=1e-5)
    assert list(restore(sent)) == ["k", "b", "r"]


def test_a_fresh_cnn_costs_more_truncated_than_whole():
    """FedTGP Table 5 needs trained weights: fresh ones take 1.14 times their size at a share of 0.95."""
    options = ModelOptions(body="trained", weights="scratch", embedding=512, reduce="pool", init="torch")
    model = build("cnn", 100, options)
    params = model.init(Draws(0), 0)
    names = model.names(["body", "head"])
    assert sum(params[name].numel() for name in names) == 924_708
    sent = truncate({name: params[name] for name in names}, 0.95)
    ranks = [tensor.shape[-1] for name, tensor in sent.items() if name.endswith("/s")]
    assert ranks[:2] == [4, 4] and abs(ranks[2] - 430) <= 2 and abs(ranks[3] - 88) <= 1
    assert sum(tensor.numel() for tensor in sent.values()) / 924_708 == pytest.approx(1.144, abs=0.005)


def test_fedkd_with_all_energy_is_fedkd_uncompressed(toy_engine, monkeypatch):
    settings = {"energy_start": 1.0, "energy_end": 1.0, **PLAIN}
    full, _ = run(toy_engine("fedkd", "resnets", torch.float64, **settings), 3)
    monkeypatch.setattr(fedkd, "truncate", lambda tensors, energy: dict(tensors))
    monkeypatch.setattr(fedkd, "restore", dict)
    plain, _ = run(toy_engine("fedkd", "resnets", torch.float64, **settings), 3)
    for name, tensor in plain.clients[0].params.items():
        assert torch.allclose(full.clients[0].params[name], tensor, atol=1e-9), name


def test_fedkds_clients_start_from_one_common_network_that_was_never_sent(toy_engine):
    engine = toy_engine("fedkd", "resnets")
    first, second = (engine.method.initial(engine.federation.clients[k].model, Draws(0), k) for k in (0, 1))
    names = engine.federation.clients[0].model.names(["auxiliary"])
    assert all(torch.equal(first[name], second[name]) for name in names)
    assert not torch.equal(first["transform.weight"], second["transform.weight"])
    state, lines = run(engine)
    assert lines[1].down.elements == 0 < lines[2].down.elements
    assert not any("transform" in name for name in state.server)
    # Everybody overwrites its copy by what the server's factors give.
    received = engine.method.receive(engine.method.downlink(state.server, 0), {})
    assert set(received) == set(names)


def test_fedkds_energy_moves_from_start_to_end():
    """As in the authors' loop, which counts rounds from 0 and has E = start + (i / T) (end - start) in round i."""
    method = create("fedkd", {"rounds": 4, "energy_start": 0.9, "energy_end": 0.98}, 3)
    assert [method.energy(round) for round in (1, 2, 3, 4)] == pytest.approx([0.9, 0.92, 0.94, 0.96])


def test_fedkds_clients_and_server_truncate_by_the_rounds_energy(toy_engine, monkeypatch):
    used = []

    def recorded(tensors, energy):
        if not any(tensor.is_meta for tensor in tensors.values()):  # those of the contract have no values
            used.append(round(energy, 6))
        return truncate(tensors, energy)

    monkeypatch.setattr(fedkd, "truncate", recorded)
    run(toy_engine("fedkd", "two resnets", rounds=2, energy_start=0.5, energy_end=0.9), 2)
    clients_and_server = 4
    assert used == [0.5] * clients_and_server + [0.7] * clients_and_server


def test_feddistill_is_fedhe_once_everyone_takes_part(toy_engine):
    same = {"optimiser": "sgd", "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, "stem": "imagenet"}
    states = [run(toy_engine(method, "resnets", **same), 3)[0] for method in ("fedhe", "feddistill")]
    for name, tensor in states[0].clients[2].params.items():
        assert torch.equal(states[1].clients[2].params[name], tensor)


def test_feddistill_does_not_wait_and_does_not_carry_over():
    method = create("feddistill", {}, 3)
    server = method.aggregate(ServerState(), Uplinks.of({0: means([0, 2], [[1.0, 0, 0], [0, 0, 4]])}), Draws(0))
    assert method.downlink(server, 1)["labels"].tolist() == [0, 2]
    server = method.aggregate(server, Uplinks.of({1: means([1], [[0.0, 1, 0]])}), Draws(0))
    assert method.downlink(server, 1)["labels"].tolist() == [1]


@pytest.mark.equation("feddistill")
def test_feddistills_soft_targets():
    method = create("feddistill", {"regulariser": "soft"}, 3)
    logits, targets = torch.randn(2, 3), torch.randn(2, 3)
    expected = -(targets.softmax(1) * logits.log_softmax(1)).sum(1)
    assert torch.allclose(method.distance(logits, targets), expected)


def test_stale_prototypes_are_those_from_before_training(toy_engine):
    engine = toy_engine("fedtgp", "resnets", collect="before")
    state, _ = start(engine, Draws(0))
    (update,) = train(engine, {2: Message()}, Draws(0).at(1))
    client, data = engine.federation.clients[2], engine.federation.data[2]
    batch = data.train_images.batch(data.train)
    features = client.model(client.model.init(Draws(0), 2), batch.images).features
    for label, mean in zip(update.uplink["labels"], update.uplink["means"], strict=True):
        assert torch.allclose(mean, features[batch.labels == label].mean(dim=0), atol=1e-6)


def test_prototypes_weighted_by_samples():
    method = create("fedproto", {"average": "weighted"}, 3)

    def sent(labels, rows, counts):
        return Message({**means(labels, rows), "counts": torch.tensor(counts, dtype=torch.int32)})

    uplinks = {0: sent([0, 2], [[1.0, 0], [0, 4]], [30, 5]), 1: sent([0], [[5.0, 4]], [10])}
    server = method.aggregate(ServerState(), Uplinks.of(uplinks), Draws(0))
    assert server["means"].tolist() == [[2, 1], [0, 4]]
    assert server["labels"].tolist() == [0, 2]


def test_the_euclidean_pull():
    method = create("fedproto", {"pull": 0.5, "distance": "l2"}, 2)
    features = torch.tensor([[0.0, 1.0], [3.0, 4.0]], requires_grad=True)
    received = {"means": torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "valid": torch.tensor([True, True])}
    batch = Batch(features, torch.tensor([0, 1]))

    def model(params, images):
        return Output(images, torch.zeros(2, 2))

    plain, pulled = (method.objective(model, {}, batch, known, None) for known in ({}, received))
    assert (pulled - plain).item() == pytest.approx(0.5 * 5 / 2, abs=1e-5)
    pulled.backward()
    assert torch.allclose(features.grad, torch.tensor([[0.0, 0.0], [0.6, 0.8]]) * 0.5 / 2)


def test_scl_is_the_margin_of_zero_and_fm_a_fixed_one(toy_engine):
    def server(**settings):
        return run(toy_engine("fedtgp", "resnets", **settings), 2)[0].server

    scl, none = server(margin="none"), server(margin="fixed", margin_cap=0.0)
    assert torch.equal(scl["means"], none["means"])
    assert server(margin="fixed", margin_cap=3.0)["margin"].item() == 3.0
    # An adaptive margin that always reaches its cap is a fixed one.
    assert torch.equal(server(margin_cap=1e-3)["means"], server(margin="fixed", margin_cap=1e-3)["means"])


def test_fedgen_counts_labels_once(toy_engine):
    engine = toy_engine("fedgen", "resnets", labels="counts", tests="global")
    state, lines = run(engine)
    head, generator = 3 * 16 + 3, (4 + 3) * 16 + 16 + 2 * 16 + 16 * 16 + 16
    assert lines[0].up.elements == 3 * (1 + 3)
    assert lines[1].up.elements == 3 * head
    assert lines[2].down.elements == 3 * (head + generator + 3)
    assert state.server["counts"].tolist() == [20, 20, 20]
    counts = {"counts": torch.tensor([0, 5, 15])}
    _, labels = generate(state.server.group("generator"), counts, 4000, seed=0, num_classes=3)
    assert torch.bincount(labels, minlength=3).tolist() == pytest.approx([0, 1000, 3000], abs=120)
    # Accuracies with the server's head.
    received = engine.method.downlink(state.server, 0)
    data, params = engine.federation.data[0], engine.method.adopt(state.clients[0].params, received)
    own = predict(engine.method, engine.models[0], params, {}, data.test_images, data.test)
    assert torch.equal(next(predictions(engine, state, Draws(0).at(2)))[0], own)


def test_fedgens_common_first_head_is_sent_alone(toy_engine):
    """Every client takes it over, and the generator's term begins when there is a mean head."""
    engine = toy_engine("fedgen", "resnets", labels="counts", tests="global", first_head="common")
    state, _ = start(engine, Draws(0))
    for client, model in enumerate(engine.models):
        received = engine.method.downlink(state.server, client)
        assert set(received) == {"head.weight", "head.bias"} and not engine.method.drawn(received, 4, seed=0)
        own = model.init(Draws(0), client)
        adopted = engine.method.adopt(own, received)
        assert torch.equal(adopted["head.weight"], state.server["first/head.weight"])
        assert not torch.equal(adopted["head.weight"], own["head.weight"])
    state, lines = run(engine, 2)
    assert lines[1].down.elements == 3 * (3 * 16 + 3)
    assert lines[2].down.elements == lines[1].down.elements + 3 * ((4 + 3) * 16 + 16 + 2 * 16 + 16 * 16 + 16 + 3)
    assert not state.server.group("first")


def test_fedgens_servers_rate_decays_after_every_round(toy_engine, monkeypatch):
    rates = []

    def trained(net, adam, *given, lr, **more):
        rates.append(lr)
        return net, adam

    monkeypatch.setattr("hetfl.methods.fedgen.train_generator", trained)
    run(toy_engine("fedgen", "resnets", server_lr=0.5, server_decay=0.1), 3)
    assert rates == pytest.approx([0.5, 0.05, 0.005])


def test_fedgens_frozen_generator_stays_as_drawn(toy_engine):
    engine = toy_engine("fedgen", "resnets", frozen=True)
    before, _ = start(engine, Draws(0))
    after, _ = run(engine, 2)
    for name, tensor in before.server.items():
        if name.startswith("generator/"):
            assert torch.equal(after.server[name], tensor)
