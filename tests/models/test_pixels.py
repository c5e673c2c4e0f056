"""Frames and borders: geometry, values, start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hetfl.data.batches import InputSpec
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.models import ModelOptions, build
from hetfl.models.pixels import Border, Frame

TINY = InputSpec(2, "bilinear", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def test_frame_goes_around_the_image_and_its_ends_own_the_corners():
    frame = Frame(1, TINY).requires_grad_(False)
    frame.sides.copy_(torch.tensor([[0.0, 1.0], [0.5, 0.25]]))
    frame.ends.copy_(torch.tensor([[0.0, 0.25, 0.5, 0.75], [1.0, 1.0, 0.0, 0.0]]))
    image = torch.tensor([[10.0, 11.0], [12.0, 13.0]])
    framed = frame(image.expand(5, 3, 2, 2))
    # Pixel values 0, 0.25, ... are normalised to -2, -1, ...; the image is normalised already.
    expected = [[-2.0, -1.0, 0.0, 1.0], [-2.0, 10.0, 11.0, 2.0], [0.0, 12.0, 13.0, -1.0], [2.0, 2.0, -2.0, -2.0]]
    assert torch.equal(framed, torch.tensor(expected).expand(5, 3, 4, 4))


def test_border_is_added_and_leaves_the_middle():
    border = Border(1, InputSpec(3, "bilinear", (0.5,) * 3, (0.5,) * 3)).requires_grad_(False)
    border.up.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    border.left.fill_(4.0)
    border.right.fill_(5.0)
    border.down.copy_(torch.tensor([[6.0, 7.0, 8.0]]))
    bordered = border(torch.full((2, 3, 3, 3), 10.0))
    expected = torch.tensor([[11.0, 12.0, 13.0], [14.0, 10.0, 15.0], [16.0, 17.0, 18.0]])
    assert torch.equal(bordered, expected.expand(2, 3, 3, 3))


def test_shapes_of_the_papers_prompts():
    spec = InputSpec(32, "bilinear", (0.5,) * 3, (0.5,) * 3)
    frame = Frame(3, spec)
    assert (frame.sides.shape, frame.ends.shape) == ((1, 3, 32, 6), (1, 3, 6, 38))
    border = Border(4, spec)
    assert (border.up.shape, border.left.shape) == ((1, 3, 4, 32), (1, 3, 24, 4))
    assert sum(strip.numel() for strip in border.parameters()) == 1344


def test_frames_start_uniform_and_borders_normal(weights: Path):
    frame = build(
        "resnet18.random", 3, ModelOptions(prompts="frame", prompt_length=10), weights, InputSettings(size=32)
    )
    values = torch.cat([value.flatten() for key, value in frame.init(Draws(0), 0).items() if "prompts" in key])
    assert 0 <= values.min() < 0.01 and 0.99 < values.max() <= 1
    border = build("digits_vit_small", 3, ModelOptions(prompts="border", prompt_length=4), weights)
    values = torch.cat([value.flatten() for key, value in border.init(Draws(0), 0).items() if "prompts" in key])
    assert values.numel() == 1344
    assert abs(values.mean()) < 0.1 and abs(values.std() - 1) < 0.1


def test_pixel_prompts_are_seen_through_the_whole_model(weights: Path):
    for name, prompts in (("digits_resnet_small.random", "frame"), ("digits_vit_small", "border")):
        model = build(name, 3, ModelOptions(prompts=prompts, prompt_length=2), weights)
        params = model.init(Draws(0), 0)
        images = torch.randn(2, 3, model.spec.size, model.spec.size, generator=torch.Generator().manual_seed(0))
        for key in model.names(["prompts"]):
            params[key].requires_grad_()
        model(params, images).logits.square().sum().backward()
        assert all(params[key].grad.abs().sum() > 0 for key in model.names(["prompts"]))


def test_a_border_without_a_middle_is_refused(weights: Path):
    with pytest.raises(HetflError, match="a border of 16 leaves nothing of 32x32 images"):
        build("digits_vit_small", 3, ModelOptions(prompts="border", prompt_length=16), weights)
