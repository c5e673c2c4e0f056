"""The FGPT family: equivalences, selection, aggregation, and what travels."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from playing import downlinks, play_round, run, start, train
from toy import LOCAL_ENGINES

from hetfl.data.batches import Batch, DeviceImages
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments import cell
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace
from hetfl.message import Message, ServerState
from hetfl.methods import create
from hetfl.methods.base import Statistics, Uplinks
from hetfl.methods.fedpr import null_space
from hetfl.methods.parts.balanced_groups import mean_keys
from hetfl.models import ModelOptions, build
from hetfl.models.grouped import orthogonal
from hetfl.training.engines import make_engine

SMALL = {"shared_blocks": (1,), "group_blocks": (2,), "prompt_length": 2, "participation": 1.0, "local_epochs": 1}
GROUPED = {**SMALL, "groups": 3}
FAMILY = ["pt-fedavg", "fgpt", "fed-dualprompt", "sgpt", "fedmoon", "fedmix", "fgpt-fedmix", "pfedhn", "fedpr"]


def same(first, second, tolerance: float = 1e-9) -> bool:
    names = [name for name in first.server if name.startswith("model/") and name in second.server]
    assert names
    return all(torch.allclose(first.server[n], second.server[n], atol=tolerance) for n in names)


def built(**options):
    more = {"prompts": "inserted", "shared_blocks": (1,), "group_blocks": (2,), "groups": 4, "init": "torch"}
    model = build("digits_vit_base.random", 3, ModelOptions(**(more | options)))
    return model, model.init(Draws(0), 0)


def test_one_group_is_pt_fedavg(toy_engine):
    engines = [
        toy_engine("pt-fedavg", dtype=torch.float64, **SMALL),
        toy_engine("fgpt", dtype=torch.float64, groups=1, **SMALL),
    ]
    states = [run(engine)[0] for engine in engines]
    assert same(*states)


def test_without_their_term_baselines_are_pt_fedavg(toy_engine):
    plain, _ = run(toy_engine("pt-fedavg", dtype=torch.float64, **SMALL))
    assert same(plain, run(toy_engine("fedmoon", dtype=torch.float64, mu=0, **SMALL))[0])
    assert same(plain, run(toy_engine("fedmix", dtype=torch.float64, mix=0, **SMALL))[0])
    alone = {**SMALL, "group_blocks": ()}
    share, _ = run(toy_engine("pt-fedavg", dtype=torch.float64, **alone))
    assert same(share, run(toy_engine("fedpr", dtype=torch.float64, kept=1, **alone))[0])


def test_their_terms_do_something(toy_engine):
    plain, _ = run(toy_engine("pt-fedavg", dtype=torch.float64, **SMALL), 2)
    for method in ("fedmoon", "fedmix"):
        assert not same(plain, run(toy_engine(method, dtype=torch.float64, **SMALL), 2)[0]), method


def test_groups_never_change_and_count_every_sample(toy_engine):
    engine = toy_engine("fgpt", **GROUPED)
    _, lines = run(engine)
    sizes = [line.clients["groups"] for line in lines[1:]]
    assert sizes[0] == sizes[1] and [sum(groups) for groups in sizes[0]] == [15, 19, 26]
    share = torch.tensor(sizes[0]).sum(0) / 60
    assert lines[1].diagnostics["group_entropy"] == pytest.approx(
        float(torch.distributions.Categorical(share).entropy() / torch.tensor(3.0).log())
    )
    for k, client in enumerate(engine.federation.clients):
        batch = engine.federation.data[k].train_images.batch(engine.federation.data[k].train)
        query = client.model.query(batch.images)
        assert torch.allclose(batch.queries, query, atol=1e-5)
        first = engine.method.choose({}, batch, {})
        expected = F.cosine_similarity(query[:, None], engine.method.keys({}, query)[None], dim=2).argmax(1)
        assert torch.equal(first, expected)


def test_a_groups_prompt_is_weighted_by_its_samples_and_stays_where_there_are_none():
    method = create("fgpt", {"groups": 3}, 2)
    old = torch.randn(1, 3, 4)
    server = ServerState({"samples": torch.tensor([10, 30]), "model": {"group": old, "head.bias": torch.zeros(2)}})

    def sent(value, counts):
        prompts = torch.full((1, 3, 4), value)
        counts = torch.tensor(counts, dtype=torch.int32)
        return Message({"group": prompts, "head.bias": torch.full((2,), value), "counts": counts})

    after = method.aggregate(server, Uplinks.of({0: sent(1.0, [4, 6, 0]), 1: sent(5.0, [12, 18, 0])}), Draws(0))
    assert torch.allclose(after["model/group"][0, 0], torch.tensor(4.0))
    assert torch.allclose(after["model/head.bias"], torch.tensor(4.0))
    assert torch.equal(after["model/group"][0, 2], old[0, 2])
    after = method.aggregate(server, Uplinks.of({0: sent(1.0, [9, 6, 0]), 1: sent(5.0, [3, 18, 0])}), Draws(0))
    assert torch.allclose(after["model/group"][0, 0], torch.tensor(2.0))


def test_prompts_that_are_sent_are_compared_pair_by_pair(toy_engine):
    engine = toy_engine("fgpt", **GROUPED)
    state, _ = start(engine, Draws(0))
    draws = Draws(0).at(1)
    sent = {update.client: update.uplink for update in train(engine, downlinks(engine, state), draws)}
    server = engine.method.aggregate(state.server, Uplinks.of(sent), draws)
    found = {**engine.method.compare([*sent.values()]), **engine.method.diagnostics(server)}

    def mean(vectors):
        pairs = [F.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in combinations(vectors, 2)]
        return float(torch.stack(pairs).mean())

    groups = [[sent[k]["group"][:, g] for k in sent] for g in range(3)]
    used = [[p for k, p in zip(sent, group, strict=True) if sent[k]["counts"][g]] for g, group in enumerate(groups)]
    tokens = [[sent[k]["shared"][0, n] for k in sent] for n in range(2)]
    expected = {
        "cosine_shared": mean([sent[k]["shared"] for k in sent]),
        "cosine_shared_tokens": sum(map(mean, tokens)) / 2,
        "cosine_group_local": sum(map(mean, groups)) / 3,
        "cosine_group_global": mean([server["model/group"][:, g] for g in range(3)]),
        "cosine_group_local_used": sum(mean(g) for g in used if len(g) > 1) / sum(len(g) > 1 for g in used),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_one_participant_has_nobody_to_be_compared_with(toy_engine):
    engine = toy_engine("pt-fedavg", **SMALL | {"participation": 0.34})
    _, lines = run(engine, 1)
    assert lines[1].diagnostics == {}


def test_ensembles_are_tested_in_the_window_as_runs_of_their_own_would_be(toy_engine):
    settings = {**GROUPED, "rounds": 3, "window": 2}
    _, lines = run(toy_engine("fgpt", dtype=torch.float64, ensembles=(1, 2), **settings), 3)
    _, branched = run(toy_engine("fgpt", dtype=torch.float64, branches=2, **settings), 3)
    assert lines[1].extra == {}
    for line, other in zip(lines[2:], branched[2:], strict=True):
        assert (line.test("top-1"), line.test("top-2")) == (line.test(), other.test())


@pytest.mark.parametrize("setting", [{"branches": 4}, {"ensembles": (2, 4)}])
def test_more_branches_than_groups_are_refused(setting):
    with pytest.raises(HetflError, match=r"asks for more groups than there are \(3\)"):
        create("fgpt", {"groups": 3, **setting}, 2)


def test_keys_are_orthogonal_and_drawn_once():
    keys = create("fgpt", {"groups": 20}, 2).keys({}, torch.zeros(1, 768))
    cosines = F.normalize(keys.double(), dim=1) @ F.normalize(keys.double(), dim=1).T
    assert (cosines - torch.eye(20)).abs().max() < 1e-6
    assert torch.equal(keys, create("fgpt", {"groups": 20}, 5).keys({}, torch.zeros(1, 768)))
    random = create("fgpt", {"groups": 20, "keys": "random"}, 2).keys({}, torch.zeros(1, 768))
    assert (F.normalize(random, dim=1) @ F.normalize(random, dim=1).T - torch.eye(20)).abs().max() > 1e-3
    rows = torch.randn(3, 5)
    made = orthogonal(rows)
    assert torch.allclose(F.normalize(rows[0], dim=0), made[0], atol=1e-6)
    assert (made * rows).sum(1).min() > 0


def test_keys_are_those_of_the_runs_seed_unless_one_is_set():
    def keys(seed, **settings):
        return create("fgpt", {"groups": 3, **settings}, 2, seed=seed).keys({}, torch.zeros(1, 8))

    assert torch.equal(keys(1), keys(1)) and not torch.equal(keys(1), keys(2))
    assert torch.equal(keys(1, key_seed=2), keys(2)) and torch.equal(keys(2, key_seed=0), keys(0))
    drawn = [keys(seed, keys="random") for seed in (1, 2)]
    assert not torch.equal(*drawn)
    ensembles = create("fgpt", {"groups": 3, "ensembles": (2,)}, 2, seed=1).extra_predictors(60)
    assert torch.equal(ensembles["top-2"].keys({}, torch.zeros(1, 8)), keys(1))


def test_a_cell_draws_its_keys_from_its_seed(monkeypatch, tmp_path, weights, toy_data, toy_partition):
    workspace = Workspace(tmp_path)
    workspace.weights = weights
    monkeypatch.setattr(cell, "verified_dataset", lambda *_: toy_data)
    monkeypatch.setattr(cell, "read_partition", lambda *_: (toy_partition, {}))
    found = []
    for seed in (0, 1):
        settings = create("fgpt", GROUPED, 3).settings.model_dump()
        named = {"experiment": "e", "row": "fgpt", "title": "FGPT", "paper": "fgpt", "split": "iid", "seed": seed}
        run = {
            "dataset": "toy",
            "models": ["digits_vit_base"],
            "partition": {},
            "input": InputSettings(),
            "public": None,
        }
        made = Cell(**named, **run, method="fgpt", settings=settings)
        method = cell.set_up(made, workspace, torch.device("cpu"), ComputeSettings()).method
        found.append(method.keys({}, torch.zeros(1, 48)))
    assert not torch.equal(*found)


@pytest.mark.parametrize("method", ["sgpt", "fed-dualprompt"])
@pytest.mark.parametrize("setting", [{"key_seed": 1}, {"keys": "random"}])
def test_settings_of_fixed_keys_are_unknown_where_keys_are_learned(method, setting):
    with pytest.raises(HetflError, match=f"unknown setting '{next(iter(setting))}'"):
        create(method, setting, 2)


def test_one_branch_is_fgpt_and_more_share_the_lower_blocks():
    model, params = built()
    images, groups = torch.randn(5, 3, 32, 32), torch.tensor([0, 3, 1, 2, 0])
    one = model(params, images, groups)
    assert torch.allclose(model(params, images, groups[:, None]).logits, one.logits, atol=1e-5)
    pairs = torch.stack([groups, (groups + 1) % 4], dim=1)
    both = torch.stack([model(params, images, column).logits for column in pairs.unbind(1)]).mean(0)
    assert torch.allclose(model(params, images, pairs).logits, both, atol=1e-5)


@pytest.mark.equation("fgpt")
def test_tokens_enter_behind_the_class_token_and_stay():
    """Against blocks run by hand: [cls, group, shared, patches] from the group's block on."""
    model, params = built(prompt_length=2)
    images, groups = torch.randn(2, 3, 32, 32), torch.tensor([1, 3])
    body = model._module.body
    with torch.no_grad():
        tokens = body._pos_embed(body.patch_embed(images))
        tokens = torch.cat([tokens[:, :1], params["shared"][0].expand(2, -1, -1), tokens[:, 1:]], 1)
        tokens = body.blocks[0](tokens)
        tokens = torch.cat([tokens[:, :1], params["group"][0][groups][:, None], tokens[:, 1:]], 1)
        tokens = body.norm(body.blocks[1](tokens))
        output = model(params, images, groups)
        assert tokens.shape[1] == 1 + 1 + 2 + 16
        assert torch.allclose(output.features, tokens[:, 0], atol=1e-5)
        mean = built(prompt_length=2, readout="mean")[0](params, images, groups)
        assert torch.allclose(mean.features, tokens[:, :2].mean(1), atol=1e-5)


