"""LG-FedAvg: clients of any architecture share and average their heads and keep their own bodies.

A body learns features of the client's own data; a head of the same size everywhere can be averaged. In each round a
client trains both and sends the head.
"""

from __future__ import annotations

from hetfl.methods.base import register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.methods.scratch import Scratch


@register_method("lg-fedavg")
class LGFedAvg(Scratch, FedAvg):  # type: ignore[misc]  # the settings are those of Scratch
    """Liang et al., "Think Locally, Act Globally", NeurIPS workshop 2019; in FedTGP Table 1.

    A client trains its whole network and is tested with the server's newest head.
    """

    numerics = 1
    title = "LG-FedAvg"
    source = "Liang et al., NeurIPS workshop 2019"
    heterogeneous = True
    travels = "heads"
    linear_heads = equal_features = True

    def keeps(self) -> tuple[str, ...]:
        return ("body", "projection")

    def shares(self) -> tuple[str, ...]:
        return ("head",)
