"""Supervised training of backbones on one subset of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from hetfl.config import Different, Settings
from hetfl.data.batches import DeviceImages
from hetfl.data.inputs import InputSettings
from hetfl.data.store import Dataset
from hetfl.draws import Draws, seeded_library_code
from hetfl.methods.base import predicted_classes
from hetfl.models import input_spec
from hetfl.models.registry import creator, weights_path
from hetfl.tensors import write_tensors


class PretrainSettings(Settings):
    """Supervised training of backbones on one subset of a data set."""

    dataset: str
    subset: str = "public"
    models: Different[str]
    input: InputSettings = InputSettings()
    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    lr: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    seed: int = 0


def pretrain(name: str, settings: PretrainSettings, dataset: Dataset, folder: Path, device: torch.device) -> float:
    """Train one backbone with a linear head by AdamW under a one-cycle schedule, and store the backbone.

    Args:
        name: of the architecture.
        settings: the protocol.
        dataset: holds the subset to train on.
        folder: gets ``<name>.safetensors``.
        device: where to train.

    Returns:
        The training accuracy in the last epoch, as a fraction.
    """
    draws = Draws(settings.seed)
    images = DeviceImages([dataset.subset(settings.subset)], settings.input.spec(input_spec(name)), device)
    with seeded_library_code(draws.key(f"pretrain:{name}")):
        body: Any = creator(name)()
        model = nn.Sequential(body, nn.Linear(body.num_features, dataset.num_classes)).to(device)
    steps = -(-len(images) // settings.batch_size)
    optimiser = torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.lr, settings.epochs * steps)
    correct = 0
    for epoch in range(settings.epochs):
        correct = 0
        order = torch.randperm(len(images), generator=draws.generator(f"pretrain:{name}", -1, epoch)).to(device)
        augment, seed = settings.input.transform(), draws.key("augment", -1, epoch)
        for batch in images.batches(order, settings.batch_size, augment, seed):
            logits = model(batch.images)
            optimiser.zero_grad()
            F.cross_entropy(logits, batch.labels).backward()
            optimiser.step()
            schedule.step()
            correct += int((predicted_classes(logits) == batch.labels).sum())
    write_tensors(weights_path(name, folder), body.state_dict(), {"model": name})
    return correct / len(images)