def test_fed_dualprompt_with_fgpts_keys_trains_as_fgpt(toy_engine):
    settings = {**GROUPED, "local_epochs": 1}
    fgpt, dual = (toy_engine(name, dtype=torch.float64, **settings) for name in ("fgpt", "fed-dualprompt"))
    dual.method.settings = dual.method.settings.model_copy(update={"pull": 0.0})
    keys = fgpt.method.keys({}, torch.zeros(1, 48, dtype=torch.float64))
    state, _ = start(fgpt, Draws(0))
    other, _ = start(dual, Draws(0))
    other.server |= {"model": {**state.server.group("model"), "keys": keys}}
    uplinks = [
        train(engine, {1: engine.method.downlink(s.server, 1)}, Draws(0).at(1))[0].uplink
        for engine, s in ((fgpt, state), (dual, other))
    ]
    for name in ("shared", "group", "head.weight"):
        assert torch.allclose(uplinks[0][name], uplinks[1][name], atol=1e-9), name


def test_sgpts_server_without_momentum_returns_a_lone_participants_state():
    method = create("sgpt", {"groups": 2, "key_momentum": 0.0, "group_momentum": 0.0, "few": 0}, 2)
    model = {"shared": torch.randn(2, 2, 3), "group": torch.randn(2, 2, 3), "keys": torch.randn(2, 3)}
    server = ServerState({"samples": torch.tensor([7]), "picks": torch.tensor([1, 2]), "model": model})
    own = {"shared": torch.randn(2, 2, 3), "group": torch.randn(2, 2, 3), "keys": torch.randn(2, 3)}
    sent = Message({**own, "counts": torch.tensor([30, 5], dtype=torch.int32)})
    after = method.aggregate(server, Uplinks.of({0: sent}), Draws(0))
    assert all(torch.allclose(after[f"model/{name}"], tensor) for name, tensor in own.items())
    assert after["picks"].tolist() == [31, 7]
    half = create("sgpt", {"groups": 2}, 2).aggregate(server, Uplinks.of({0: sent}), Draws(0))
    for name in ("group", "keys"):
        assert torch.allclose(half[f"model/{name}"], (server[f"model/{name}"] + own[name]) / 2)


