"""FedRep: a shared body under each client's own head; a round trains the head first, then the body.

Clients differ in their labels more than in useful features, so only the body is averaged. In a round a client first
trains its head on the received body, then the body under that head. After the last round the heads are trained once
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from hetfl.draws import Draws
from hetfl.methods.base import Phase, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.models.base import Model


@register_method("fedrep")
class FedRep(FedAvg):
    """Collins et al., ICML 2021, Algorithm 1."""

    numerics = 1
    title = "FedRep"
    source = "Collins et al., ICML 2021"
    travels = "bodies"

    class Settings(FedAvg.Settings):
        """Defaults are FedHPL's reading with the authors' momentum.

        Attributes:
            local_epochs: passes that train the body.
            head_epochs: passes before them that train the head; 10 in the authors' CIFAR10 runs.
            finetune_epochs: passes after the last round that train the head only.
            heads: which head clients start with: the ``common`` one of the authors' code, or each its ``own``.
        """

        momentum: float = Field(default=0.5, ge=0, lt=1)
        head_epochs: int = Field(default=1, ge=0)
        finetune_epochs: int = Field(default=10, ge=0)
        heads: Literal["common", "own"] = "common"

    settings: Settings

    def keeps(self) -> tuple[str, ...]:
        return ("head",)

    def shares(self) -> tuple[str, ...]:
        return ("body",)

    def initial(self, model: Model, draws: Draws, client: int) -> dict[str, Tensor]:
        """A common head is drawn from the run's seed by every client, so it never travels."""
        return model.init(draws, -1 if self.settings.heads == "common" else client)

    def phases(self, round: int) -> Sequence[Phase]:
        if not round:
            return []
        return [self._head(self.settings.head_epochs), self.phase(name="body", trains=("body",))]

    def fine_tuning(self) -> Sequence[Phase]:
        epochs = self.settings.finetune_epochs
        return [self._head(epochs)] if epochs else []

    def _head(self, epochs: int) -> Phase:
        return self.phase(name="head", trains=("head",), epochs=epochs)
