"""What a mean of parameters can be replaced by where some clients may be hostile, and clipped and noised uplinks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Tensors
from hetfl.methods.contract import MethodSettings
from hetfl.methods.parts.averages import weighted_mean


class CombiningSettings(MethodSettings):
    """How a server combines the parameters that participants send. By default it takes their mean by samples.

    Attributes:
        combine: ``mean``; or value by value, every client counting the same, the ``median`` or the mean without the
            ``trim`` largest and smallest values, ``trimmed`` (Yin et al., ICML 2018).
        trim: share of the participants that is left out at either end; rounded down.
        largest_change: L2 norm to which the server shortens longer changes, all tensors of an uplink as one vector
            (Sun et al., arXiv 1911.07963); None: it takes them as they are.
        noise: a client shortens its change to ``largest_change`` itself, and adds to each value normal noise of this
            times that norm before it sends it; 0: none. The record has the ``epsilon`` of differential privacy.
        delta: for which ``epsilon`` is told.
    """

    combine: Literal["mean", "median", "trimmed"] = "mean"
    trim: float = Field(default=0.2, ge=0, lt=0.5)
    largest_change: float | None = Field(default=None, gt=0)
    noise: float = Field(default=0.0, ge=0, le=1e6)
    delta: float = Field(default=1e-5, gt=0, lt=1)

    @field_validator("noise")
    @classmethod
    def _noise_is_of_a_norm(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("largest_change") is None:
            raise ValueError("needs largest_change, the norm that the noise is a multiple of")
        return value


COMBINING = tuple(CombiningSettings.__annotations__)
"""The names of these settings."""


def mean_only(cls: type[MethodSettings], value: Any, info: ValidationInfo) -> Any:
    """A validator of these settings, for methods whose server does more than to take the mean of parameters."""
    if value != CombiningSettings.model_fields[str(info.field_name)].default:
        raise ValueError("is for methods whose server only takes the mean of parameters; remove it")
    return value


def combined(
    messages: Iterable[Tensors], weights: Tensor, before: Tensors, settings: CombiningSettings
) -> dict[str, Tensor]:
    """One set of parameters from those of the participants.

    Args:
        messages: at least one, with the same names and shapes.
        weights: [n], of the mean.
        before: the parameters that clients began with, by name.
        settings: the rule.

    Returns:
        The parameters by name, in the messages' own types.
    """
    s = settings
    if s.largest_change is not None and not s.noise:
        messages = (shortened(message, before, s.largest_change) for message in messages)
    if s.combine == "mean":
        return weighted_mean(messages, weights)
    held = list(messages)
    left_out = (len(held) - 1) // 2 if s.combine == "median" else int(s.trim * len(held))
    found = {}
    for name, tensor in held[0].items():
        values = torch.stack([message[name].double() for message in held]).sort(dim=0).values
        found[name] = values[left_out : len(held) - left_out].mean(dim=0).to(tensor.dtype)
    return found


def shortened(params: Tensors, before: Tensors, longest: float) -> dict[str, Tensor]:
    """Parameters whose change, all tensors as one vector, has at most a given L2 norm.

    Where some are on the meta device there are no values, and they stay as they are.
    """
    if any(tensor.is_meta for tensor in params.values()):
        return dict(params)
    change = {name: tensor.double() - before[name].double() for name, tensor in params.items()}
    norm = torch.stack([tensor.square().sum() for tensor in change.values()]).sum().sqrt()
    share = longest / norm.clamp(min=longest)
    return {
        # What is short enough stays as it is, to the bit.
        name: torch.where(share < 1, before[name].double() + share * change[name], tensor.double()).to(tensor.dtype)
        for name, tensor in params.items()
    }


def noised(
    params: Tensors, before: Tensors, settings: CombiningSettings, draws: Draws, client: int
) -> dict[str, Tensor]:
    """What a client sends instead of its parameters: its change shortened, with noise (Abadi et al., CCS 2016).

    The noise is drawn by the run's seed, so that a run can be repeated. Who knows the seed can take it away again.
    """
    assert settings.largest_change is not None
    generator = draws.generator("uplink noise", client)
    scale = settings.noise * settings.largest_change
    return {
        name: tensor + scale * torch.randn(tensor.shape, generator=generator).to(tensor)
        for name, tensor in shortened(params, before, settings.largest_change).items()
    }


@cache
def epsilon(noise: float, delta: float, uplinks: int) -> float:
    """The epsilon of (epsilon, delta)-differential privacy of a client that has sent some noised uplinks.

    It is about a client's whole data: what the server sees with them, and with a client that changes nothing. It
    holds against a server that sees each uplink by itself, and does not cover the number of samples, which clients
    send as it is. Computed by dp-accounting from the distribution of the privacy loss.

    Args:
        noise: standard deviation of the noise over the largest norm of the change.
        delta: the probability with which epsilon need not hold.
        uplinks: that were sent.

    Raises:
        HetflError: dp-accounting is not installed.
    """
    try:
        from dp_accounting import dp_event
        from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
    except ImportError as error:
        raise HetflError("noise: needs dp-accounting; install it with pip install 'hetfl[privacy]'") from error
    if not uplinks:
        return 0.0
    accountant = PLDAccountant()
    # So many uplinks tell as much as one with less noise.
    accountant.compose(dp_event.GaussianDpEvent(noise / math.sqrt(uplinks)))
    return float(accountant.get_epsilon(delta))