@pytest.mark.equation("sgpt")
def test_sgpt_prefers_what_was_seldom_picked():
    method = create("sgpt", {"groups": 3}, 2)
    keys = torch.eye(3)
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), queries=torch.tensor([[1.0, 0.9, -5.0]] * 2))
    params = {"keys": keys}
    assert method.picks(params, batch, {"picks": torch.zeros(3, dtype=torch.int32)}).tolist() == [0, 0]
    assert method.picks(params, batch, {"picks": torch.tensor([90, 10, 0])}).tolist() == [2, 2]
    assert method.picks(params, batch, {"picks": torch.tensor([90, 1, 9])}).tolist() == [1, 1]
    assert method.choose(params, batch, {}).tolist() == [0, 0]  # prediction knows no picks


def test_a_key_that_was_seldom_picked_is_the_plain_mean():
    """Of the first group two picks are few, of the second three are not, and the third has none."""
    keys = torch.tensor([[[0.0], [0.0], [0.0]], [[8.0], [8.0], [8.0]]])
    counts = torch.tensor([[2, 0, 0], [0, 3, 0]])
    assert mean_keys(keys, counts, few=2).flatten().tolist() == [4.0, 8.0, 4.0]


def test_sgpt_trains_in_turn(toy_engine):
    engine = toy_engine("sgpt", **{**GROUPED, "prompt_length": 1, "local_epochs": 2})
    first, second = engine.method.phases(1)
    assert first.trains == ("shared", "head") and second.trains == ("group", "keys", "head")
    assert [phase.data for phase in engine.method.phases(1)] == ["own", "own"]
    state, lines = run(engine, 2)
    # Two epochs of the second stage count every sample twice, in each of two rounds.
    assert state.server["picks"].sum() == 2 * 2 * 60


