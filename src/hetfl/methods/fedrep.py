"""FedRep: a common body under a head of each client's own; a round trains the head first, then the body."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from hetfl.methods.base import Phase, register_method
from hetfl.methods.fedavg import FedAvg


@register_method("fedrep")
class FedRep(FedAvg):
    """Collins et al., ICML 2021."""

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
        """

        momentum: float = Field(default=0.5, ge=0, lt=1)
        head_epochs: int = Field(default=1, ge=0)
        finetune_epochs: int = Field(default=10, ge=0)

    def keeps(self) -> tuple[str, ...]:
        return ("head",)

    def shares(self) -> tuple[str, ...]:
        return ("body",)

    def phases(self, round: int) -> Sequence[Phase]:
        if not round:
            return []
        return [self.phase(trains=("head",), epochs=self.settings.head_epochs), self.phase(trains=("body",))]

    def closing(self) -> Sequence[Phase]:
        epochs = self.settings.finetune_epochs
        return [self.phase(trains=("head",), epochs=epochs)] if epochs else []
