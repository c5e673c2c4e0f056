"""SCAFFOLD, FedBABU, FedRep, pFedPT, pFedPG: their equations on small numbers, what moves and what does not."""

from __future__ import annotations

import pytest
import torch
from playing import downlinks, play_fine_tuning, play_round, start, train

from hetfl.data.partitions import Partition
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message, ServerState
from hetfl.methods import create
from hetfl.methods.base import Client, Statistics, Uplinks, Work
from hetfl.methods.pfedpg import generate
from hetfl.models import build
from hetfl.optimisers import SGD
from hetfl.training.engine import Task


def run(engine, rounds: int = 3):
    state, _ = start(engine, Draws(0))
    for round in range(1, rounds + 1):
        state, line = play_round(engine, state, Draws(0).at(round))
    return state, line


def updates(engine, state, round: int):
    return train(engine, downlinks(engine, state), Draws(0).at(round), state.clients)


def test_scaffolds_first_round_is_fedavgs_up_to_the_weights(toy_engine):
    """All control variates are zero, so every client ends where FedAvg's does, however many steps it takes."""
    plain = {"momentum": 0.0}
    scaffold, fedavg = toy_engine("scaffold", **plain), toy_engine("fedavg", **plain)
    (start_s, _), (start_a, _) = start(scaffold, Draws(0)), start(fedavg, Draws(0))
    for one, other in zip(updates(scaffold, start_s, 1), updates(fedavg, start_a, 1), strict=True):
        for name, tensor in other.uplink.items():
            before = start_a.server[f"model/{name}"]
            assert torch.allclose(before + one.uplink[name], tensor, atol=1e-6), name


def test_scaffold_with_one_step_and_equal_clients_is_fedavg(toy_engine, toy_partition):
    """One full-batch step: the mean of equally large clients' models, controls zero."""
    partition = Partition(tuple(part[:15] for part in toy_partition.train), None)
    settings = {"momentum": 0.0, "batch_size": 15, "partition": partition}
    (scaffold, _), (fedavg, _) = (run(toy_engine(name, **settings), 1) for name in ("scaffold", "fedavg"))
    for name, tensor in fedavg.server.items():
        assert torch.allclose(scaffold.server[name], tensor, atol=1e-6), name