@pytest.mark.parametrize(("epochs", "stages"), [(5, [5]), (6, [6]), (8, [6, 2])])
def test_sgpts_keys_learn_for_six_epochs(epochs, stages):
    _, *grouped = create("sgpt", {"groups": 3, "local_epochs": epochs}, 2).phases(1)
    assert [phase.epochs for phase in grouped] == stages
    assert ["keys" in phase.trains for phase in grouped] == [True, False][: len(stages)]


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
def test_sgpt_can_count_picks_participant_by_participant(toy_engine, engine):
    """As in the authors' main loop: each participant is told what the earlier ones of its round picked."""
    reference = toy_engine("sgpt", dtype=torch.float64, balance="client", **GROUPED)
    made = make_engine(reference.method, reference.federation, engine)
    state, _ = start(made, Draws(0))
    for round in (1, 2):
        known, sent = state.server["picks"], {}
        for k in range(3):
            told = state.server | {"picks": known}
            (update,) = train(reference, {k: made.method.downlink(told, k)}, Draws(0).at(round))
            sent[k] = update.uplink
            known = known + update.uplink["counts"]
        expected = made.method.aggregate(state.server, Uplinks.of(sent), Draws(0).at(round))
        assert torch.equal(expected["picks"], known)
        state, _ = play_round(made, state, Draws(0).at(round))
        for name, tensor in expected.items():
            torch.testing.assert_close(state.server[name], tensor, rtol=1e-9, atol=1e-11)
    together, _ = run(toy_engine("sgpt", dtype=torch.float64, **GROUPED), 2)
    assert not torch.equal(together.server["model/group"], state.server["model/group"])


