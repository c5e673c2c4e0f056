"""FedGen, FedGH, FedTGP, FedMD and FedHE: their equations on small numbers, and their equivalences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from playing import accuracies, play_round, run, start, train

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.evaluation import confusions
from hetfl.message import Message, ServerState, group, without
from hetfl.methods import create
from hetfl.methods.base import Uplinks
from hetfl.methods.parts.feature_generator import generate
from hetfl.methods.parts.trainable_prototypes import batches_of, contrastive_loss, emit, margin_of
from hetfl.models import Output
from hetfl.training.state import State


class Linear:
    """A model whose features are its images."""

    def __call__(self, params, images):
        return Output(images, images @ params["head.weight"].T + params["head.bias"])


def means(labels, rows):
    return Message({"means": torch.tensor(rows), "labels": torch.tensor(labels, dtype=torch.int32)})


def test_fedhe_sends_and_averages_class_means():
    method = create("fedhe", {}, 3)
    server = method.initial_server([None, None], {}, Draws(0))
    uplinks = {0: means([0, 2], [[1.0, 0, 0], [0, 0, 4]]), 1: means([0], [[3.0, 2, 0]])}
    server = method.aggregate(server, Uplinks.of(uplinks), Draws(0))
    assert server["means"].tolist() == [[2, 1, 0], [0, 0, 4]]
    assert server["labels"].tolist() == [0, 2]
    assert method.downlink(server, 0).size.elements == 2 * 3 + 2


def test_fedhe_waits_until_every_client_has_reported():
    method = create("fedhe", {}, 3)
    server = method.initial_server([None, None], {}, Draws(0))
    server = method.aggregate(server, Uplinks.of({1: means([0], [[3.0, 2, 0]])}), Draws(0))
    assert not method.downlink(server, 0)
    server = method.aggregate(server, Uplinks.of({0: means([1], [[0.0, 1, 0]])}), Draws(0))
    assert method.downlink(server, 0)["labels"].tolist() == [1]


def test_fedhes_loss_is_a_squared_distance_where_a_class_has_a_mean():
    method = create("fedhe", {"alpha": 2.0}, 2)
    params = {"head.weight": torch.eye(2), "head.bias": torch.zeros(2)}
    batch = Batch(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1]))
    received = method.receive(means([0], [[3.0, 1.0]]), {})
    phase = method.phases(1)[0]
    plain = method.objective(Linear(), params, batch, {}, phase)
    pulled = method.objective(Linear(), params, batch, received, phase)
    # Only the first sample's class has a mean: (4 + 1) / 2, halved by the batch.
    assert (pulled - plain).item() == pytest.approx(2.0 * 2.5 / 2)


@pytest.mark.parametrize("group", ["homogeneous", "heterogeneous"])
def test_fedhes_upload_is_fedhpls_average_upload_without_selection(toy_engine, group):
    """Before losses part them: one model, one sweep, all logits; FedHE sends no counts."""
    same = {"optimiser": "sgd", "lr": 0.01, "weight_decay": 1e-4, "momentum": 0.9}
    fedhe = toy_engine("fedhe", group, collect="sweep", **same)
    fedhpl = create("fedhpl", {"upload": "average", "selection": "all"}, 3)
    state, _ = start(fedhe, Draws(0))
    from hetfl.methods.base import Work

    (update,) = train(fedhe, {1: Message()}, Draws(0).at(1))
    client, data = fedhe.federation.clients[1], fedhe.federation.data[1]
    statistics = fedhpl.statistics(client.model, update.state.params, data.train_images.batch(data.train), {})
    work = Work(client, Draws(0, round=1), {}, {}, update.state.params, statistics, 1)
    theirs = fedhpl.uplink(work)
    present = theirs["counts"].nonzero().squeeze(1)
    assert update.uplink["labels"].tolist() == present.tolist()
    assert torch.allclose(update.uplink["means"], theirs["means"][present], atol=1e-6)


def test_statistics_of_the_training_passes_are_taken_before_each_step(toy_engine):
    """With one step per epoch and one epoch the logits are those of the untrained model."""
    engine = toy_engine("fedhe", batch_size=64)
    state, _ = start(engine, Draws(0))

    (update,) = train(engine, {2: Message()}, Draws(0).at(1))
    client, data = engine.federation.clients[2], engine.federation.data[2]
    batch = data.train_images.batch(data.train)
    logits = client.model(client.model.init(Draws(0), 2), batch.images).logits
    for label, mean in zip(update.uplink["labels"], update.uplink["means"], strict=True):
        assert torch.allclose(mean, logits[batch.labels == label].mean(dim=0), atol=1e-6)


@pytest.mark.equation("fedgh")
def test_fedghs_server_takes_one_step_per_pair_in_order():
    method = create("fedgh", {"server_lr": 0.5}, 2)
    server = ServerState({"fresh": {"head.weight": torch.zeros(2, 2), "head.bias": torch.zeros(2)}})
    assert not method.downlink(server, 0)
    pairs = [([1.0, 0.0], 0), ([0.0, 2.0], 1), ([1.0, 1.0], 0)]
    uplinks = {1: means([0], [pairs[2][0]]), 0: means([0, 1], [pairs[0][0], pairs[1][0]])}
    after = method.aggregate(server, Uplinks.of(uplinks), Draws(0))
    weight, bias = torch.zeros(2, 2), torch.zeros(2)
    for x, y in pairs:
        x = torch.tensor(x)
        gradient = torch.softmax(weight @ x + bias, dim=0) - F.one_hot(torch.tensor(y), 2)
        weight, bias = weight - 0.5 * torch.outer(gradient, x), bias - 0.5 * gradient
    assert torch.allclose(after["head.weight"], weight, atol=1e-6)
    assert torch.allclose(after["head.bias"], bias, atol=1e-6)
    assert set(method.downlink(after, 0)) == {"head.weight", "head.bias"}


def test_fedgh_clips_the_servers_gradient():
    method = create("fedgh", {"server_lr": 1.0, "clip": 0.1}, 2)
    server = ServerState({"fresh": {"head.weight": torch.zeros(2, 2), "head.bias": torch.zeros(2)}})
    after = method.aggregate(server, Uplinks.of({0: means([0], [[100.0, 0.0]])}), Draws(0))
    assert torch.cat([t.flatten() for t in after.values()]).norm().item() == pytest.approx(0.1, rel=1e-4)
    free = create("fedgh", {"server_lr": 1.0, "clip": None}, 2)
    moved = free.aggregate(server, Uplinks.of({0: means([0], [[100.0, 0.0]])}), Draws(0))["head.weight"]
    assert torch.allclose(moved, torch.tensor([[50.0, 0.0], [-50.0, 0.0]]))


def test_fedghs_server_shuffles_in_every_epoch_and_keeps_the_last_batch():
    """Against torch's own optimiser on the orders that the run's key gives."""
    settings = {"server_lr": 0.1, "server_batch": 2, "server_epochs": 3, "server_shuffle": True, "clip": None}
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    uplinks = {0: means([0, 1], rows[:2].tolist()), 1: means([0, 1, 2], rows[2:].tolist())}
    server = ServerState({"fresh": {"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}})
    draws, labels = Draws(0, round=2), torch.tensor([0, 1, 0, 1, 2])
    after = create("fedgh", settings, 3).aggregate(server, Uplinks.of(uplinks), draws)
    head = torch.nn.Linear(4, 3)
    head.load_state_dict({name.removeprefix("fresh/head."): tensor for name, tensor in server.items()})
    optimiser = torch.optim.SGD(head.parameters(), 0.1)
    orders = [torch.randperm(5, generator=draws.generator("server batches", -1, epoch)) for epoch in range(3)]
    assert len({tuple(order.tolist()) for order in orders}) == 3
    for batch in (part for order in orders for part in order.split(2)):
        optimiser.zero_grad()
        F.cross_entropy(head(rows[batch]), labels[batch]).backward()
        optimiser.step()
    assert torch.allclose(after["head.weight"], head.weight, atol=1e-6)
    assert torch.allclose(after["head.bias"], head.bias, atol=1e-6)
    other = create("fedgh", settings, 3).aggregate(server, Uplinks.of(uplinks), Draws(1, round=2))
    assert not torch.allclose(other["head.weight"], after["head.weight"], atol=1e-4)


def test_fedgh_clients_start_with_the_servers_head_and_are_tested_with_their_own(toy_engine):
    engine = toy_engine("fedgh", embedding=16)
    state, lines = run(engine)
    down = engine.method.downlink(state.server, 0)
    adopted = engine.method.adopt(state.clients[0].params, down)
    assert adopted["head.weight"] is down["head.weight"]
    assert not torch.equal(state.clients[0].params["head.weight"], down["head.weight"])
    present = [int((client.class_counts > 0).sum()) for client in engine.federation.clients]
    assert lines[2].up.elements == sum(present) * (16 + 1)
    assert lines[2].down.elements == 3 * (3 * 16 + 3)
    assert lines[1].down.elements == 0


@pytest.mark.parametrize("tests", ["client", "global"])
def test_fedgh_is_tested_with_the_clients_head_or_the_servers(toy_engine, tests):
    """With a server whose head always says class 2."""
    engine = toy_engine("fedgh", embedding=16, tests=tests)
    state, _ = run(engine)
    head = {"head.weight": torch.zeros(3, 16), "head.bias": torch.tensor([0.0, 0.0, 1.0])}
    told = State(state.round, state.server | head, state.clients)
    shares = accuracies(engine, told, Draws(0).at(2)).accuracy
    own = accuracies(engine, state, Draws(0).at(2)).accuracy
    constant = [float((data.test_images.labels[data.test] == 2).double().mean()) for data in engine.federation.data]
    assert (shares == constant) == (tests == "global") and (shares == own) == (tests == "client")


def test_fedtgps_margin_is_the_largest_distance_to_a_nearest_neighbour():
    centres = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 10.0]])
    widest = (109**0.5, 10.0)
    for margin, expected in {"adaptive": widest[1], "all-pairs": widest[0], "fixed": 100.0, "none": 0.0}.items():
        assert margin_of(centres, margin, 100.0).item() == pytest.approx(expected)
    assert margin_of(centres, "adaptive", 7.0).item() == 7
    for margin in ("adaptive", "all-pairs"):
        assert margin_of(centres[:1], margin, 100.0).item() == 100


def test_fedtgps_margin_far_from_the_origin():
    """More than 25 centres, 1e8 away from the origin and 1 apart."""
    centres = torch.arange(30, dtype=torch.float64)[:, None] + 1e8
    for margin, expected in {"adaptive": 1.0, "all-pairs": 29.0}.items():
        assert margin_of(centres, margin, 100.0).item() == expected


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_fedkd_refuses_fmls_weights(name):
    create("fedkd", {name: 0.5}, 3)
    with pytest.raises(HetflError, match=f"^fedkd: settings.{name}: 0.4 is FML's, and FedKD's losses have no such"):
        create("fedkd", {name: 0.4}, 3)


def test_fedkds_share_of_the_energy_does_not_fall_over_the_rounds():
    with pytest.raises(HetflError, match="energy_end: 0.9 should not be below energy_start, which is 0.98"):
        create("fedkd", {"energy_start": 0.98, "energy_end": 0.9}, 3)


def test_fedtgp_refuses_weights():
    """They would change the margin's centres and nothing that the server learns, and the paper does without them."""
    with pytest.raises(HetflError, match="^fedtgp: settings.average: 'weighted' should be 'plain'$"):
        create("fedtgp", {"average": "weighted"}, 3)


