"""Prompts of groups: a sample is steered by the prompts of the group whose key is nearest to its feature.

FGPT and the methods that refine it differ in where the keys come from and in what the server does with them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from hetfl.config import Blocks
from hetfl.data.batches import Batch
from hetfl.message import Tensors
from hetfl.methods.parts.robust import COMBINING, mean_only
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model, ModelOptions


class GroupSettings(PTFedAvg.Settings):
    """How samples find their groups, whatever the keys; defaults are FGPT's.

    Attributes:
        groups: G.
        encoder: the model whose features are the queries; None: the clients' own backbone (else FGPT-ResNet).
        branches: groups that a sample is predicted with, their logits averaged (FGPT-U has 5).
        ensembles: numbers of branches that the same run is tested with as well, in the rounds of the window.
    """

    group_blocks: Annotated[Blocks, Field(min_length=1)] = (6,)
    groups: int = Field(default=20, ge=1)
    encoder: str | None = None
    branches: int = Field(default=1, ge=1)
    ensembles: tuple[Annotated[int, Field(ge=1)], ...] = ()

    _mean_only = field_validator(*COMBINING)(mean_only)

    @field_validator("branches", "ensembles")
    @classmethod
    def _no_more_than_groups(cls, value: Any, info: ValidationInfo) -> Any:
        groups = info.data.get("groups", 1)
        if max(value if isinstance(value, tuple) else (value,), default=1) > groups:
            raise ValueError(f"asks for more groups than there are ({groups})")
        return value


class GroupedPrompts(PTFedAvg):
    """PT-FedAvg with more than one group. Methods on it say in :meth:`queries` what features are, and have keys.

    These formulas belong to FGPT's ``numerics``.
    """

    settings: GroupSettings

    def model_options(self) -> ModelOptions:
        return super().model_options().model_copy(update={"groups": self.settings.groups})

    def points(self, batch: Batch) -> Tensor:
        """The queries [B, d], of length 1."""
        assert batch.queries is not None
        return F.normalize(batch.queries, dim=1)

    def similarity(self, params: Tensors, batch: Batch) -> Tensor:
        """The cosine of each query with each key [B, G]."""
        points = self.points(batch)
        return points @ F.normalize(self.keys(params, points), dim=1).T

    def choose(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The group of the key nearest to each query, [B] int64."""
        return self.similarity(params, batch).argmax(dim=1)

    @abstractmethod
    def keys(self, params: Tensors, like: Tensor) -> Tensor:
        """b_g [G, d], as wide as the queries ``like`` [B, d]."""

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The mean of the logits with the prompts of the ``branches`` nearest groups; FGPT-U has more than one."""
        chosen = self.similarity(params, batch).topk(self.settings.branches, dim=1).indices
        return model(params, batch.images, chosen).logits

    def extra_predictors(self, round: int) -> Mapping[str, Self]:
        """FGPT-U with the same parameters, for each number of branches in ``ensembles``."""
        s = self.settings
        if round <= s.rounds - s.window:
            return {}
        others = {f"top-{many}": s.model_copy(update={"branches": many}) for many in s.ensembles}
        known = self.num_classes, self.public_classes, self.seed
        return {name: type(self)(settings, *known) for name, settings in others.items()}