@pytest.mark.parametrize(("blocks", "tokens"), [("first", 3 + 1), ("all", 3 + 3)])
def test_sgpts_first_shared_block_alone_may_have_several_prompts(blocks, tokens):
    """Against blocks run by hand."""
    settings = {"shared_blocks": (1, 2), "group_blocks": (2,), "prompt_length": 3, "groups": 2, "long_blocks": blocks}
    model, params = built(**create("sgpt", settings, 3).model_options().model_dump(exclude_unset=True))
    assert params["shared"].shape[:2].numel() == tokens
    images = torch.randn(2, 3, 32, 32)
    params["shared"] = torch.randn(params["shared"].shape)
    first, second = params["shared"].flatten(0, 1).split([3, tokens - 3])
    body = model._module.body
    with torch.no_grad():
        hidden = body._pos_embed(body.patch_embed(images))
        for block, prompts in zip(body.blocks, (first, second), strict=True):
            hidden = block(torch.cat([hidden[:, :1], prompts.expand(2, -1, -1), hidden[:, 1:]], dim=1))
        features = body.norm(hidden)[:, 0]
        assert torch.allclose(model(params, images).features, features, atol=1e-5)


@pytest.mark.equation("fedpr")
def test_fedpr_moves_prompts_in_the_null_space_only(toy_engine):
    engine = toy_engine("fedpr", dtype=torch.float64, **{**SMALL, "group_blocks": ()}, weight_decay=0.0)
    state, _ = run(engine, 1)
    before = state.server["model/shared"]
    after, _ = play_round(engine, state, Draws(0).at(2))
    moved = (after.server["model/shared"] - before).flatten(0, 1)
    assert moved.norm() > 1e-6
    projection = engine.method.receive(engine.method.downlink(state.server, 0), {})["projection"]
    assert torch.allclose(moved @ projection, moved, atol=1e-9)
    assert (moved @ before.flatten(0, 1).T).abs().max() < 1e-9
    assert round(projection.trace().item()) == 48 - int(0.2 * 48 + 1e-9)


