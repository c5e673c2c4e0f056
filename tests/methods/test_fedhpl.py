"""FedHPL's equations on numbers worked by hand, its messages, and its equivalences."""

from __future__ import annotations

import pytest
import torch
from playing import downlinks, play_round, start, train

from hetfl.data.batches import Batch
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message, ServerState, Size
from hetfl.methods import create
from hetfl.methods.base import Uplinks
from hetfl.methods.parts.logit_distillation import dimension_weights, distillation_loss, global_logits
from hetfl.methods.parts.logit_uploads import class_logits
from hetfl.models.outline import outline
from hetfl.schema import Traffic
from hetfl.training.engine import Task

WIDTHS = torch.tensor([384, 768, 1024])
UPLOADS = {
    0: ([[4, 1, 0], [2, 0, 1], [0, 3, 1]], [0, 0, 1]),
    1: ([[5, 1, -1], [1, 4, 0]], [0, 1]),
    2: ([[6, 0, 0]], [0]),
}
LOCAL_COUNTS = torch.tensor([[3, 2, 1], [1, 2, 1], [2, 0, 3]])
G_UPLOADED = {
    0: [[2.774194, 0.387097, 0.129032], [0.2, 2, 0.4], [0, 0, 0]],
    1: [[3.333333, 0.4, -0.133333]],
    2: [[3.428571, 0.321429, -0.107143]],
}
G_LITERAL = [[2.047619, 0.285714, 0.095238], [0.125, 1.25, 0.25], [0, 0, 0]]


def raw(client: int) -> Message:
    logits, labels = UPLOADS[client]
    return Message({"logits": torch.tensor(logits).float(), "labels": torch.tensor(labels, dtype=torch.int32)})


def averaged(client: int) -> Message:
    sums, counts = class_logits(raw(client), 3)
    means = sums / counts.clamp(min=1)[:, None]
    return Message({"means": means.float(), "counts": counts.to(torch.int32)})


def server(**settings) -> tuple:
    method = create("fedhpl", settings, 3)
    state = ServerState({"width": WIDTHS[:, None].to(torch.int32), "class_counts": LOCAL_COUNTS.to(torch.int32)})
    return method, state


def close(actual: torch.Tensor, expected) -> bool:
    return torch.allclose(actual, torch.tensor(expected, dtype=actual.dtype), atol=1e-6)


def test_dimension_weights():
    expected = [[1, 0.5, 0.375], [0.5, 1, 0.75], [0.375, 0.75, 1]]
    assert close(dimension_weights(WIDTHS), expected)


@pytest.mark.equation("fedhpl")
@pytest.mark.parametrize("form", [raw, averaged])
def test_aggregation_with_uploaded_counts(form):
    method, state = server(upload="raw" if form is raw else "average")
    after = method.aggregate(state, Uplinks.of({k: form(k) for k in UPLOADS}), Draws(0))
    for client, rows in G_UPLOADED.items():
        assert close(after["logits"][client, : len(rows)], rows)
    assert after["valid"].tolist() == [True, True, False]
    assert close(after["logits"][:, 2], [[0, 0, 0]] * 3)


@pytest.mark.parametrize("form", [raw, averaged])
def test_aggregation_with_literal_counts(form):
    method, state = server(upload="raw" if form is raw else "average", denominator="samples")
    after = method.aggregate(state, Uplinks.of({k: form(k) for k in UPLOADS}), Draws(0))
    assert close(after["logits"][0], G_LITERAL)


def test_averaged_upload_gives_the_same_teacher_as_raw():
    """Eq. 36 rewrites Eq. 8."""
    (raw_method, state), (average_method, _) = server(), server(upload="average")
    first = raw_method.aggregate(state, Uplinks.of({k: raw(k) for k in UPLOADS}), Draws(0))["logits"]
    second = average_method.aggregate(state, Uplinks.of({k: averaged(k) for k in UPLOADS}), Draws(0))["logits"]
    assert torch.allclose(first, second, rtol=1e-6)


