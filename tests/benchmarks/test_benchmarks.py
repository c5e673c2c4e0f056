"""The parts of the benchmarks on work of a second; whole scripts take minutes."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hetfl.data.partitions import Iid
from hetfl.draws import Draws

CPU = torch.device("cpu")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a file of ``benchmarks/``."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module


@pytest.fixture
def fedhpl(script) -> Any:
    """Four rounds of two clients with 24 samples each, tested on the same 16."""
    return script("work").Work("fedhpl", {"rounds": 4}, ("digits_vit_base.random",), Iid(clients=2), samples=(48, 16))


@pytest.fixture
def fedtgp(script) -> Any:
    """The clients of CIFAR-100 in the practical setting, all with the small CNN."""
    return replace(script("gpu").cases()["fedtgp"].work, models=("cnn",))


def test_a_part_of_the_samples_is_the_first_ones_and_tests_stay_shared(script, fedhpl):
    federation = fedhpl.federation(fedhpl.create(), CPU)
    part = script("work").thinned(federation, 0.5, least=2)
    for whole, half in zip(federation.data, part.data, strict=True):
        assert torch.equal(half.train, whole.train[:12])
        assert half.test is part.data[0].test and len(half.test) == 8
    assert [len(data.train) for data in script("work").thinned(federation, 0.01, least=16).data] == [16, 16]
    assert script("work").thinned(federation, 1.0, least=2) is federation


def test_the_parts_of_a_round_add_up_and_the_clients_do_all_the_training(script, fedhpl, monkeypatch):
    work, method = script("work"), fedhpl.create()
    engine = script("gpu").make_engine(method, fedhpl.federation(method, CPU), "sequential")
    trainer = type(engine.trainer)
    monkeypatch.setattr(trainer, "train_phase", slowed(trainer.train_phase, 0.05))
    rounds = work.Rounds(engine, Draws(0))
    spent = rounds.play()
    assert rounds.round == 1
    assert spent["clients"] + spent["server"] + spent["evaluate"] == pytest.approx(spent["round"])
    assert spent["clients"] > 0.1 > spent["evaluate"]
    assert rounds.passes() < spent["clients"] - 0.1


def slowed(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The function, after a pause."""

    def call(*given: Any) -> Any:
        time.sleep(seconds)
        return function(*given)

    return call


def test_an_engine_gets_more_samples_until_it_has_all_and_plays_a_whole_run(script, fedhpl):
    rows = list(script("gpu").measure(fedhpl, ("sequential", "float32"), 30, time.time() + 30, CPU, all_rounds=True))
    assert rows[0]["share"] == script("gpu").FIRST < 1 and rows[-1]["share"] == 1
    assert rows[-1]["all rounds"] and rows[-1]["rounds"] == 4 and not rows[0]["all rounds"]
    for row in rows:
        parts = row["train"] + row["pass"] + row["server"] + row["evaluate"]
        assert row["round"] == pytest.approx(parts)
        # On a busy machine a round can be measured as shorter than its pass without training.
        assert row["train rate"] == (pytest.approx(48 / row["train"]) if row["train"] else None)


def test_times_grow_with_the_samples_as_far_as_two_measurements_show_that_they_do(script):
    part = script("gpu").Measured
    found = part(100, 3.0)
    assert found.grown(100, None) == found.grown(100, part(10, 2.1)) == 3.0
    assert found.grown(1000, None) == pytest.approx(30)
    assert found.grown(1000, part(10, 2.1)) == pytest.approx(12)  # 2 s, and 10 ms for each
    # Nothing is faster with more samples, nor slower than in proportion, whatever noise says; one point is no line.
    assert found.grown(1000, part(10, 3.5)) == 3.0
    assert found.grown(1000, part(50, 0.1)) == found.grown(1000, part(100, 2.0)) == pytest.approx(30)


def test_without_time_there_is_a_figure_of_few_samples(script, fedhpl, monkeypatch):
    # As on a machine that was busy while the pass alone was measured.
    monkeypatch.setattr(script("work").Rounds, "passes", lambda rounds: 60.0)
    more = replace(fedhpl, samples=(4800, 16))
    rows = list(script("gpu").measure(more, ("sequential", "float32"), 0, time.time(), CPU, all_rounds=True))
    assert [row["share"] for row in rows] == [script("gpu").FIRST]
    assert rows[0]["pass"] > 0 and rows[0]["train"] == 0 and rows[0]["train rate"] is None


