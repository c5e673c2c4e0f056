"""On a GPU everything is what it is on a CPU, but for rounding: ``make test-gpu``.

With ``HETFL_TEST_DEVICE=cpu`` a CPU stands for the GPU. That only shows that these tests can run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import sweep_project
import torch
from playing import assert_close, play_round, run
from stage_runner import run_command
from torch import Tensor
from toy import LOCAL_ENGINES, PLAYED, mixed_group

from hetfl import captured
from hetfl.data.partitions import Partition
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws
from hetfl.files import read_json
from hetfl.message import Tensors
from hetfl.methods import create
from hetfl.methods.fedkd import restore
from hetfl.models.base import products
from hetfl.training import batched
from hetfl.training.engines import make_engine
from hetfl.training.federation import Federation, build_federation
from hetfl.training.memory import free_memory
from hetfl.training.state import ResumePoints

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")
WIDE, MANY = "htcnn7", 8
"""A network of 22 MB, and the clients that have it."""


@pytest.fixture(scope="module")
def gpu() -> torch.device:
    name = os.environ.get("HETFL_TEST_DEVICE", "cuda:0")
    if name != "cpu" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch.device(name)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The device of each CUDA graph that is recorded."""
    found: list[torch.device] = []
    real = captured.record

    def record(function, pool, device):
        found.append(device)
        return real(function, pool, device)

    monkeypatch.setattr(captured, "record", record)
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """hetfl's messages; torch's compiler writes others, which nobody sees."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("hetfl")]


def on_cpu(tensors: Tensors) -> dict[str, Tensor]:
    """Tensors in the order of their names, with matrices instead of their factors, whose signs are free."""
    return dict(sorted(restore({name: tensor.cpu() for name, tensor in tensors.items()}).items()))


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
@pytest.mark.parametrize("variant", PLAYED)
def test_three_rounds_are_those_of_a_cpu(toy_engine, gpu, recordings, caplog, variant, engine):
    """In float64: messages, states, losses and accuracies. In the third step of a kind, graphs are recorded."""
    method, settings = PLAYED[variant]
    if settings.get("optimiser") == "adam":
        # The gradient of a key's bias is zero but for rounding, and what a weight decay adds to it makes Adam take
        # steps of full length.
        settings = settings | {"weight_decay": 0.0}
    group = mixed_group(method, settings)
    expected, lines = run(toy_engine(method, group, dtype=torch.float64, **settings), 3)
    there = toy_engine(method, group, dtype=torch.float64, device=gpu, **settings)
    found, same = run(make_engine(there.method, there.federation, engine), 3)
    assert_close(on_cpu(found.tensors()), on_cpu(expected.tensors()))
    for line, was in zip(same, lines, strict=True):
        assert (line.accuracy, line.pooled, line.up, line.down) == (was.accuracy, was.pooled, was.up, was.down)
        torch.testing.assert_close(torch.tensor(line.loss), torch.tensor(was.loss), rtol=1e-5, atol=1e-7)
    assert not told(caplog)
    assert all(device == gpu for device in recordings)
    if engine == "batched" and method == "fedavg":
        assert recordings or gpu == CPU


def test_a_run_goes_on_from_a_resume_point(toy_engine, gpu, tmp_path):
    def engine():
        settings = {"optimiser": "adam", "keep_optimiser": True}
        there = toy_engine("fedproto", "two resnets", torch.float64, device=gpu, **settings)
        return make_engine(there.method, there.federation, "batched")

    whole, _ = run(engine(), 3)
    state, _ = run(engine(), 1)
    with ResumePoints(tmp_path) as points:
        points.save(state)
    state, fresh = points.load(gpu), engine()
    for round in (2, 3):
        state, _ = play_round(fresh, state, Draws(0).at(round))
    assert_close(on_cpu(state.tensors()), on_cpu(whole.tensors()))


@pytest.mark.parametrize("number", [False, True])
def test_a_cell_is_trained_and_evaluated_by_command(gpu, tmp_path, number):
    """On the device that settings name, with its number or without."""
    root = sweep_project.make(tmp_path)
    sweep_project.write(root, rounds=2, seeds=1, device=str(gpu) if number else gpu.type)
    ended = run_command(root, "train", sweep_project.NAME, "--row", "fedavg")
    assert ended.status == 0, ended.stderr
    cell = f"{sweep_project.NAME}/fedavg/fedavg/iid-s0"
    assert read_json(root / "runs" / cell / "run.json")["device"].startswith(gpu.type)
    assert 0 < read_json(root / "evaluations" / cell / "metrics.json")["average"] <= 1


def wide_federation(device: torch.device, dtype: torch.dtype = torch.float32, precision="float32") -> Federation:
    """Clients with two batches of random grey images each."""
    rng = Draws(0).numpy_generator("gpu")
    images = rng.integers(0, 256, (16 * MANY, 28, 28, 1)).astype(np.uint8)
    subset = Subset(images, (np.arange(len(images)) % 10).astype(np.int64))
    dataset = Dataset("grey", "Grey", tuple("abcdefghij"), {"train": subset, "test": subset}, "grey")
    partition = Partition(tuple(np.split(np.arange(len(images)), MANY)), None)
    method = wide_method()
    nowhere = os.devnull  # networks that train from scratch read no weights
    return build_federation(method, [WIDE], dataset, partition, nowhere, device, dtype, precision=precision)


def wide_method():
    return create("lg-fedavg", {"rounds": 3, "batch_size": 8, "local_epochs": 2, "lr": 0.01}, 10)


@pytest.fixture
def all_memory(gpu: torch.device) -> Iterator[None]:
    yield
    if gpu.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)
        free_memory(gpu)


@pytest.mark.parametrize("apart", [MANY, 0])
def test_clients_that_do_not_fit_train_in_smaller_groups(gpu, monkeypatch, caplog, all_memory, apart):
    """The engine is told that all fit, and the allocator has less than that takes."""
    monkeypatch.setattr(batched, "APART", apart)
    monkeypatch.setattr(batched, "free_bytes", lambda device: None)
    expected, _ = run(make_engine(wide_method(), wide_federation(CPU, torch.float64), "sequential"), 2)
    if gpu.type == "cuda":
        free_memory(gpu)
        torch.cuda.reset_peak_memory_stats(gpu)
    found, _ = run(make_engine(wide_method(), wide_federation(gpu, torch.float64), "batched"), 2)
    assert_close(on_cpu(found.tensors()), on_cpu(expected.tensors()))
    assert not told(caplog)
    if gpu.type != "cuda":
        pytest.skip("a CPU's memory has no bound that a test could set")
    peak, everything = torch.cuda.max_memory_reserved(gpu), torch.cuda.get_device_properties(gpu).total_memory
    del found
    free_memory(gpu)
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / everything, gpu)
    found, _ = run(make_engine(wide_method(), wide_federation(gpu, torch.float64), "batched"), 2)
    how = "apart" if apart else f"of {WIDE} at once"
    assert any(f"out of memory with {MANY} clients {how}" in message for message in told(caplog))
    assert_close(on_cpu(found.tensors()), on_cpu(expected.tensors()))


def test_memory_is_predicted_before_it_is_taken(gpu):
    """The prediction may be too large, since nothing is freed in it, but not too small by more than what is left."""
    engine = make_engine(wide_method(), wide_federation(gpu), "batched")
    if gpu.type == "cuda":
        free_memory(gpu)
        torch.cuda.reset_peak_memory_stats(gpu)
    run(engine, 2)
    predicted = engine.trainer.predicted_memory
    assert predicted > MANY * 22_000_000
    if gpu.type == "cuda":
        assert batched.SHARE * torch.cuda.max_memory_allocated(gpu) <= predicted


@pytest.mark.parametrize(("precision", "low", "high"), [("float32", 0, 1e-5), ("tf32", 5e-5, 1e-2)])
def test_networks_alone_round_the_factors_of_products(gpu, precision, low, high):
    """A product outside of networks has float32's precision in either case, also after a network was used."""
    exact, there = wide_federation(CPU, torch.float64), wide_federation(gpu, precision=precision)
    model, images = exact.models[0], exact.data[0].test_images.batch(exact.data[0].test)
    params = model.init(Draws(0), 0)
    with torch.no_grad():
        expected = model(params, images.images, None).logits
        model, images = there.models[0], there.data[0].test_images.batch(there.data[0].test)
        rounded = {name: tensor.to(gpu, torch.float32) for name, tensor in params.items()}
        with products(model.rounded):
            found = model(rounded, images.images, None).logits
    error = float((found.cpu().double() - expected).norm() / expected.norm())
    if gpu.type == "cuda" or precision == "float32":
        assert low <= error <= high
    factors = torch.rand(2, 512, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = torch.mm(*factors.to(gpu, torch.float32)).cpu().double()
    assert float((product - torch.mm(*factors)).abs().max() / 512) < 1e-6