def test_average_aggregation_is_weighted_aggregation_at_equal_widths():
    sums, counts = (torch.stack(t) for t in zip(*(class_logits(raw(k), 3) for k in UPLOADS), strict=True))
    equal = dimension_weights(torch.tensor([768, 768, 768]))
    assert torch.equal(equal, torch.ones(3, 3).double())
    same = global_logits(sums, counts, equal)
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])


@pytest.mark.equation("fedhpl")
def test_distillation_loss_and_its_gradient():
    teacher = {"logits": torch.tensor([G_UPLOADED[0][0]] * 3), "valid": torch.tensor([True, True, False])}
    student = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    loss = distillation_loss(student, torch.tensor([0]), teacher, 4.5)
    assert loss.item() == pytest.approx(0.0526997, abs=1e-6)
    assert 4.5**2 * loss.item() == pytest.approx(1.0671680, abs=1e-5)
    loss.sum().backward()
    assert close(student.grad[0], [-0.032966, 0.027296, 0.005670])


def test_a_class_without_teacher_adds_nothing():
    """Appendix C.4: zero loss, zero gradient, while the batch keeps its size."""
    received = {"logits": torch.zeros(3, 3), "valid": torch.tensor([True, True, False])}
    student = torch.randn(4, 3, requires_grad=True)
    labels = torch.tensor([2, 0, 2, 1])
    loss = distillation_loss(student, labels, received, 4.5)
    assert loss[[0, 2]].tolist() == [0, 0]
    Batch(torch.empty(4, 0), labels).mean(loss).backward()
    assert torch.all(student.grad[[0, 2]] == 0)
    assert torch.all(torch.isfinite(student.grad))
    assert student.grad[[1, 3]].abs().sum() > 0


def test_squared_temperature_scales_the_distillation_term(toy_engine):
    plain, scaled = toy_engine("fedhpl"), toy_engine("fedhpl", squared_temperature=True)
    model = plain.federation.clients[0].model
    params = model.init(Draws(0), 0)
    batch = plain.federation.data[0].train_images.batch(torch.arange(6))
    received = {"logits": torch.randn(3, 3), "valid": torch.ones(3, dtype=torch.bool)}
    ce = plain.method.objective(model, params, batch, {}, None)
    kd = plain.method.objective(model, params, batch, received, None) - ce
    assert torch.allclose(scaled.method.objective(model, params, batch, received, None) - ce, kd * 4.5**2, rtol=1e-4)


def uplinks(engine, round: int = 1) -> dict[int, Message]:
    draws = Draws(0)
    state, _ = start(engine, draws)
    for played in range(1, round):
        state, _ = play_round(engine, state, draws.at(played))
    done = train(engine, downlinks(engine, state), draws.at(round), state.clients)
    return {update.client: update.uplink for update in done}


@pytest.mark.parametrize("round", [1, 3])
@pytest.mark.parametrize("group", ["homogeneous", "heterogeneous"])
def test_table_9_message_sizes(toy_engine, group, round):
    """Raw: (n_c + 1) elements per uploaded logit. Averaged: n_c^2 + n_c. Down: n_c^2 + n_c."""
    raws = uplinks(toy_engine("fedhpl", group), round)
    for message in raws.values():
        kept = len(message["labels"])
        assert message.size == Size((3 + 1) * kept, 4 * (3 + 1) * kept)
    averages = uplinks(toy_engine("fedhpl", group, upload="average"), round)
    for message in averages.values():
        assert message.size == Size(3 * 3 + 3, 4 * (3 * 3 + 3))
    engine = toy_engine("fedhpl", group)
    state, first = start(engine, Draws(0))
    assert first.up == Traffic(elements=3, bytes=12)  # the widths, once
    state, first = play_round(engine, state, Draws(0).at(1))
    assert first.down == Traffic(elements=0, bytes=0)
    _, second = play_round(engine, state, Draws(0).at(2))
    assert second.down == Traffic(elements=3 * (9 + 3), bytes=3 * (4 * 9 + 3))


def test_upload_holds_the_correctly_classified_samples_only(toy_engine):
    everything = uplinks(toy_engine("fedhpl", selection="all"))
    correct = uplinks(toy_engine("fedhpl"))
    for client, message in everything.items():
        assert len(message["labels"]) == [15, 19, 26][client]
        right = message["logits"].argmax(dim=1) == message["labels"]
        assert torch.equal(correct[client]["logits"], message["logits"][right])
        assert torch.equal(correct[client]["labels"], message["labels"][right])


