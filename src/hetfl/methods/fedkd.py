"""FedKD: FML with distilled features as well, whose common network travels as truncated singular values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, cross_entropy, register_method, weighted_mean
from hetfl.methods.fml import FML
from hetfl.models.base import Model, ModelOptions

FACTORS = ("/u", "/s", "/v")
"""Of a matrix or a stack of them: orthonormal columns, singular values, orthonormal rows."""


@register_method("fedkd")
class FedKD(FML):
    """Wu et al., Nature Communications 2022, in the form of the benchmark that FedTGP's tables come from.

    It compresses parameters, not updates. A client's square matrix maps the common network's features onto its own
    ones and never travels; all clients start from the same common network.
    """

    numerics = 1
    title = "FedKD"
    source = "Wu et al., Nature Communications 2022"
    travels = "the common network, truncated"

    class Settings(FML.Settings):
        """Defaults are FedTGP's and its benchmark's.

        Attributes:
            energy_start, energy_end: share of the squared singular values that must travel, in the first round and
                in what would be the round after the last; linear in between.
        """

        energy_start: float = Field(default=0.95, gt=0, le=1)
        energy_end: float = Field(default=0.95, gt=0, le=1)

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
    ) -> dict[str, Tensor]:
        return {}

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return restore(message)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Both cross-entropies; divided by their sum, both divergences and the feature loss of each network."""
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
        return Message(truncate(super().uplink(work), self.energy(work.round)))

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """The plain mean of the participants' restored networks, truncated again: the server keeps no more."""
        restored = map(restore, uplinks)
        return truncate(weighted_mean(restored, torch.ones(len(uplinks))), self.energy(draws.round))

    def energy(self, round: int) -> float:
        """The share of squared singular values that travels at the end of round r: start + (r-1)/T (end - start)."""
        s = self.settings
        return float(s.energy_start + (round - 1) / s.rounds * (s.energy_end - s.energy_start))


def truncate(tensors: Tensors, energy: float) -> dict[str, Tensor]:
    """Replace matrices [o, i] and kernels [o, c, h, w] by the factors of their largest singular values.

    A kernel is a stack of o x c small matrices with one rank for all. Vectors and single rows stay whole.

    Args:
        tensors: parameters by name.
        energy: the kept squares must be more than this share of all. Where only the full rank has them, as in a
            convolution of 1x1, it is kept; the authors' code sends zeros there.

    Raises:
        HetflError: a value is not finite, so that there are no singular values.
    """
    sent: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or len(tensor) == 1:
            sent[name] = tensor
            continue
        if not tensor.isfinite().all():
            raise HetflError(f"{name} is not finite and has no singular values: training diverged; lower lr")
        u, s, v = torch.linalg.svd(tensor, full_matrices=False)
        squares = s.double().square().reshape(-1, s.shape[-1]).sum(dim=0)
        rank = int((squares.cumsum(0) <= energy * squares.sum()).sum()) + 1
        kept = min(rank, s.shape[-1])
        parts = (u[..., :kept], s[..., :kept], v[..., :kept, :])
        sent |= {name + factor: part.contiguous() for factor, part in zip(FACTORS, parts, strict=True)}
    return sent


def restore(sent: Tensors) -> dict[str, Tensor]:
    """The tensors that :func:`truncate` took apart, in their order, without what was cut off."""
    u, s, v = FACTORS
    tensors: dict[str, Tensor] = {}
    for name, tensor in sent.items():
        if name.endswith(u):
            whole = name.removesuffix(u)
            tensors[whole] = (tensor * sent[whole + s][..., None, :]) @ sent[whole + v]
        elif not name.endswith((s, v)):
            tensors[name] = tensor
    return tensors
