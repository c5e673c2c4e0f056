"""Theorem 1's terms: numbers worked by hand, the identities behind the theorem, and that watching changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import torch
from playing import downlinks, play_round, run, start, train

from hetfl.draws import Draws
from hetfl.methods.parts.logit_distillation import dimension_weights, distillation_loss
from hetfl.methods.parts.theorem import (
    aggregation_weights,
    figures,
    fit,
    gaussian_divergence,
    guidance,
    teacher_accuracy,
)
from hetfl.schema import Round

TEACHER = torch.tensor([[2.7741935, 0.3870968, 0.1290323], [0.2, 2.0, 0.4], [0.0, 0.0, 0.0]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
LABEL = torch.tensor([0])

EARLY = {"upload_rate", "param_kl", "err01", "local_conf", "logit_bound"}
TAUGHT = EARLY | {
    "valid_frac",
    "teacher_acc",
    "agg_conf",
    "agg_error",
    "distill_similarity",
    "kd_ce",
    "kd_entropy",
    "kd_loss",
    "kd_max",
    "kd_cap",
}
VARIANTS = {
    "fedhpl": {},
    "average-upload": {"upload": "average"},
    "average-aggregation": {"aggregation": "average"},
    "upload-all": {"selection": "all"},
    "literal-counts": {"denominator": "samples"},
    "plus-p": {"share": "prompts"},
    "plus-h": {"share": "head"},
}
CASES = pytest.mark.parametrize("variant", VARIANTS)
GROUPS = pytest.mark.parametrize("group", ["homogeneous", "heterogeneous"])


def values(line: Round, client: int) -> dict:
    return {name: seen[line.participants.index(client)] for name, seen in line.clients.items()}


def test_worked_example():
    seen = {name: value.item() for name, value in guidance(STUDENT, LABEL, TEACHER, 4.5).items()}
    assert seen["kd_ce"] == pytest.approx(1.1132057, abs=5e-8)
    assert seen["kd_entropy"] == pytest.approx(1.0605060, abs=5e-8)
    assert seen["kd_loss"] == pytest.approx(0.0526997, abs=5e-8)
    assert seen["kd_cap"] == pytest.approx(0.7526882, abs=5e-8)
    assert seen["kd_max"] == pytest.approx(seen["kd_loss"])
    received = {"logits": TEACHER, "valid": torch.tensor([True, True, False])}
    assert seen["kd_loss"] == pytest.approx(distillation_loss(STUDENT, LABEL, received, 4.5).item(), abs=1e-12)


def test_confidences_of_the_worked_example():
    student, teacher = torch.softmax(STUDENT / 4.5, dim=1)[0, 0], torch.softmax(TEACHER[0] / 4.5, dim=0)[0]
    seen = fit(STUDENT, LABEL, 4.5) | guidance(STUDENT, LABEL, TEACHER, 4.5)
    assert seen["err01"] == 1
    assert seen["local_conf"] == student
    assert seen["logit_bound"] == 2 - 2 * student
    assert seen["agg_conf"].item() == pytest.approx(teacher.item())
    assert seen["agg_error"].item() == pytest.approx(2 - 2 * teacher.item())
    assert seen["distill_similarity"].item() == pytest.approx(2 * abs(teacher - student).item())


def test_teacher_accuracy_is_over_valid_classes():
    valid = torch.tensor([True, True, False])
    assert teacher_accuracy(TEACHER, valid) == 1
    assert teacher_accuracy(-TEACHER, valid) == 0
    # A row of zeros is largest at 0, so it would count as wrong.
    assert teacher_accuracy(TEACHER, torch.ones(3, dtype=torch.bool)).item() == pytest.approx(2 / 3)


def test_gaussian_divergence():
    initial = {"a": torch.zeros(2), "b": torch.ones(1)}
    params = {"a": torch.tensor([0.3, -0.4]), "b": torch.tensor([1.0]), "buffer": torch.ones(5)}
    assert gaussian_divergence(params, initial, 0.1).item() == pytest.approx(12.5)


def test_aggregation_weights():
    """The sums over clients are M / (1 + M), where M counts with beta."""
    uploaded = torch.tensor([[2.0, 1, 0], [1, 1, 0], [1, 0, 0]], dtype=torch.float64)
    weights = dimension_weights(torch.tensor([384, 768, 1024]))
    shares = aggregation_weights(uploaded, uploaded, weights)
    counted = weights @ uploaded
    assert torch.allclose(shares.sum(dim=1), counted / (1 + counted))
    assert shares[0, :, 0].tolist() == pytest.approx([2 / 3.875, 0.5 / 3.875, 0.375 / 3.875])
    equal = aggregation_weights(uploaded, uploaded, dimension_weights(torch.tensor([768] * 3)))
    assert torch.equal(equal[0], equal[1])
    assert torch.equal(equal[0], equal[2])


def test_figures_are_plain_numbers():
    seen = figures(
        {"one": torch.tensor(0.5), "many": torch.tensor([1.0, float("nan")]), "lost": torch.tensor(1.0) / 0}
    )
    assert seen == {"one": 0.5, "many": [1.0, None], "lost": None}


@pytest.fixture(scope="module")
def watched(toy_engine) -> Callable[[str, str], tuple]:
    """The final state and all lines of a variant's run, in which the terms are watched, played once."""

    @cache
    def played(variant: str, group: str) -> tuple:
        return run(toy_engine("fedhpl", group, torch.float64, **VARIANTS[variant]))

    return played


