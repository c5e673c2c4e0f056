"""What methods have in common whose clients train whole networks from random values."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hetfl.methods.base import Method, MethodSettings
from hetfl.models.base import ModelOptions


class ScratchSettings(MethodSettings):
    """How a network is fitted out.

    Attributes:
        embedding, reduce, stem: see :class:`hetfl.models.ModelOptions`.
        init: how ResNets and heads start, as timm or as torch and torchvision have it.
    """

    embedding: int | None = Field(default=None, ge=1)
    reduce: Literal["linear", "pool"] = "linear"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    init: Literal["timm", "torch"] = "timm"


class Scratch(Method):
    """A method whose clients train whole networks from random values."""

    numerics = 1
    Settings = ScratchSettings

    def model_options(self) -> ModelOptions:
        return self.fitted()

    def fitted(self, **more: Any) -> ModelOptions:
        """What the settings say, and more of the method's own."""
        s = self.settings
        chosen = {"embedding": s.embedding, "reduce": s.reduce, "stem": s.stem, "init": s.init}
        return ModelOptions(body="trained", weights="scratch", **chosen, **more)

    def trains(self) -> tuple[str, ...]:
        return ("body", "projection", "head")
