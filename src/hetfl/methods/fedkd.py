"""FedKD: FML that also distils features and sends the common network as truncated singular values.

As in FML, a large network of the client's own and a small common one learn from the data and from each other's
predictions; here also from each other's features. What travels is the common network, each matrix as the largest of
its singular values with their vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, cross_entropy, register_method, weighted_mean
from hetfl.methods.fml import FML
from hetfl.methods.parts.singular_values import restore, truncate
from hetfl.models.base import Model, ModelOptions


@register_method("fedkd")
class FedKD(FML):
    """Wu et al., Nature Communications 2022, in the form of the benchmark that FedTGP's tables come from.

    It compresses parameters, not updates. All clients start from the same common network and keep their copy. A
    client's square matrix maps the common network's features onto its own ones and never travels. The server keeps
    the truncated common network, as it is sent.
    """

    numerics = 1
    title = "FedKD"
    source = "Wu et al., Nature Communications 2022"
    travels = "the common network, truncated"

    class Settings(FML.Settings):
        """Defaults are FedTGP's and its benchmark's. FML's ``alpha`` and ``beta`` have no part in it.

        Attributes:
            energy_start, energy_end: share of the squared singular values that is sent, in the first round and in
                the one that would follow the last; linear in between.
        """

        energy_start: float = Field(default=0.95, gt=0, le=1)
        energy_end: float = Field(default=0.95, gt=0, le=1, validate_default=True)

        @field_validator("alpha", "beta")
        @classmethod
        def _no_weights(cls, value: float, info: ValidationInfo) -> float:
            if value != cls.model_fields[str(info.field_name)].default:
                raise ValueError("is FML's, and FedKD's losses have no such weight; remove it")
            return value

        @field_validator("energy_end")
        @classmethod
        def _not_below_the_start(cls, value: float, info: ValidationInfo) -> float:
            if value < (start := info.data.get("energy_start", 0)):
                raise ValueError(f"should not be below energy_start, which is {start}")
            return value

    settings: Settings

    def model_options(self) -> ModelOptions:
        return super().model_options().model_copy(update={"transform": True})

    def networks(self) -> tuple[tuple[str, ...], ...]:
        return (*super().networks(), ("transform",))

    def keeps(self) -> tuple[str, ...]:
        return self.trains()

    def initial(self, model: Model, draws: Draws, client: int) -> dict[str, Tensor]:
        common = model.init(draws, client=-1)
        return model.init(draws, client) | {name: common[name] for name in model.names(["auxiliary"])}

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        return ServerState()

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return restore(message)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """h + (KL(q || p) + KL(p || q) + 2 mean_i |f_i - W g_i|^2 / d) / h, with h = CE(p) + CE(q).

        p and q are the logits [B, C], f and g the features [B, d] of the own and of the common network; W is [d, d].
        """
        own, common = model(params, batch.images), model.auxiliary(params, batch.images)
        hard = cross_entropy(own.logits, batch) + cross_entropy(common.logits, batch)
        divergence = self.divergence(common.logits, own.logits, batch) + self.divergence(
            own.logits, common.logits, batch
        )
        mapped = F.linear(common.features, params["transform.weight"])
        hidden = batch.mean((own.features - mapped).square().mean(dim=1))
        scale = hard.detach() if self.settings.detach else hard
        return hard + (divergence + 2 * hidden) / scale

    def uplink(self, work: Work) -> Message:
        """The factors of the client's common network; see :func:`truncate`."""
        return Message(truncate(super().uplink(work), self.energy(work.round)))

    def contents(self, message: Message) -> Tensors:
        """The restored common network."""
        return restore(message)

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """The plain mean of the participants' restored networks, truncated again."""
        mean = weighted_mean(map(restore, uplinks), torch.ones(len(uplinks)))
        return ServerState(truncate(mean, self.energy(draws.round)))

    def energy(self, round: int) -> float:
        """The share of squared singular values sent at the end of round r of T: start + (r - 1) / T (end - start)."""
        s = self.settings
        return s.energy_start + (round - 1) / s.rounds * (s.energy_end - s.energy_start)