def test_the_floor_is_counted_from_the_published_partition(script, fedtgp):
    counted = script("floors").floor(fedtgp, "float32")
    assert counted["steps"] == 4489 and counted["trained"] == 44_890
    # Convolutions of 28 x 28 and 10 x 10, then 1,600 to 512 to 100; of the first layer no gradient of the images.
    layers = [28**2 * 32 * 75, 10**2 * 64 * 800, 1600 * 512, 512 * 100]
    assert counted["train"] == 44_890 * 2 * (3 * sum(layers) - layers[0])
    assert counted["evaluate"] == 15_008 * 2 * sum(layers)
    # 100 epochs of 87 batches: three products each of two layers of 512, for 100 classes. Means and margin are extra.
    assert counted["server"] == pytest.approx(100 * 87 * 2 * 6 * 100 * 512**2, rel=1e-3)
    assert counted["launches"] > 0 and counted["bytes"] > 5 * 4 * 4489 * 924_708


def test_attention_scores_and_weights_do_not_lie_in_memory_between_the_passes(script, fedhpl):
    floors = script("floors")

    def step(**settings: int) -> Any:
        method = replace(fedhpl, settings=settings).create()
        with torch.device("meta"):
            model = floors.build("digits_vit_base.random", 10, method.model_options())
        return floors.step(method, model.to(torch.device("meta")))

    # What is left grows with samples, which weights do not, and with tokens, of which scores have the square.
    assert step(batch_size=32).kept == pytest.approx(2 * step(batch_size=16).kept, abs=1)
    few, some, many = (step(prompt_length=length).kept for length in (1, 2, 3))
    assert many - some == some - few > 0
    # Two blocks of width 48 and the head train three prompts each, ten classes.
    assert step().trained == 2 * 3 * 48 + 10 * 48 + 10


def test_failures_are_rows_and_the_other_rows_stand(script):
    gpu = script("gpu")
    figures = dict.fromkeys(("train", "pass", "server", "evaluate"), 1.0) | {"share": 1.0, "train rate": 8.0}
    lines = [
        {"machine": {"bf16": 100.0, "float32": 50.0, "bytes": 1e9, "eager launch": 1e-6}},
        {"part": "fedhpl", "engine": "sequential", "precision": "float32", "round": 9.0, **figures},
        {"part": "fedhpl", "engine": "batched", "precision": "bfloat16", "round": 4.0, **figures},
        {"part": "fedhpl", "engine": "batched", "precision": "bfloat16", "round": 3.0, **figures},
        {"part": "fedhpl", "engine": "batched", "precision": "bfloat16", "error": "OutOfMemoryError: no"},
        {"part": "fgpt", "error": "ended, it took too long"},
        {"part": "fedhpl", "floor": dict.fromkeys(gpu.FLOORS, 1.0) | {"train": 30.0, "trained": 3.0}},
    ]
    found = gpu.gathered(lines, CPU) | {"small": False, "seconds": 1}
    last = found["rows"][1]
    assert last["times faster"] == 3 and last["share of peak"] == 0.8 and last["error"] == "OutOfMemoryError: no"
    text = gpu.report(found, gpu.cases())
    assert "GPU figures are missing" in text and "OutOfMemoryError: no" in text and "took too long" in text
    assert "share of peak 0.8; at least 0.45: met (1.78 of it)" in text and "cell: not measured" in text


