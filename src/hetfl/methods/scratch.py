"""What methods share whose clients train whole networks from random weights."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hetfl.methods.base import Method, MethodSettings
from hetfl.models.base import ModelOptions


class ScratchSettings(MethodSettings):
    """How the clients' networks are built.

    Attributes:
        embedding, reduce, stem: see :class:`hetfl.models.ModelOptions`.
        init: initialisation of ResNets and heads: timm's, or torch's and torchvision's.
    """

    embedding: int | None = Field(default=None, ge=1)
    reduce: Literal["linear", "pool"] = "linear"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    init: Literal["timm", "torch"] = "timm"


class Scratch(Method):
    """A method whose clients train whole networks from random weights."""

    numerics = 1
    Settings = ScratchSettings
    settings: ScratchSettings

    def model_options(self) -> ModelOptions:
        return self.fitted()

    def fitted(self, **more: Any) -> ModelOptions:
        """The model options of the settings, and ``more``."""
        s = self.settings
        return ModelOptions(
            body="trained",
            weights="scratch",
            embedding=s.embedding,
            reduce=s.reduce,
            stem=s.stem,
            init=s.init,
            **more,
        )

    def trains(self) -> tuple[str, ...]:
        return ("body", "projection", "head")
