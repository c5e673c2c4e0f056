"""Parameters that clients with features of one width average among themselves."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hetfl.message import Tensors
from hetfl.methods.parts.averages import weighted_mean


def means_by_width(
    sent: Sequence[Tensors], clients: Sequence[int], widths: Tensor, samples: Tensor
) -> dict[str, dict[str, Tensor]]:
    """The mean by samples over the participants of each width, by :func:`of_width`.

    A client whose width nobody else has keeps its own parameters, so there is no mean of its width. Otherwise even a
    mean over a single participant replaces the older one. A width of which nobody takes part is left out.

    Args:
        sent: the parameters of each participant.
        clients: the participants, ascending.
        widths: [K] of all clients' features.
        samples: [K] of all clients.
    """
    means: dict[str, dict[str, Tensor]] = {}
    for width, owners in zip(*(found.tolist() for found in widths.unique(return_counts=True)), strict=True):
        places = [place for place, client in enumerate(clients) if widths[client] == width]
        if owners > 1 and places:
            weights = samples[[clients[place] for place in places]]
            means[of_width(width)] = weighted_mean([sent[place] for place in places], weights)
    return means


def of_width(width: int) -> str:
    """The group of the parameters that clients of a width share."""
    return f"shared.{width}"
