"""FedBABU: FedAvg of the bodies under a fixed random head; at the end each client fine-tunes body and head.

While the head is fixed, all clients' bodies learn features for the same classifier, so their mean is meaningful.
After the last round every client fine-tunes body and head on its own data. The fine-tuned models are tested.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor

from hetfl.draws import Draws
from hetfl.methods.base import Phase, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.models.base import Model


@register_method("fedbabu")
class FedBABU(FedAvg):
    """Oh et al., ICLR 2022. Every client draws the same head from the run's seed, so it never travels."""

    numerics = 1
    title = "FedBABU"
    source = "Oh et al., ICLR 2022"
    travels = "bodies"

    class Settings(FedAvg.Settings):
        """``finetune_epochs``: each client's passes over its data after the last round, training body and head."""

        finetune_epochs: int = Field(default=10, ge=0)

    settings: Settings

    def trains(self) -> tuple[str, ...]:
        return ("body",)

    def keeps(self) -> tuple[str, ...]:
        return ("head",)

    def initial(self, model: Model, draws: Draws, client: int) -> dict[str, Tensor]:
        """The same for every client."""
        return model.init(draws, -1)

    def fine_tuning(self) -> Sequence[Phase]:
        epochs = self.settings.finetune_epochs
        return [self.phase(name="tuning", trains=("body", "head"), epochs=epochs)] if epochs else []