@pytest.mark.parametrize(("group", "variant"), [("homogeneous", "fedhpl"), *product(["heterogeneous"], VARIANTS)])
def test_identities(watched, variant, group):
    settings = VARIANTS[variant]
    _, (first, early, *later) = watched(variant, group)
    assert set(first.clients) == {"width", "err01", "local_conf", "logit_bound"}
    assert set(early.clients) == EARLY
    json.dumps([line.as_json() for line in (first, early, *later)], allow_nan=False)
    for line in later:
        assert set(line.clients) == TAUGHT
        for client in line.participants:
            seen = values(line, client)
            assert seen["err01"] <= seen["logit_bound"] <= seen["agg_error"] + seen["distill_similarity"] + 1e-12
            assert 0 <= seen["kd_loss"] <= seen["kd_max"] <= seen["kd_cap"]
            assert seen["kd_ce"] - seen["kd_entropy"] == pytest.approx(seen["kd_loss"], abs=1e-12)
            assert 0 < seen["valid_frac"] <= 1
            assert seen["param_kl"] > 0
            if settings.get("selection") == "all":
                assert 0 <= seen["teacher_acc"] <= 1
                assert set(seen["upload_rate"]) <= {1.0, None}
            else:
                assert seen["teacher_acc"] == 1


def test_a_mean_of_all_logits_may_be_a_wrong_teacher(toy_engine):
    _, lines = run(toy_engine("fedhpl", selection="all", lr=0.001), 2)
    assert min(lines[2].clients["teacher_acc"]) < 1


@GROUPS
def test_shrinkage_is_what_the_added_one_takes(toy_engine, group):
    engine = toy_engine("fedhpl", group)
    state, _ = start(engine, Draws(0))
    labels = [update.uplink["labels"].long() for update in train(engine, downlinks(engine, state), Draws(0).at(1))]
    uploaded = torch.stack([torch.bincount(label, minlength=3) for label in labels]).double()
    counted = dimension_weights(state.server["width"].squeeze(1)) @ uploaded
    _, line = play_round(engine, state, Draws(0).at(1))
    expected = (1 / (1 + counted))[:, uploaded.sum(dim=0) > 0]
    assert line.diagnostics["shrinkage"] == pytest.approx(expected.mean(dim=1).tolist())
    assert line.diagnostics["shrinkage_max"] == pytest.approx(expected.amax(dim=1).tolist())
    if group == "homogeneous":
        assert len(set(line.diagnostics["shrinkage"])) == 1