@pytest.mark.parametrize("group", ["homogeneous", "heterogeneous"])
def test_gamma_zero_is_local(toy_engine, group):
    draws = Draws(0)
    runs = []
    for settings in ({"gamma": 0}, {"communicate": False}):
        engine = toy_engine("fedhpl", group, **settings)
        state, _ = start(engine, draws)
        for round in (1, 2, 3):
            state, line = play_round(engine, state, draws.at(round))
        runs.append((state, line))
    (zero, zero_line), (local, local_line) = runs
    assert zero_line.accuracy == local_line.accuracy
    for k in range(3):
        assert all(
            torch.equal(zero.clients[k].params[n], local.clients[k].params[n]) for n in local.clients[k].params
        )
    assert local_line.up == local_line.down == Traffic(elements=0, bytes=0)


def test_homogeneous_clients_receive_the_same_teacher(toy_engine):
    engine = toy_engine("fedhpl")
    state, _ = start(engine, Draws(0))
    state, _ = play_round(engine, state, Draws(0).at(1))
    logits = state.server["logits"]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("share", ["prompts", "head"])
def test_sharing_changes_nothing_where_every_client_is_alone_with_its_width(toy_engine, share):
    """ViT-L alone keeps its own: with three different widths +P and +H are plain FedHPL."""
    accuracies = []
    for settings in ({"share": share}, {}):
        engine = toy_engine("fedhpl", "heterogeneous", **settings)
        state, _ = start(engine, Draws(0))
        for round in (1, 2, 3):
            state, line = play_round(engine, state, Draws(0).at(round))
        accuracies.append((line.accuracy, line.loss))
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize("share", ["prompts", "head"])
def test_sharing_with_one_client_changes_nothing(toy_engine, toy_partition, share):
    from hetfl.data.partitions import Partition

    accuracies = []
    for settings in ({"share": share}, {}):
        engine = toy_engine("fedhpl", partition=Partition(toy_partition.train[2:], None), **settings)
        state, _ = start(engine, Draws(0))
        for round in (1, 2, 3):
            state, line = play_round(engine, state, Draws(0).at(round))
        accuracies.append((line.accuracy, line.loss))
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize(("share", "names"), [("prompts", {"prompts"}), ("head", {"head.weight", "head.bias"})])
def test_sharing_averages_by_samples_and_drops_momentum(toy_engine, share, names):
    engine = toy_engine("fedhpl", share=share)
    sent = uplinks(engine)
    state, _ = start(engine, Draws(0))
    assert state.server["samples"].squeeze(1).tolist() == [15, 19, 26]
    state, line = play_round(engine, state, Draws(0).at(1))
    down = engine.method.downlink(state.server, 1)
    for name in names:
        mean = (15 * sent[0][name] + 19 * sent[1][name] + 26 * sent[2][name]) / 60
        assert torch.allclose(down[name], mean, atol=1e-6)
    assert set(down) == {"logits", "valid"} | names
    parameters = sum(down[name].numel() for name in names)
    kept = sum(len(message["labels"]) for message in sent.values())
    assert line.up.elements == 4 * kept + 3 * parameters
    # What was overwritten starts the next round without momentum, the rest goes on with it.
    params = state.clients[1].params
    adopted = engine.method.adopt(params, engine.method.receive(down, {}))
    assert {name for name in params if adopted[name] is not params[name]} == names
    engine.restore(state.clients)
    run = engine.begin(Task(1, down), Draws(0).at(2))
    assert {slot.split("/")[1] for slot in run.slots} == set(params) - names


