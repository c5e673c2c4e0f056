"""Compiled functions. Without a GPU, torch's compiler traces them all the same, and joins nothing."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from playing import run
from torch import Tensor
from torch.func import vmap

from hetfl import fused
from hetfl.fused import Fused
from hetfl.models import vit
from hetfl.models.merged import MergedCalls


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Compiles on the CPU; the number of operations of each program."""
    from torch._dynamo import lookup_backend  # not where nothing is compiled: it takes seconds

    made: list[int] = []
    real = torch.compile

    def backend(graph, inputs):
        made.append(len(graph.graph.nodes))
        return lookup_backend("aot_eager")(graph, inputs)

    monkeypatch.setattr(fused, "compilable", lambda given: True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend=backend, **options))
    yield made
    torch.compiler.reset()


def test_every_shape_of_many_networks_is_compiled(programs):
    total = Fused(lambda x: x.sum(), shapes=True)
    for size in range(2, 22):
        assert total(torch.ones(size)) == size
    assert len(programs) == 20


def test_without_a_gpu_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    assert Fused(torch.square)(torch.full((2,), 3.0)).tolist() == [9.0, 9.0]


@pytest.mark.parametrize("error", [RuntimeError("Failed to find C compiler.\nSet CC"), ImportError("no triton")])
def test_what_cannot_be_compiled_is_called_with_a_warning(monkeypatch, caplog, error):
    def refuse(function, **options):
        def call(*given):
            raise error

        return call

    monkeypatch.setattr(fused, "compilable", lambda given: True)
    monkeypatch.setattr(torch, "compile", refuse)
    square = Fused(lambda x: x.square())
    assert [square(torch.tensor(value)).item() for value in (2.0, 3.0)] == [4.0, 9.0]
    (told,) = caplog.messages
    assert "cannot be compiled, and is slower without" in told and "\n" not in told


def test_too_little_memory_is_told(monkeypatch):
    def full(*given: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(fused, "compilable", lambda given: True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(torch.OutOfMemoryError):
        Fused(full)(torch.ones(1))


def test_lowered_blocks_share_a_program_and_see_all_clients(programs, toy_engine, monkeypatch):
    """Under ``vmap`` and without it, with the values and gradients of what is not compiled."""
    monkeypatch.setattr(vit, "_fused", Fused(vit._through))
    model = toy_engine("fedhpl", "homogeneous").models[0]
    assert model.lower()
    network = model._module
    blocks = [deepcopy(block) for block in network.body.blocks for _ in range(6)]
    drawn = torch.randn(3, 2, 7, network.body.embed_dim, generator=torch.Generator().manual_seed(0))
    tokens, prompts = (part.requires_grad_() for part in drawn.split([5, 2], dim=2))

    def through(one: Tensor, prompts: Tensor) -> Tensor:
        for place, block in enumerate(blocks):
            one = network.run(block, one, prompts if place else None)
        return one

    with MergedCalls():
        together = vmap(through)(tokens, prompts)
    one_by_one = torch.stack([through(*one) for one in zip(tokens, prompts, strict=True)])
    # The first block has no prompts to place; without vmap there is another number of samples.
    assert len(programs) <= 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "compilable", lambda given: False)
        expected = torch.stack([through(*one) for one in zip(tokens, prompts, strict=True)])
    wanted = torch.autograd.grad(expected.square().sum(), (tokens, prompts))
    for found in (together, one_by_one):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(
            torch.autograd.grad(found.square().sum(), (tokens, prompts)), wanted, rtol=1e-2, atol=1e-2
        )


def test_gradients_of_gradients_are_not_compiled(programs, toy_engine):
    """FedMix differentiates the gradient of the images, which no compiled function gives."""
    engine = toy_engine("fedmix", "homogeneous")
    for model in {*engine.models}:
        assert model.lower()
    _, lines = run(engine, rounds=1)
    assert all(loss == loss for loss in lines[-1].loss)