@CASES
def test_watching_changes_no_message_and_no_number(toy_engine, watched, variant):
    group = "heterogeneous"
    on, on_lines = watched(variant, group)
    off, off_lines = run(toy_engine("fedhpl", group, torch.float64, theorem=False, **VARIANTS[variant]))
    for seen, plain in zip(on_lines, off_lines, strict=True):
        assert plain.clients == {}
        assert (seen.up, seen.down, seen.loss) == (plain.up, plain.down, plain.loss)
        assert plain.accuracy in (None, seen.accuracy)
    for client in range(3):
        assert off.clients[client].memory == {}
        for name, tensor in off.clients[client].params.items():
            assert torch.equal(tensor, on.clients[client].params[name])
    for name, tensor in off.server.items():
        assert torch.equal(tensor, on.server[name])


@pytest.mark.parametrize("settings", [{"communicate": False}, {"theorem": False}])
def test_nothing_is_swept_or_kept_where_nothing_is_watched(toy_engine, settings):
    engine = toy_engine("fedhpl", **settings)
    assert engine.method.statistics_source(0) == "none"
    state, lines = run(engine, 3)
    assert lines[0].test() is None
    assert all(line.clients == {} for line in lines)
    assert all(client.memory == {} for client in state.clients.values())


def test_upload_rate_times_class_counts_is_what_was_sent(toy_engine):
    for upload in ("raw", "average"):
        engine = toy_engine("fedhpl", upload=upload)
        _, lines = run(engine, 3)
        for line in lines[1:]:
            sent = 0.0
            for client in range(3):
                counts = engine.federation.clients[client].class_counts.tolist()
                rates = values(line, client)["upload_rate"]
                assert [rate is None for rate in rates] == [count == 0 for count in counts]
                sent += sum(count * rate for count, rate in zip(counts, rates, strict=True) if count)
            assert sent == pytest.approx(line.diagnostics["uploaded_logits"])


def test_the_first_parameters_are_remembered(toy_engine):
    engine = toy_engine("fedhpl", participation=0.7)
    state, lines = run(engine, 6)
    assert len(state.clients) > len(lines[1].participants)
    for client, kept in state.clients.items():
        fresh = engine.federation.clients[client].model.init(Draws(0), client)
        assert {f"initial/{name}" for name in fresh} == set(kept.memory)
        assert all(torch.equal(kept.memory[f"initial/{name}"], tensor) for name, tensor in fresh.items())
        moved = sum((kept.params[name].double() - fresh[name].double()).square().sum() for name in fresh)
        last = [values(line, client)["param_kl"] for line in lines[1:] if client in line.participants][-1]
        assert last == pytest.approx(float(moved) / (2 * 0.1**2))


def test_the_divergence_is_relative_to_the_deviation_of_the_prior(toy_engine):
    def divergences(**settings) -> list[float]:
        _, lines = run(toy_engine("fedhpl", **settings), 1)
        return lines[1].clients["param_kl"]

    assert divergences(prior_std=0.2) == pytest.approx([value / 4 for value in divergences()])


def test_only_samples_with_a_teacher_count(toy_engine):
    """And all of them where no class has one."""
    engine = toy_engine("fedhpl", "homogeneous", torch.float64)
    state, _ = run(engine, 1)
    data, client = engine.federation.data[1], engine.federation.clients[1]
    for valid in ([True, False, True], [False, False, False]):
        received = {"logits": state.server["logits"][1], "valid": torch.tensor(valid)}
        down = engine.method.downlink(state.server | {"valid": received["valid"]}, 1)
        (update,) = train(engine, {1: down}, Draws(0).at(2), state.clients)
        seen = update.observed
        batch = data.train_images.batch(data.train)
        logits = client.model(update.state.params, batch.images).logits
        taught = received["valid"][batch.labels]
        assert seen["valid_frac"] == pytest.approx(taught.double().mean().item())
        if taught.any():
            loss = distillation_loss(logits, batch.labels, received, 4.5)[taught]
            assert seen["kd_loss"] == pytest.approx(loss.mean().item())
            assert seen["kd_max"] == pytest.approx(loss.max().item())
            logits, labels = logits[taught], batch.labels[taught]
        else:
            assert "kd_loss" not in seen
            assert seen["teacher_acc"] is None
            labels = batch.labels
        assert seen["err01"] == pytest.approx((logits.argmax(dim=1) != labels).double().mean().item())