@pytest.mark.equation("fedtgp")
def test_fedtgps_server_follows_the_equations():
    """Against a float64 reference written from Eq. 5-8 with one full batch per epoch."""
    method = create("fedtgp", {"server_epochs": 3, "server_batch": 100, "server_lr": 0.05, "margin_cap": 2.0}, 3)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    net = {
        "vectors.weight": normal(3, 4),
        "enter.weight": normal(4, 4),
        "enter.bias": normal(4),
        "leave.weight": normal(4, 4),
        "leave.bias": normal(4),
    }
    uplinks = {
        0: Message({"means": normal(2, 4), "labels": torch.tensor([0, 1], dtype=torch.int32)}),
        2: Message({"means": normal(2, 4), "labels": torch.tensor([1, 2], dtype=torch.int32)}),
    }
    after = method.aggregate(ServerState({"net": net}), Uplinks.of(uplinks), Draws(0).at(1))

    prototypes = torch.cat([uplinks[0]["means"], uplinks[2]["means"]])
    labels = [0, 1, 1, 2]
    centres = torch.stack([prototypes[0], (prototypes[1] + prototypes[2]) / 2, prototypes[3]])
    gaps = [min((centres[c] - centres[o]).norm().item() for o in range(3) if o != c) for c in range(3)]
    delta = min(max(gaps), 2.0)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in net.items()}
    for _ in range(3):
        hidden = torch.relu(leaves["vectors.weight"] @ leaves["enter.weight"].T + leaves["enter.bias"])
        made = hidden @ leaves["leave.weight"].T + leaves["leave.bias"]
        loss = 0.0
        for prototype, label in zip(prototypes, labels, strict=True):
            scores = torch.stack([-((prototype - made[c]).norm() + delta * (c == label)) for c in range(3)])
            loss = loss - torch.log(torch.exp(scores[label]) / torch.exp(scores).sum()) / len(labels)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        leaves = {
            n: (t - 0.05 * g).detach().requires_grad_() for (n, t), g in zip(leaves.items(), gradients, strict=True)
        }
    for name, tensor in leaves.items():
        assert torch.allclose(after[f"net/{name}"], tensor, atol=1e-12), name
    assert torch.allclose(after["means"], emit({n: t.detach() for n, t in leaves.items()}))
    assert after["margin"].item() == pytest.approx(delta)