@pytest.mark.parametrize("rank", [1, 4, 5])
def test_rounding_of_the_prompts_does_not_turn_fedprs_projection(rank):
    """Five prompts of 768 values: 153 directions are dropped, of which the prompts span up to five."""
    prompts, noise = torch.randn(2, 5, 768, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prompts[rank:] = prompts[:1]
    moved = prompts.clone()
    moved[:rank] += 1e-7 * noise[:rank]
    moved[rank:] = moved[:1]
    first, second = (null_space(some, 0.8, seed=3) for some in (prompts, moved))
    assert (second - first).norm() < 1e-7 * first.norm()
    assert round(first.trace().item()) == 768 - 153
    assert torch.allclose(first @ first, first, atol=1e-12) and torch.allclose(first, first.T, atol=1e-12)
    assert (prompts @ first).abs().max() < 1e-12
    other = null_space(prompts, 0.8, seed=4)
    assert (other - first).norm() > 0.1 * first.norm()
    # The difference of float32's rounding moves it as little.
    short = null_space(prompts.float(), 0.8, seed=3)
    assert short.dtype == torch.float32 and (short.double() - first).norm() < 1e-6 * first.norm()


def test_fedpr_drops_the_prompts_main_directions_where_they_span_more():
    """Kept are 4 of 5 directions: the one in which the prompts have most weight goes."""
    prompts = torch.tensor([[0.0, 3, 0, 0, 0], [0, 0, 2, 0, 0]])
    assert torch.allclose(null_space(prompts, 0.7, seed=0), torch.diag(torch.tensor([1.0, 0, 1, 1, 1])))
    assert torch.equal(null_space(prompts, 0.9, seed=0), torch.eye(5))


def test_fedpr_is_the_same_whichever_engine_runs_it(toy_engine):
    """Several rounds in float32, in which engines round differently."""
    settings = {**SMALL, "group_blocks": (), "lr": 0.05, "rounds": 4}
    engine = toy_engine("fedpr", **settings)
    one_by_one, _ = run(engine, 4)
    together, _ = run(make_engine(engine.method, engine.federation, "batched"), 4)
    for name in ("model/shared", "model/head.weight"):
        difference = (together.server[name] - one_by_one.server[name]).norm()
        assert difference < 1e-5 * one_by_one.server[name].norm(), name


def test_fedprs_seed_is_the_runs_and_stays(toy_engine):
    engine = toy_engine("fedpr", **{**SMALL, "group_blocks": ()})
    seeds = [int(run(engine, rounds, seed)[0].server["completion seed"]) for seed in (0, 1) for rounds in (1, 2)]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def test_pfedhn_learns_nothing_from_unchanged_prompts():
    method = create("pfedhn", {"embedding": 3, "hidden": 4, "layers": 1, "server_decay": 0.0}, 2)
    model, _ = built(prompt_length=2, groups=1)
    registrations = {k: Message({"samples": torch.tensor([5 + k], dtype=torch.int32)}) for k in range(2)}
    server = method.initial_server([model, model], registrations, Draws(0))
    sent = {k: method.downlink(server, k) for k in range(2)}
    assert not torch.equal(sent[0]["shared"], sent[1]["shared"])
    after = method.aggregate(server, Uplinks.of(sent), Draws(0).at(1))
    for name in (name for name in server if name.startswith("net/")):
        assert torch.allclose(after[name], server[name], rtol=0, atol=1e-6), name
    moved = {k: Message({**sent[k], "shared": sent[k]["shared"] + 1}) for k in sent}
    after = method.aggregate(server, Uplinks.of(moved), Draws(0).at(1))
    closer = method.downlink(after, 0)["shared"] - sent[0]["shared"]
    assert closer.mean() > 0


def test_pfedhn_keeps_no_momentum_where_it_is_0(toy_engine):
    state, _ = run(toy_engine("pfedhn", **SMALL, server_momentum=0.0), 2)
    assert state.server.group("net") and not state.server.group("momentum")


def test_fedmix_is_mixups_loss_to_first_order(toy_engine):
    engine = toy_engine("fedmix", dtype=torch.float64, **SMALL)
    state, lines = run(engine, 1)
    size = 3 * 8 * 8 + 3
    assert lines[0].up.elements == 3 * (1 + size)
    assert (
        lines[1].down.elements - 3 * sum(t.numel() for n, t in state.server.items() if n.startswith("model/"))
        == 3 * 3 * size
    )
    later, line = play_round(engine, state, Draws(0).at(2))
    assert line.down.elements == line.up.elements  # the pool is sent once
    data = engine.federation.data[0]
    own = data.train_images.stored().batch(data.train)
    assert torch.allclose(state.server["pool/images"][0].double(), own.images.mean(0), atol=1e-6)
    assert torch.allclose(state.server["pool/labels"][0], torch.bincount(own.labels, minlength=3) / len(own.labels))


def test_fedmixs_chunks_do_not_depend_on_how_the_device_cuts_batches(toy_engine, monkeypatch):
    """Averages of 4 images, in batches of 5, of 16 and of everything; a last one of what is left over."""
    pools = []
    for size in (5, 16, 1000):
        monkeypatch.setattr(DeviceImages, "large_batch", lambda self, largest_map=0, size=size: size)
        engine = toy_engine("fedmix", dtype=torch.float64, chunk=4, **SMALL)
        pools.append([update.uplink for update in engine.introduce(range(3), Draws(0))])
    for client, samples in enumerate((15, 19, 26)):
        first, second, third = (messages[client]["pool/images"] for messages in pools)
        assert len(first) == len(pools[0][client]["pool/labels"]) == -(-samples // 4)
        assert torch.equal(first, second) and torch.equal(first, third)
        # Every sample is in one average.
        shares = torch.tensor([4] * (samples // 4) + [samples % 4] * (samples % 4 > 0))
        data = engine.federation.data[client]
        images = data.train_images.stored().batch(data.train).images
        whole = (first * shares[:, None, None, None]).sum(dim=0) / samples
        assert torch.allclose(whole, images.mean(dim=0))
    # Which ones go together is drawn by the run's seed, for each client by itself.
    (other, *_) = engine.introduce(range(3), Draws(1))
    assert not torch.allclose(other.uplink["pool/images"], pools[0][0]["pool/images"])


def test_which_samples_fedmix_averages_is_drawn_for_each_client_by_itself():
    """Of the same samples two clients send other averages."""
    method = create("fedmix", {"chunk": 2}, 3)
    rows = {"images": torch.arange(40.0).view(40, 1, 1, 1), "labels": torch.eye(3).repeat(14, 1)[:40]}
    pools = []
    for number in (0, 1):
        client = SimpleNamespace(index=number, samples=40)
        known = SimpleNamespace(statistics=Statistics(rows=rows), draws=Draws(0), client=client)
        pools.append(method.register(known)["pool/images"])
    assert not torch.equal(*pools)


@pytest.mark.parametrize("method", FAMILY)
def test_what_travels_is_counted_as_the_paper_counts(toy_engine, method):
    """Section 16's formulas on the toy: 48 wide, 3 classes; integers apart."""
    settings = GROUPED if method in ("fgpt", "fgpt-fedmix", "fed-dualprompt", "sgpt") else SMALL
    engine = toy_engine(method, **settings)
    _, lines = run(engine)
    head, shared, group = 49 * 3, 2 * 48, (3 if settings is GROUPED else 1) * 48
    group = 0 if method == "fedpr" and not engine.method.settings.group_blocks else group
    keys = 3 * 48 if method in ("fed-dualprompt", "sgpt") else 0
    counts = 3 if method in ("fgpt", "fgpt-fedmix", "sgpt") else 0
    assert lines[2].up.elements == 3 * (head + shared + group + keys + counts)


@pytest.mark.parametrize("method", FAMILY)
def test_the_backbone_stays_as_it_was(toy_engine, method):
    engine = toy_engine(method, **SMALL)
    body = engine.federation.clients[0].model._module.body
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    run(engine)
    assert before and all(torch.equal(before[name], tensor) for name, tensor in body.state_dict().items())
