"""Features that samples are sorted by: computed once, kept by content."""

from __future__ import annotations

import pytest
import torch

from hetfl.methods import create
from hetfl.training import federation, queries
from hetfl.training.federation import build_federation


@pytest.fixture
def made(weights, toy_data, toy_partition, tmp_path):
    """Builds a federation whose features are kept in a folder; returns the training images."""

    def build(name: str = "fgpt", groups: int | None = 3, **settings):
        grouped = {"groups": groups} if groups else {}
        method = create(name, {"shared_blocks": (1,), "group_blocks": (2,), **grouped, **settings}, 3)
        models = ["digits_vit_base"] * 3
        cpu = torch.device("cpu")
        found = build_federation(method, models, toy_data, toy_partition, weights, cpu, features=tmp_path / "kept")
        return found.data[0].train_images, found.clients[0].model

    return build


def test_they_are_the_frozen_backbones_without_prompts(made):
    images, model = made()
    batch = images.batch(torch.tensor([4, 0, 59]))
    assert torch.allclose(batch.queries, model.query(batch.images), atol=1e-5)
    assert batch.queries.shape == (3, 48)


def test_they_are_computed_before_models_get_a_lower_precision(made, monkeypatch):
    told = []
    real, compute = federation.set_precision, federation.queries_of
    monkeypatch.setattr(federation, "set_precision", lambda *given: told.append("precision") or real(*given))
    monkeypatch.setattr(federation, "queries_of", lambda *given: told.append("queries") or compute(*given))
    made()
    assert told == ["queries", "queries", "precision"]


def test_they_are_computed_once(made, tmp_path, monkeypatch):
    first, _ = made()
    kept = sorted((tmp_path / "kept").iterdir())
    assert len(kept) == 2  # training and test images
    monkeypatch.setattr(queries, "QUERY_BATCH", None)  # computing again would fail
    again, _ = made(groups=2)
    assert torch.equal(first.queries, again.queries)


def test_a_damaged_copy_is_made_anew(made, tmp_path):
    first, _ = made()
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    again, _ = made()
    assert torch.equal(first.queries, again.queries)


def test_another_block_or_encoder_is_another_content(made, tmp_path):
    first, model = made()
    lower, _ = made("sgpt", query_block=1)
    assert not torch.equal(first.queries, lower.queries)
    batch = lower.batch(torch.arange(5))
    assert torch.allclose(batch.queries, model.query(batch.images, 1), atol=1e-5)
    other, _ = made(encoder="digits_resnet_small")
    assert other.queries.shape == (60, 16)
    assert len(list((tmp_path / "kept").iterdir())) == 6


def test_methods_without_groups_have_none(made, tmp_path):
    images, _ = made("pt-fedavg", groups=None)
    assert images.queries is None
    assert not (tmp_path / "kept").exists()