@pytest.mark.equation("scaffold")
def test_scaffolds_controls_are_mean_gradients(toy_engine):
    """After the first round c_k is the mean gradient of the client's steps, and c their mean."""
    engine = toy_engine("scaffold", "homogeneous", torch.float64, weight_decay=0.0)
    state, _ = start(engine, Draws(0))
    done = updates(engine, state, 1)
    after, _ = play_round(engine, state, Draws(0).at(1))
    name = "head.bias"
    own = [update.state.memory[f"own/{name}"] for update in done]
    for update, control in zip(done, own, strict=True):
        steps = -(-len(engine.federation.data[update.client].train) // 8)
        assert torch.allclose(control, -update.uplink[name] / (steps * 0.01))
    assert torch.allclose(after.server[f"control/{name}"], torch.stack(own).mean(dim=0))
    # Full participation and zeros at the start: the clients' controls keep adding up to K times the server's.
    for round in (2, 3):
        after, _ = play_round(engine, after, Draws(0).at(round))
        total = sum(after.clients[k].memory[f"own/{name}"] for k in range(3))
        assert torch.allclose(total, 3 * after.server[f"control/{name}"])


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_scaffolds_controls_of_a_constant_gradient_are_that_gradient(momentum):
    """However few steps there are: velocity needs many of them to reach 1 / (1 - m)."""
    method = create("scaffold", {"momentum": momentum, "lr": 0.1, "optimiser": "sgd"}, 2)
    model = build("linear", 2, method.model_options())
    received, gradient = {}, {}
    for name in model.names(method.shares()):
        zeros = torch.zeros(3, dtype=torch.float64)
        received |= {f"control/{name}": zeros, f"own/{name}": zeros}
        gradient[name] = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    leaf = torch.zeros(3, dtype=torch.float64)
    optimiser = SGD([leaf], lr=0.1, momentum=momentum)
    leaf.grad = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for steps in range(1, 6):
        optimiser.step()
        client = Client(0, model, torch.tensor([1, 1]))
        before, after = dict.fromkeys(gradient, torch.zeros_like(leaf)), dict.fromkeys(gradient, leaf)
        work = Work(client, Draws(0, round=1), received, before, after, Statistics(), steps)
        for name, control in method.remember(work).items():
            assert torch.allclose(control, gradient[name.removeprefix("own/")], rtol=1e-12), steps


def test_scaffold_keeps_no_momentum_between_rounds():
    create("scaffold", {"keep_optimiser": True}, 2)
    with pytest.raises(HetflError, match="scaffold: settings.keep_optimiser: True needs momentum 0"):
        create("scaffold", {"keep_optimiser": True, "momentum": 0.9}, 2)


def test_scaffolds_control_of_a_single_step_is_its_gradient_with_momentum_too(toy_engine):
    settings = {"batch_size": 64, "weight_decay": 0.0}
    plain, heavy = (
        updates(engine, start(engine, Draws(0))[0], 1)
        for engine in (toy_engine("scaffold", dtype=torch.float64, momentum=m, **settings) for m in (0.0, 0.9))
    )
    for one, other in zip(plain, heavy, strict=True):
        for name, tensor in one.state.memory.items():
            assert torch.allclose(other.state.memory[name], tensor, atol=1e-12), name


@pytest.mark.equation("scaffold")
def test_scaffold_corrects_the_gradient(toy_engine):
    """One plain SGD step: y = W - lr (g - c_k + c)."""
    engine = toy_engine("scaffold", "homogeneous", torch.float64, batch_size=64, weight_decay=0.0)
    state, _ = run(engine, 1)
    name, client = "head.weight", engine.federation.clients[0]
    down = engine.method.downlink(state.server, 0)
    params = {n: t.clone().requires_grad_() for n, t in down.items() if not n.startswith("control/")}
    data = engine.federation.data[0]
    batch = data.train_images.batch(data.train)
    loss = torch.nn.functional.cross_entropy(client.model(params, batch.images).logits, batch.labels)
    (gradient,) = torch.autograd.grad(loss, [params[name]])
    update = updates(engine, state, 2)[0]
    corrected = gradient - state.clients[0].memory[f"own/{name}"] + down[f"control/{name}"]
    assert torch.allclose(update.uplink[name], -0.01 * corrected, atol=1e-12)


def test_scaffold_sends_twice_as_much(toy_engine):
    (_, scaffold), (_, fedavg) = run(toy_engine("scaffold"), 1), run(toy_engine("fedavg"), 1)
    for way in ("up", "down"):
        assert getattr(scaffold, way).elements == 2 * getattr(fedavg, way).elements


def test_fedbabus_head_stands_still_until_fine_tuning(toy_engine):
    engine = toy_engine("fedbabu", finetune_epochs=2)
    model = engine.federation.clients[0].model
    head = {name: model.init(Draws(0), -1)[name] for name in model.names(["head"])}
    state, line = run(engine)
    for k in range(3):
        assert set(state.clients[k].params) == set(head)
        assert all(torch.equal(state.clients[k].params[name], head[name]) for name in head)
    body = sum(state.server[f"model/{name}"].numel() for name in model.names(["body"]))
    assert line.up.elements == line.down.elements == 3 * body
    assert not any(name.startswith("model/head") for name in state.server)
    final, line = play_fine_tuning(engine, state, Draws(0).at(4))
    assert line.fine_tuning and line.up.elements == 0 and line.down.elements == 3 * body
    for k in range(3):
        tuned = final.clients[k].params
        assert not torch.equal(tuned["head.weight"], head["head.weight"])
        assert any(not torch.equal(tuned[n], state.server[f"model/{n}"]) for n in model.names(["body"]))
    assert final.server.keys() == state.server.keys()
    assert all(torch.equal(final.server[name], state.server[name]) for name in state.server)


def test_fedreps_phases_freeze_what_they_say(toy_engine):
    engine = toy_engine("fedrep")
    state, _ = run(engine, 1)
    body = {name.removeprefix("model/") for name in state.server if name.startswith("model/")}
    assert body == set(engine.federation.clients[0].model.names(["body"]))
    head, rest = engine.method.phases(2)
    assert (head.trains, rest.trains) == (("head",), ("body",))
    task = Task(0, engine.method.downlink(state.server, 0))
    for phase, moving in ((head, "head"), (rest, "body")):
        engine.restore(state.clients)
        (one,) = engine.trainer.train([engine.begin(task, Draws(0).at(2))], [phase], Draws(0).at(2))
        after, params = one.params, {**task.downlink, **state.clients[0].params}
        moved = {name.split(".")[0] for name in params if not torch.equal(after[name], params[name])}
        assert moved == {moving}
    final, _ = play_fine_tuning(engine, state, Draws(0).at(4))
    for k in range(3):
        tuned = final.clients[k].params
        assert all(torch.equal(tuned[name], state.server[f"model/{name}"]) for name in body)
        assert not torch.equal(tuned["head.weight"], state.clients[k].params["head.weight"])


@pytest.mark.parametrize(("settings", "first"), [({}, [-1, -1, -1]), ({"heads": "own"}, [0, 1, 2])])
def test_fedreps_clients_begin_with_one_head_or_each_with_its_own(toy_engine, settings, first):
    """Without epochs of the head, after a round that trained the body, it is the first one still."""
    engine = toy_engine("fedrep", head_epochs=0, **settings)
    state, _ = run(engine, 1)
    for k, drawn in enumerate(first):
        fresh = engine.federation.clients[k].model.init(Draws(0), drawn)
        assert state.clients[k].params.keys() == {"head.weight", "head.bias"}
        assert all(torch.equal(tensor, fresh[name]) for name, tensor in state.clients[k].params.items())


def test_pfedpt_keeps_its_border_and_is_tested_after_training(toy_engine):
    engine = toy_engine("pfedpt", prompt_length=2, prompt_epochs=1, local_epochs=1, drop_last=False)
    model = engine.federation.clients[0].model
    state, line = run(engine, 2)
    border = model.names(["prompts"])
    assert not any(f"model/{name}" in state.server for name in border)
    shared = sum(tensor.numel() for name, tensor in state.server.items() if name.startswith("model/"))
    assert line.up.elements == 3 * shared
    for k, other in ((0, 1), (1, 2)):
        mine, theirs = state.clients[k].params, state.clients[other].params
        assert any(not torch.equal(mine[name], theirs[name]) for name in border)
        assert any(not torch.equal(mine[name], state.server[f"model/{name}"]) for name in model.names(["body"]))


def test_pfedpgs_generator_has_the_papers_shapes_and_equation():
    torch.manual_seed(0)
    net = {
        "basis": torch.randn(10, 6),
        "descriptors": torch.randn(3, 6),
        "query.weight": torch.randn(4, 6),
        "key.weight": torch.randn(4, 6),
        "value.weight": torch.randn(4, 6),
        "leave.weight": torch.randn(6, 4),
        "leave.bias": torch.randn(6),
    }
    made = generate(net)
    for k in range(3):
        score = (net["descriptors"][k] @ net["query.weight"].T) @ (net["basis"] @ net["key.weight"].T).T / 2
        attended = torch.softmax(score, dim=0) @ (net["basis"] @ net["value.weight"].T)
        expected = net["basis"] + (net["leave.weight"] @ attended + net["leave.bias"])
        assert torch.allclose(made[k], expected, atol=1e-5)


def test_one_server_step_of_pfedpg_brings_its_prompts_nearer(toy_engine):
    engine = toy_engine("pfedpg", prompt_length=2, inner=8, batch_size=8, local_epochs=2, server_lr=0.01)
    state, _ = start(engine, Draws(0))
    uplinks = {update.client: update.uplink for update in updates(engine, state, 1)}
    before = generate(state.server)
    targets = torch.stack([before[k] + uplinks[k]["change"] for k in range(3)])
    after = generate(engine.method.aggregate(state.server, Uplinks.of(uplinks), Draws(0).at(1)))
    distance = [(prompts - targets).norm().item() for prompts in (before, after)]
    assert 0 < distance[1] < distance[0]


def test_pfedpg_clients_start_from_what_they_were_sent(toy_engine):
    engine = toy_engine("pfedpg", prompt_length=2, inner=8)
    state, line = run(engine, 1)
    width = engine.federation.clients[0].model.width
    assert line.up.elements == line.down.elements == 3 * 2 * width
    down = engine.method.downlink(state.server, 1)
    adopted = engine.method.adopt(state.clients[1].params, down)
    (name,) = engine.federation.clients[1].model.names(["prompts"])
    assert torch.equal(adopted[name].flatten(), down["prompts"].flatten())
    assert adopted["head.weight"] is state.clients[1].params["head.weight"]


@pytest.mark.parametrize("name", ["scaffold", "fedbabu", "fedrep", "pfedpt", "pfedpg"])
def test_one_architecture_for_all(name):
    assert not create(name, {}, 3).heterogeneous


def test_messages_of_scaffold_hold_model_and_control():
    method = create("scaffold", {}, 2)
    server = ServerState(
        {
            "samples": torch.tensor([1, 1, 1, 1], dtype=torch.int32),
            "model": {"w": torch.tensor([1.0])},
            "control": {"w": torch.tensor([0.5])},
        }
    )
    uplinks = {
        0: Message({"w": torch.tensor([2.0]), "control/w": torch.tensor([4.0])}),
        3: Message({"w": torch.tensor([4.0]), "control/w": torch.tensor([8.0])}),
    }
    after = method.aggregate(server, Uplinks.of(uplinks), Draws(0))
    assert after["model/w"].item() == 1 + 3  # mean over the two participants
    assert after["control/w"].item() == 0.5 + 12 / 4  # sum over all K = 4 clients
