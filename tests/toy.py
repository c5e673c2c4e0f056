"""The size of the toy federation, the networks of its clients, and settings that keep methods small on it."""

from __future__ import annotations

from hetfl.methods import METHODS
from hetfl.training.registry import ENGINES

LOCAL_ENGINES = [name for name, kind in ENGINES.items() if not kind.own_processes]
CLASSES = 3
GROUPS = {
    "homogeneous": ["digits_vit_base"] * 3,
    "heterogeneous": ["digits_vit_small", "digits_vit_base", "digits_vit_large"],
    "resnets": ["digits_resnet_small", "digits_resnet_base", "digits_resnet_large"],
    "two vits": ["digits_vit_small", "digits_vit_base"],
    "two resnets": ["digits_resnet_small", "digits_resnet_base"],
}

PROMPTED = {"shared_blocks": (1,), "group_blocks": (2,), "prompt_length": 2, "participation": 1.0, "local_epochs": 1}

TOY = {
    **{name: PROMPTED for name in ("pt-fedavg", "fedmoon", "fedmix", "pfedhn")},
    **{name: PROMPTED | {"groups": 3} for name in ("fgpt", "fed-dualprompt", "sgpt", "fgpt-fedmix")},
    "fedpr": PROMPTED | {"group_blocks": ()},
    "fedkd": {"embedding": 16, "auxiliary": "digits_resnet_small"},
    "fml": {"embedding": 16, "auxiliary": "digits_resnet_small"},
    "lg-fedavg": {"embedding": 16},
    "fedgen": {"embedding": 16, "noise": 4, "server_steps": 5},
    "fedgh": {"embedding": 16},
    "fedmd": {"public_epochs": 1, "private_epochs": 1, "local_epochs": 2, "alignment_samples": 12, "digest_batch": 8},
    "fedproto": {"embedding": 16, "flat": None},
    "fedtgp": {"embedding": 16, "server_epochs": 5},
    "pfedpg": {"prompt_length": 2, "inner": 8, "batch_size": 8, "local_epochs": 2},
    "pfedpt": {"prompt_length": 2, "prompt_epochs": 1, "local_epochs": 1},
}
"""Settings that keep a method small on the toy federation."""


def most_varied(method: str) -> str:
    """The group with different networks where a method can have it."""
    return "heterogeneous" if METHODS[method].heterogeneous else "homogeneous"
