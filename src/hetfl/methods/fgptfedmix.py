"""FGPT with FedMix's loss: a sample's group is that of its unmixed image.

Prompts of groups come from FGPT, the loss on mixed images from FedMix. The server averages the prompts of a group by
the samples that clients have of it.
"""

from __future__ import annotations

from hetfl.methods.base import register_method
from hetfl.methods.fedmix import FedMix
from hetfl.methods.fgpt import FGPT


@register_method("fgpt-fedmix")
class FGPTFedMix(FGPT, FedMix):
    """FGPT (arXiv 2310.18285), Table 9."""

    numerics = 1
    title = "FGPT+FedMix"
    source = "arXiv 2310.18285, Table 9"
    travels = "prompts, heads, and counts of the groups; mean images once"

    class Settings(FGPT.Settings, FedMix.Settings):
        """FGPT's and FedMix's."""

    settings: Settings
