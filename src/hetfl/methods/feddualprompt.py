"""Fed-DualPrompt: FGPT with learned keys, where the server averages everything by samples.

A sample picks the prompts whose key is nearest to its feature from a frozen encoder. The keys learn to come nearer to
the features that pick them. Prompts, keys and heads are averaged by samples.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, cross_entropy, register_method, weighted_mean
from hetfl.methods.fgpt import FGPT
from hetfl.methods.groupedprompts import GroupSettings
from hetfl.models.base import Model, ModelOptions


@register_method("fed-dualprompt")
class FedDualPrompt(FGPT):
    """DualPrompt (Wang et al., ECCV 2022) under FedAvg, FGPT's baseline; the paper says no more than that.

    A client that never picks a group returns its prompts unchanged, which dilutes what the others learned.
    """

    numerics = 1
    title = "Fed-DualPrompt"
    source = "Wang et al., ECCV 2022; FGPT, arXiv 2310.18285"
    travels = "prompts, keys and heads"

    class Settings(GroupSettings):
        """``pull``: weight lambda of the keys' loss; DualPrompt's."""

        pull: float = Field(default=1.0, ge=0)

    settings: Settings

    def model_options(self) -> ModelOptions:
        return super().model_options().model_copy(update={"keys": "uniform"})

    def trains(self) -> tuple[str, ...]:
        return ("shared", "group", "keys", "head")

    def keys(self, params: Tensors, like: Tensor) -> Tensor:
        """The learned keys [G, d]."""
        return params["keys"]

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy - lambda mean_i max_g cos(q_i, b_g): it pulls the nearest key b_g towards each query q_i."""
        cosines = self.similarity(params, batch)
        nearest, chosen = cosines.max(dim=1)
        loss = cross_entropy(model(params, batch.images, chosen).logits, batch)
        return loss - self.settings.pull * batch.mean(nearest)

    def uplink(self, work: Work) -> Message:
        """``shared`` [blocks, n, d], ``group`` [blocks, G, d], ``keys`` [G, d] and the head."""
        return Message(work.trained(self.shares()))

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """FedAvg's mean by the participants' samples, keys and group prompts included."""
        return server | {"model": weighted_mean(uplinks, server["samples"][uplinks.clients])}