def test_fedtgps_ablations():
    prototypes, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    emitted = torch.randn(3, 4)
    plain = F.cross_entropy(-torch.cdist(prototypes, emitted), labels)
    assert torch.allclose(contrastive_loss(prototypes, labels, emitted, torch.tensor(0.0)), plain, atol=1e-5)
    without = create("fedtgp", {"network": False}, 3)
    assert torch.equal(emit({"vectors.weight": emitted}), emitted)
    assert without.settings.network is False
    # A prototype that lies on an emitted one still has a gradient.
    at = emitted.clone().requires_grad_()
    contrastive_loss(emitted, torch.tensor([0, 1, 2]), at, torch.tensor(1.0)).backward()
    assert torch.isfinite(at.grad).all()


def test_what_fills_a_batch_of_fedtgps_server_does_not_count():
    generator = torch.Generator().manual_seed(0)
    prototypes, emitted = (torch.randn(size, 4, generator=generator) for size in (5, 3))
    labels, margin = torch.tensor([0, 1, 2, 0, 1]), torch.tensor(1.0)
    orders = torch.stack([torch.randperm(5, generator=generator) for _ in range(2)])
    plain, filled = ([*batches_of(orders, 4, fill)] for fill in (False, True))
    assert {len(batch["rows"]) for batch in filled} == {4}

    def losses(batches):
        told = [(prototypes[batch["rows"]], labels[batch["rows"]], batch.get("weight")) for batch in batches]
        return torch.stack([contrastive_loss(means, of, emitted, margin, weight) for means, of, weight in told])

    torch.testing.assert_close(losses(filled), losses(plain))


