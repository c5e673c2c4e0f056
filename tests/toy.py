"""The size of the toy federation, the networks of its clients, and settings that keep methods small on it."""

from __future__ import annotations

from typing import Any

from hetfl.methods import METHODS, create
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


VARIANTS = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "fedgen-counts": ("fedgen", {"labels": "counts", "tests": "global"}),
    "fedgen-common": ("fedgen", {"labels": "counts", "tests": "global", "first_head": "common"}),
    "fedproto-weighted": ("fedproto", {"average": "weighted", "collect": "before", "distance": "l2"}),
    "fedhpl-cnn": ("fedhpl", {"prompts": "frame", "prompt_length": 2}),
    "fedhpl-local": ("fedhpl", {"communicate": False}),
    "fedhpl-shallow": ("fedhpl", {"prompts": "shallow"}),
    "fedhpl-average-upload": ("fedhpl", {"upload": "average"}),
    "fedhpl-average-aggregation": ("fedhpl", {"aggregation": "average"}),
    "fedhpl-upload-all": ("fedhpl", {"selection": "all"}),
    "fedhpl-literal-counts": ("fedhpl", {"denominator": "samples"}),
    "fedhpl-plus-p": ("fedhpl", {"share": "prompts"}),
    "fedhpl-plus-h": ("fedhpl", {"share": "head"}),
}
"""Every method, and settings of some that are other formulas or other ways."""


RULES = {"fedhpl-average-aggregation", "fedhpl-upload-all", "fedhpl-literal-counts", "fedhpl-plus-h"}
"""Variants with another formula or another mask, whose numbers are golden, and no other way through an engine."""
PLAYED = {
    **{name: variant for name, variant in VARIANTS.items() if name not in RULES},
    "fedavg with adam": ("fedavg", {"optimiser": "adam"}),
    "fedproto with adam that is kept": ("fedproto", {"optimiser": "adam", "keep_optimiser": True}),
    "fedproto in the stored order, whole batches": ("fedproto", {"shuffle": False, "drop_last": True}),
    "fedprox without momentum": ("fedprox", {"momentum": 0.0}),
    "fedhe by sweep": ("fedhe", {"collect": "sweep"}),
    "fedhpl with dropout": ("fedhpl", {"prompt_dropout": 0.3}),
    "fedhpl-shallow with dropout": ("fedhpl", {"prompts": "shallow", "prompt_dropout": 0.3}),
    "sgpt by vote": ("sgpt", {"vote": True}),
}
"""What is played: every method, and settings that take another way through it or through an engine."""


def groups(variant: str) -> list[str]:
    """The model groups a variant runs on; ResNets for whatever trains any architecture from scratch."""
    return groups_of(*VARIANTS[variant])


def groups_of(method: str, settings: dict[str, Any]) -> list[str]:
    """The same of a method with some settings."""
    if settings.get("prompts") == "frame":
        return ["resnets"]
    if not METHODS[method].heterogeneous:
        return ["homogeneous"]
    trained = create(method, settings, 3).model_options().body == "trained"
    return ["homogeneous", "heterogeneous", *(["resnets"] if trained else [])]


def mixed_group(method: str, settings: dict[str, Any]) -> str:
    """Where the method can, two equal clients and a different one; ResNets for whatever trains any from scratch."""
    mixed = {"homogeneous": "homogeneous", "heterogeneous": "two vits", "resnets": "two resnets"}
    return mixed[groups_of(method, settings)[-1]]
