"""What is told of a model whose loss or scores are not finite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from playing import params_for_test, predictions, start
from record_factory import make_round, make_run

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.cell import run_rounds
from hetfl.experiments.evaluation import confusions
from hetfl.experiments.record import Record
from hetfl.files import read_json
from hetfl.methods import METHODS
from hetfl.methods.base import NONE, predicted_classes
from hetfl.metrics.accuracy import per_class, summary
from hetfl.training.state import ResumePoints

CLIENTS = [0, 1, 2]
VARIANTS = {name: (name, {}) for name in sorted(METHODS)} | {
    "fedhpl-theorem": ("fedhpl", {"theorem": True}),
    "fgpt-ensembles": ("fgpt", {"ensembles": (2, 3)}),
}


def play(engine, folder: Path):
    record = Record(folder / "run")
    state = run_rounds(engine, Draws(0), record, ResumePoints(folder / "resume"), make_run())
    return record, state


def test_a_score_that_is_not_finite_predicts_no_class():
    nan, inf = torch.nan, torch.inf
    scores = [[1, 3, 2], [nan, 0, 1], [0, 1, nan], [nan] * 3, [0, inf, 1], [-inf] * 3, [-inf, -5, -9], [2, 2, 1]]
    assert predicted_classes(torch.tensor(scores)).tolist() == [1, NONE, NONE, NONE, NONE, NONE, 1, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_diverged_model_gets_no_number_that_it_did_not_predict(toy_engine, tmp_path, variant):
    method, settings = VARIANTS[variant]
    # Larger than what layer normalisation and frozen blocks keep finite.
    engine = toy_engine(method, rounds=2, lr=1e30, **settings)
    if method == "fedkd":
        with pytest.raises(
            HetflError, match=rf"^{tmp_path}/run: round 1: .* is not finite and has no singular .*lr$"
        ):
            play(engine, tmp_path)
        return
    record, state = play(engine, tmp_path)
    lines = record.lines()
    first = 0 if engine.method.phases(0) else 1
    assert read_json(record.folder / "run.json")["diverged"] == first
    assert [line.diverged for line in lines] == [[]] * first + [CLIENTS] * (len(lines) - first)
    for line in lines[first:]:
        assert (line.accuracy, line.pooled) == ([0.0] * 3, 0.0)
        assert all(other.pooled == 0 for other in line.extra.values())
    json.dumps([line.as_json() for line in lines], allow_nan=False)
    found = summary(matrices := confusions(engine, state, Draws(0).at(state.round)))
    assert (found["accuracy"], found["pooled"], found["macro_f1"]) == ([0.0] * 3, 0.0, 0.0)
    assert matrices[:, :, -1].sum() == matrices.sum()
    assert not per_class(matrices).any()


@pytest.mark.parametrize("method", ["fed-dualprompt", "fedhpl", "sgpt"])
def test_large_but_finite_scores_are_what_they_are(toy_engine, tmp_path, method):
    """Some clients' scores leave float32's range here, others do not."""
    engine = toy_engine(method, rounds=2, lr=1e6)
    record, state = play(engine, tmp_path)
    counts = []
    for k, data in enumerate(engine.federation.data):
        params, received = params_for_test(engine, state, Draws(0), k)
        batch = data.test_images.batch(data.test)
        with torch.inference_mode():
            scores = engine.method.predict(engine.federation.models[k], params, batch, received)
        right = scores.isfinite().all(dim=1) & (scores.argmax(dim=1) == batch.labels)
        counts.append(right.double().mean().item())
    assert record.lines()[-1].accuracy == pytest.approx(counts)


def test_one_client_that_diverges_is_named_and_the_others_keep_their_accuracy(toy_engine, tmp_path):
    engine = toy_engine("fedhpl", communicate=False)
    record, state = play(engine, tmp_path)
    assert "diverged" not in read_json(record.folder / "run.json")
    assert not any(line.diverged for line in record.lines())
    state.clients[1].params["head.weight"] = torch.full_like(state.clients[1].params["head.weight"], torch.nan)
    found = [predicted for predicted, _ in predictions(engine, state, Draws(0).at(3))]
    assert [bool((predicted == NONE).any()) for predicted in found] == [False, True, False]
    accuracy = summary(confusions(engine, state, Draws(0).at(3)))["accuracy"]
    before = record.lines()[-1].accuracy
    assert accuracy == [before[0], 0.0, before[2]]


def test_the_first_round_survives_a_resume(toy_engine, tmp_path):
    """The record finds it in its lines, whichever process wrote them."""
    record = Record(tmp_path)
    record.begin(make_run(), completed=0)
    for number in range(4):
        lost = {"0": "did not answer"} if number > 1 else {}
        record.append(make_round(number, diverged=[2] if number in (1, 3) else [], failed=lost))
    again = Record(tmp_path)
    again.begin(make_run(), completed=3)
    engine = toy_engine("fedavg")
    again.finish(start(engine, Draws(0))[0])
    told = read_json(tmp_path / "run.json")
    assert (told["diverged"], told["failed"]) == (1, 2)