def test_fedtgp_emits_every_class(toy_engine):
    engine = toy_engine("fedtgp", embedding=16, server_epochs=2)
    _, lines = run(engine)
    assert lines[1].down.elements == 0
    assert lines[2].down.elements == 3 * 3 * (16 + 1)
    assert set(lines[1].diagnostics) == {"margin", "loss"}


def test_fedmds_objectives_count_public_classes_first():
    method = create("fedmd", {}, 2, 3)
    public, own, digest, revisit = *method.phases(0), *method.phases(1)
    assert [phase.data for phase in (public, own, digest, revisit)] == ["public", "own", "alignment", "own"]
    params = {"head.weight": torch.randn(5, 2), "head.bias": torch.randn(5)}
    images = torch.randn(4, 2)
    logits = Linear()(params, images).logits
    labels = torch.tensor([0, 1, 1, 0])
    batch = Batch(images, labels, rows=torch.tensor([3, 0, 2, 1]))
    received = {"logits": torch.randn(4, 5)}

    def value(phase):
        return method.objective(Linear(), params, batch, received, phase)

    assert torch.allclose(value(public), F.cross_entropy(logits, labels))
    assert torch.allclose(value(revisit), F.cross_entropy(logits, labels + 3))
    assert torch.allclose(value(digest), (logits - received["logits"][[3, 0, 2, 1]]).abs().mean())
    predicted = method.predict(Linear(), params, batch, {})
    assert torch.equal(predicted, torch.cat([logits[:, 3:], logits[:, :3]], dim=1))


