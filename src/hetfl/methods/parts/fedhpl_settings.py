"""FedHPL's settings: its hyper-parameters, and a switch for each ablation and each doubtful reading of the paper."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from hetfl.methods.contract import MethodSettings


class FedHPLSettings(MethodSettings):
    """FedHPL's own settings; defaults are the paper's.

    Attributes:
        prompts: VPT-deep (prompts at every block), VPT-shallow (at the first), or for CNNs a frame of pixels.
        prompt_length: n, prompts per block, or the frame's width in pixels.
        prompt_dropout: share of the prompts' values that training drops, drawn for each sample. The paper states
            none; VPT's authors have 0, and 0.1 in their example of VPT-deep.
        head_init: initialisation of the head.
        communicate: False is the paper's "Local".
        gamma: weight of the distillation loss (Eq. 2).
        temperature: T of Eq. 9.
        squared_temperature: multiply the distillation loss by T^2, as FedGKT's code does and Eq. 9 does not.
        selection: which logits are uploaded; ``all`` is Fig. 3c's ablation.
        upload: ``raw`` logits with labels, or their mean and count per class (Eq. 10, Tables 9-11).
        aggregation: ``weighted`` by the widths (Eq. 7), or ``average`` (beta = 1, Fig. 3c).
        denominator: counts in Eq. 8, ``uploaded`` logits or, read literally, all ``samples`` of the class.
        share: parameters that clients of equal width also average: Table 3's "+P" and "+H".
        theorem: record the terms of Theorem 1; it changes neither the messages nor any other number.
        prior_std: s of the normal distributions used as the theorem's posterior and prior.
    """

    keep_optimiser: bool = True
    prompts: Literal["deep", "shallow", "frame"] = "deep"
    prompt_length: int = Field(default=3, ge=1)
    prompt_dropout: float = Field(default=0.0, ge=0, lt=1)
    head_init: Literal["timm", "vpt"] = "timm"
    communicate: bool = True
    gamma: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=4.5, gt=0)
    squared_temperature: bool = False
    selection: Literal["correct", "all"] = "correct"
    upload: Literal["raw", "average"] = "raw"
    aggregation: Literal["weighted", "average"] = "weighted"
    denominator: Literal["uploaded", "samples"] = "uploaded"
    share: Literal["none", "prompts", "head"] = "none"
    theorem: bool = True
    prior_std: float = Field(default=0.1, gt=0)

    @field_validator("prompt_dropout")
    @classmethod
    def _of_tokens(cls, share: float, info: ValidationInfo) -> float:
        if share and info.data.get("prompts") == "frame":
            raise ValueError("is of deep or shallow prompts; with prompts: frame it must be 0")
        return share