def test_of_several_runs_on_a_device_each_case_is_that_of_the_last_one(script):
    gpu = script("gpu")
    same = {"device": "cuda: toy", "versions": {}, "small": False, "seconds": 60.0}
    first = same | {
        "machine": {"bf16": 1.0},
        "floors": {"fedhpl": {"train": 1.0}},
        "rows": [
            {"part": "fedhpl", "round": 4.0},
            {"part": "fedtgp", "round": 2.0},
            {"part": "fedtgp", "round": 1.0},
        ],
    }
    second = same | {"machine": {"bf16": 2.0}, "floors": {"fml": {}}, "rows": [{"part": "fedtgp", "error": "no"}]}
    found = gpu.joined([first, second], ["fedtgp", "fml", "fedhpl"])
    assert found["rows"] == [{"part": "fedtgp", "error": "no"}, {"part": "fedhpl", "round": 4.0}]
    assert list(found["floors"]) == ["fml", "fedhpl"]
    assert found["machine"] == {"bf16": 2.0} and found["seconds"] == 120
    with pytest.raises(ValueError, match="device: cuda: toy and others"):
        gpu.joined([first | {"device": "cuda: other"}, second], ["fedtgp"])


def test_a_target_is_missed_by_its_ratio(script):
    target = script("gpu").Target("cell", most=120)
    row = {"cell": 240.0, "share": 0.1, "all rounds": False, "rounds": 2}
    said = "cell 240, from 10% of the samples, projected from 2 rounds; at most 120: missed (0.5 of it)"
    assert target.judge(row) == said


def finds_and_fails() -> Iterator[dict[str, float]]:
    yield {"share": 1.0}
    raise MemoryError("no room")


def finds_and_sleeps() -> Iterator[dict[str, float]]:
    yield {"share": 1.0}
    time.sleep(60)


def test_a_process_that_fails_says_why_and_keeps_what_it_found(script, monkeypatch):
    gpu, context = script("gpu"), multiprocessing.get_context("fork")
    monkeypatch.setattr(gpu, "PROCESSES", context)
    failed, slow, killed = (
        gpu.Part("fgpt", time.time() + seconds, function)
        for function, seconds in ((finds_and_fails, 60), (finds_and_sleeps, 0), (finds_and_sleeps, 60))
    )
    assert failed.lines() == [{"part": "fgpt", "share": 1.0}, {"part": "fgpt", "error": "MemoryError: no room"}]
    monkeypatch.setattr(gpu, "GRACE", 1)
    assert slow.lines() == [{"part": "fgpt", "share": 1.0}, {"part": "fgpt", "error": "ended, it took too long"}]
    killed._process.kill()
    assert killed.lines()[-1] == {"part": "fgpt", "error": "ended with -9"}


def test_a_point_of_the_scaling_curves(script, tmp_path):
    scaling = script("scaling")
    work = scaling.CURVES["model"].work("digits_vit_small.random")
    point = scaling.measure(work, "sequential", 1, CPU)
    assert point["engine"] == "sequential" and point["seconds"] > point["clients"] > 0
    # Memory is what the point adds to its own process; a test's process may have used more before.
    assert point["memory"] >= 0
    points = [
        {
            "curve": name,
            "value": value,
            **point,
            "seconds": 2.0**place,
            "memory": 3.0**place,
            "parameters": 4.0**place,
        }
        for name, curve in scaling.CURVES.items()
        for place, value in enumerate(curve.values)
    ]
    assert scaling.slope([one for one in points if one["curve"] == "model"]) == pytest.approx(0.5)
    told = scaling.report(points, 1, CPU, 0.5)
    assert "Clients per round (ViT, prompts trained), times 64: seconds times 8 " in told
    assert "memory times 27." in told
    scaling.draw(points, tmp_path / "plot.svg")
    assert "Clients per round" in (tmp_path / "plot.svg").read_text()


def test_costs_are_the_largest_ones_and_what_is_left_completes_the_round(script, fedhpl):
    costs = script("costs")
    found = costs.measure(fedhpl, "sequential", CPU)
    spent = {name: one["seconds"] for name, one in found["operations"].items()}
    assert "aten::addmm" in spent and found["operations"]["aten::addmm"]["calls"] > 1
    assert 0 < sum(spent.values()) < found["profiled"]
    lines = costs.report({"tiny": found}, CPU, top=2).splitlines()[-3:]
    largest = sorted(spent, key=spent.__getitem__, reverse=True)
    assert [name in line for name, line in zip([*largest[:2], "left:"], lines, strict=True)] == [True] * 3
    assert sum(float(line.split("|")[-2].strip(" %")) for line in lines) < 100