def test_prompt_dropout_changes_training_and_nothing_else(toy_engine):
    """Draws are keyed, so a run has them again; uploads are those of the whole prompts."""

    def play(**settings):
        engine = toy_engine("fedhpl", **settings)
        state, _ = start(engine, Draws(0))
        return engine, *play_round(engine, state, Draws(0).at(1))

    (_, plain, _), (engine, dropping, line), (_, again, _) = (
        play(),
        play(prompt_dropout=0.5),
        play(prompt_dropout=0.5),
    )
    for k in range(3):
        assert torch.equal(dropping.clients[k].params["prompts"], again.clients[k].params["prompts"])
        assert not torch.equal(dropping.clients[k].params["prompts"], plain.clients[k].params["prompts"])
    right = 0
    for client, data in zip(engine.federation.clients, engine.federation.data, strict=True):
        batch = data.train_images.batch(data.train)
        logits = client.model(dropping.clients[client.index].params, batch.images).logits
        right += int((logits.argmax(1) == batch.labels).sum())
    assert line.diagnostics["uploaded_logits"] == right


def test_dropout_of_a_frame_is_refused():
    with pytest.raises(HetflError, match="settings.prompt_dropout: 0.1 is of deep or shallow prompts"):
        create("fedhpl", {"prompts": "frame", "prompt_dropout": 0.1}, 3)


@pytest.mark.parametrize("share", ["prompts", "head"])
def test_a_lone_participants_parameters_are_its_widths_newest(toy_engine, share):
    """Three clients of one width, one of them in each round: what it sends is what the next one starts from."""
    engine = toy_engine("fedhpl", share=share, participation=1 / 3)
    state, _ = start(engine, Draws(0))
    for round in (1, 2, 3):
        state, line = play_round(engine, state, Draws(0).at(round))
        (alone,) = line.participants
        names = engine.federation.clients[alone].model.names([share])
        for client in range(3):
            down = engine.method.downlink(state.server, client)
            assert all(torch.equal(down[name], state.clients[alone].params[name]) for name in names)


@pytest.mark.parametrize("share", ["prompts", "head"])
def test_a_width_without_participants_keeps_its_mean(share):
    method = create("fedhpl", {"share": share}, 3)
    name = "prompts" if share == "prompts" else "head.bias"
    server = ServerState({"width": torch.tensor([[8], [8], [9]]), "samples": torch.tensor([[1], [3], [2]])})
    server |= {"shared.8": {name: torch.tensor([5.0])}}
    sent = {2: Message({**raw(0), name: torch.tensor([7.0])})}
    after = method.aggregate(server, Uplinks.of(sent), Draws(0).at(1))
    assert {n: t.item() for n, t in after.items() if n.startswith("shared.")} == {f"shared.8/{name}": 5}
    sent[1] = Message({**raw(1), name: torch.tensor([4.0])})
    assert method.aggregate(server, Uplinks.of(sent), Draws(0).at(1))[f"shared.8/{name}"].item() == 4


def test_frozen_weights_stay_bit_identical_and_the_rest_moves(toy_engine):
    engine = toy_engine("fedhpl", "heterogeneous")
    before = {
        k: {n: t.clone() for n, t in c.model._module.state_dict().items()}
        for k, c in enumerate(engine.federation.clients)
    }
    state, _ = start(engine, Draws(0))
    state, _ = play_round(engine, state, Draws(0).at(1))
    for k, client in enumerate(engine.federation.clients):
        after = client.model._module.state_dict()
        assert all(torch.equal(before[k][name], after[name]) for name in after)
        fresh = client.model.init(Draws(0), k)
        assert all(not torch.equal(fresh[name], state.clients[k].params[name]) for name in fresh)
        assert set(fresh) == {"prompts", "head.weight", "head.bias"}


def test_heads_of_two_kinds_cannot_be_shared():
    plain, layered = "digits_vit_base", "digits_vit_base-h16"
    alone, shared = create("fedhpl", {}, 3), create("fedhpl", {"share": "head"}, 3)
    models = [outline(name, 3, alone.model_options(), InputSettings()) for name in (plain, layered)]
    message = {"width": torch.tensor([48]), "samples": torch.tensor([1])}
    sent = {0: Message(message), 1: Message(message)}
    assert alone.initial_server(models, sent, Draws(0))
    with pytest.raises(HetflError, match=f"share: head of {plain} and {layered} have different shapes"):
        shared.initial_server(models, sent, Draws(0))