def test_fedmd_aligns_on_the_samples_it_was_told(toy_engine):
    """What a client uploads are its logits of the next round's alignment set, in its order."""
    settings = {"alignment_samples": 12, "public_epochs": 1, "private_epochs": 1, "local_epochs": 1}
    engine = toy_engine("fedmd", **settings)
    state, line = start(engine, Draws(0))
    assert line.up.elements == 3 * 12 * (3 + 2 + 1)
    assert len(line.accuracy) == 3
    data, client = engine.federation.data[1], engine.federation.clients[1]
    order = engine.method.alignment(data.public_images.labels, Draws(0).at(1))
    assert sorted(data.public_images.labels[order].tolist()) == [0] * 6 + [1] * 6
    logits = [
        engine.federation.clients[k].model(state.clients[k].params, data.public_images.batch(order).images).logits
        for k in range(3)
    ]
    assert torch.allclose(engine.method.downlink(state.server, 1)["logits"], torch.stack(logits).mean(0), atol=1e-5)
    _, line = play_round(engine, state, Draws(0).at(1))
    assert line.up.elements == 3 * 12 * 6
    assert line.down.elements == 3 * 12 * 5
    assert client.model(state.clients[1].params, data.public_images.batch(order).images).logits.shape == (12, 5)


def test_fedmds_alignment_set_is_stratified_by_class():
    """In proportion to the public samples of a class, as far as whole samples go; uniform, it is not."""
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20 + [4] * 3)[torch.randperm(103)]

    def drawn(seed: int, **settings):
        return create("fedmd", {"alignment_samples": 20, **settings}, 2, 5).alignment(labels, Draws(seed, 3))

    def counts(order):
        return torch.bincount(labels[order], minlength=5).tolist()

    for seed in range(5):
        order = drawn(seed)
        # Quotas 9.71, 5.83, 3.88, 0 and 0.58: the two largest remainders of four get the two samples that are left.
        assert len(order.unique()) == 20 and counts(order) == [10, 6, 4, 0, 0]
        assert torch.equal(order, drawn(seed)) and not torch.equal(order, order.sort().values)
    assert not torch.equal(drawn(0), drawn(1))
    assert len({tuple(counts(drawn(seed, alignment_draw="uniform"))) for seed in range(5)}) > 1
    assert sorted(drawn(0, alignment_samples=500).tolist()) == list(range(103))
    halves = create("fedmd", {"alignment_samples": 3}, 2, 2)
    pair = torch.tensor([0, 1] * 10)
    # Where remainders are equal, chance decides.
    assert {int(pair[halves.alignment(pair, Draws(seed))].sum()) for seed in range(20)} == {1, 2}


def test_fedmd_counts_public_predictions_as_mistakes(toy_engine):
    engine = toy_engine("fedmd", alignment_samples=4, public_epochs=0, private_epochs=0, local_epochs=1)
    state, _ = start(engine, Draws(0))
    params = dict(state.clients[0].params)
    params["head.weight"] = torch.zeros_like(params["head.weight"])
    params["head.bias"] = torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0])  # a public class always wins
    for own in state.clients.values():
        own.params |= params
    matrices = confusions(engine, state, Draws(0).at(0))
    assert matrices.shape == (3, 3, 6)  # the last one for scores that are not finite
    assert matrices[0].sum() == matrices[0, :, 4].sum() == 30


def fedgen_server(method, width=4, classes=3):
    generator = torch.Generator().manual_seed(1)
    noise, hidden = method.settings.noise, width
    net = {
        "enter.weight": torch.randn(hidden, noise + classes, generator=generator),
        "enter.bias": torch.zeros(hidden),
        "norm.weight": torch.ones(hidden),
        "norm.bias": torch.zeros(hidden),
        "leave.weight": torch.randn(width, hidden, generator=generator),
        "leave.bias": torch.zeros(width),
    }
    return ServerState({"samples": torch.tensor([10, 30], dtype=torch.int32), "generator": net})


