"""pFedPT: FedAvg of whole networks, where each client learns a border of its own that is added to its images.

Borders are pixels around an image that a client learns and keeps; they tell the common network whose images it sees.
In a round the client trains its border and the network. Only the network is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from hetfl.methods.base import Phase, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.models.base import ModelOptions


@register_method("pfedpt")
class PFedPT(FedAvg):
    """Li et al., "Visual Prompt Based Personalized Federated Learning", TMLR 2024; tested after local training."""

    numerics = 1
    title = "pFedPT"
    source = "Li et al., TMLR 2024"
    travels = "all parameters but the border"
    evaluates = "client"

    class Settings(FedAvg.Settings):
        """Defaults are the authors'; the border's width is the one that FedHPL's Table 5 counts.

        Attributes:
            prompt_length: width of the border in pixels.
            prompt_epochs, prompt_lr, prompt_momentum: local training of the border, with the model fixed.
            keep_optimiser: the momentum of the border, and of the model if it has some, is kept from round to round.
            local_epochs, lr: local training of the model afterwards, with the border fixed.
        """

        local_epochs: int = Field(default=5, ge=1)
        lr: float = Field(default=0.05, gt=0)
        momentum: float = Field(default=0.0, ge=0, lt=1)
        weight_decay: float = Field(default=0.0, ge=0)
        keep_optimiser: bool = True
        drop_last: bool = True
        prompt_length: int = Field(default=4, ge=1)
        prompt_epochs: int = Field(default=5, ge=0)
        prompt_lr: float = Field(default=1.0, gt=0)
        prompt_momentum: float = Field(default=0.5, ge=0, lt=1)

    settings: Settings

    def model_options(self) -> ModelOptions:
        s = self.settings
        return ModelOptions(prompts="border", prompt_length=s.prompt_length, body="trained", weights=s.weights)

    def trains(self) -> tuple[str, ...]:
        return ("prompts", "body", "head")

    def keeps(self) -> tuple[str, ...]:
        return self.trains()

    def shares(self) -> tuple[str, ...]:
        return ("body", "head")

    def phases(self, round: int) -> Sequence[Phase]:
        if not round:
            return []
        s = self.settings
        border = self.phase(
            name="border",
            trains=("prompts",),
            epochs=s.prompt_epochs,
            optimiser="sgd",
            lr=s.prompt_lr,
            momentum=s.prompt_momentum,
        )
        return [border, self.phase(trains=("body", "head"))]
