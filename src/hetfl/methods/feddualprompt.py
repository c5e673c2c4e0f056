"""Fed-DualPrompt: FGPT with keys that are learned, and everything averaged by samples."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, cross_entropy, register_method
from hetfl.methods.fgpt import FGPT, GroupSettings
from hetfl.models.base import Model, ModelOptions


@register_method("fed-dualprompt")
class FedDualPrompt(FGPT):
    """DualPrompt (Wang et al., ECCV 2022) under FedAvg, FGPT's baseline; the paper gives no more than that.

    A client pulls the key that a sample's query is nearest to towards it. Whoever never picks a group returns its
    prompt unchanged, which dilutes what the others learned.
    """

    numerics = 1
    title = "Fed-DualPrompt"
    source = "Wang et al., ECCV 2022; FGPT, arXiv 2310.18285"
    travels = "prompts, keys and heads"

    class Settings(GroupSettings):
        """``pull``: weight lambda of the keys' loss; DualPrompt's."""

        pull: float = Field(default=1.0, ge=0)

    def model_options(self) -> ModelOptions:
        return super().model_options().model_copy(update={"keys": "uniform"})

    def trains(self) -> tuple[str, ...]:
        return ("shared", "group", "keys", "head")

    def keys(self, params: Tensors, like: Tensor) -> Tensor:
        return params["keys"]

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        cosines = self.similarity(params, batch)
        nearest, chosen = cosines.max(dim=1)
        loss = cross_entropy(model(params, batch.images, chosen).logits, batch)
        return loss - self.settings.pull * batch.mean(nearest)

    def uplink(self, work: Work) -> Message:
        return super(FGPT, self).uplink(work)

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """Everything by the participants' samples, keys included."""
        return super(FGPT, self).aggregate(server, uplinks, draws)