def head_message(weight, labels):
    return Message({"head.weight": weight, "head.bias": torch.zeros(3), "labels": torch.tensor(labels).int()})


def test_fedgen_trains_on_a_batch_of_one_sample(toy_engine):
    """Its generator's batch has statistics, and so more samples."""
    engine = toy_engine("fedgen", "homogeneous", batch_size=14)  # the clients have 15, 19 and 26 samples
    state, _ = start(engine, Draws(0))
    for round in (1, 2):
        state, line = play_round(engine, state, Draws(0).at(round))
    assert None not in line.loss
    drawn = engine.method.drawn(engine.method.downlink(state.server, 0), 1, 7)
    assert [len(tensor) for tensor in drawn.values()] == [1, 1]
    assert drawn["features"].abs().sum() > 0


def test_fedgens_server_learns_features_its_clients_heads_recognise():
    method = create("fedgen", {"noise": 4, "server_steps": 200, "server_lr": 0.02}, 3)
    uplinks = {
        0: head_message(torch.eye(3, 4), [0] * 10),
        1: head_message(2 * torch.eye(3, 4), [1] * 15 + [2] * 15),
    }
    before = fedgen_server(method)
    after = method.aggregate(before, Uplinks.of(uplinks), Draws(0).at(1))
    # Heads by samples: (10 * 1 + 30 * 2) / 40.
    assert torch.allclose(after["head.weight"], 1.75 * torch.eye(3, 4))
    assert sorted(after["labels"].tolist()) == [0] * 10 + [1] * 15 + [2] * 15

    def loss(server):
        features, labels = generate(server.group("generator"), after, 256, seed=5, num_classes=3)
        return F.cross_entropy(F.linear(features, after["head.weight"], after["head.bias"]), labels).item()

    assert loss(after) < 0.2 < loss(before)
    again = method.aggregate(after, Uplinks.of(uplinks), Draws(0).at(2))
    assert again["adam/leave.weight/step"].item() == 400  # Adam goes on where it was


@pytest.mark.equation("fedgen")
def test_fedgens_clients_train_their_head_on_generated_features():
    method = create("fedgen", {"noise": 4}, 3)
    server = fedgen_server(method) | {"head.weight": torch.eye(3, 4), "head.bias": torch.zeros(3)}
    server |= {"labels": torch.tensor([0, 1, 2, 2], dtype=torch.int32)}
    received = method.receive(method.downlink(server, 0), {})
    assert set(received) == {n for n in server if n.startswith(("generator/", "head."))} | {"labels"}
    params = {"head.weight": torch.randn(3, 4, requires_grad=True), "head.bias": torch.zeros(3)}
    batch = Batch(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    phase = method.phases(1)[0]
    drawn = replace(batch, drawn=method.drawn(received, 6, 7))
    with_generator = method.objective(Linear(), params, drawn, received, phase)
    features, labels = generate(group(received, "generator"), received, 6, seed=7, num_classes=3)
    expected = method.objective(Linear(), params, batch, {}, phase) + F.cross_entropy(
        F.linear(features, params["head.weight"], params["head.bias"]), labels
    )
    assert torch.allclose(with_generator, expected)
    assert not method.downlink(ServerState(without(server, "head.weight")), 0)


def test_fedgens_messages_are_the_papers(toy_engine):
    engine = toy_engine("fedgen", embedding=16, noise=4, server_steps=2)
    _, lines = run(engine)
    head, generator = 3 * 16 + 3, (4 + 3) * 16 + 16 + 2 * 16 + 16 * 16 + 16
    assert lines[1].up.elements == 3 * head + 60
    assert lines[2].down.elements == 3 * (head + generator + 60)


@pytest.mark.parametrize(
    "method", ["fedgen", "fedgh", "fedproto", "fedtgp", "fedmd", "fedhe", "lg-fedavg", "fml", "fedkd"]
)
def test_running_statistics_stay_with_their_client(toy_engine, method):
    engine = toy_engine(method, "resnets")
    state, _ = run(engine, 1)
    model = engine.federation.clients[0].model
    buffers = model.names(["buffers"])
    assert buffers
    fresh = model.init(Draws(0), 0)
    assert any(not torch.equal(state.clients[0].params[name], fresh[name]) for name in buffers)
    for server in (state.server,):
        assert not any("running" in name for name in server)
