"""FGPT's Tables 2 and 10: what trains and travels, and what a sample costs, counted on what this project runs.

M stands for 10^6, MB for 10^6 bytes, and GMAC for 10^9 multiplications, each with the addition after it. No data set
and no weights are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hetfl.draws import Draws
from hetfl.experiments.plan import Params
from hetfl.methods.base import Method
from hetfl.metrics.flops import flops
from hetfl.tables.counted.exchange import (
    Exchange,
    SampleCost,
    Setting,
    encoder,
    fitted,
    float_bytes,
    float_elements,
    integer_bytes,
    of_all_classes,
    shapes,
)
from hetfl.tables.counted.layout import Cells, Counts, layout, rounded
from hetfl.training.sampling import participants

MODELS = layout("fgpt-table-2").models
VIT = MODELS["vit_b16"]
PATCH, BLOCKS = 16, 12
"""Of ViT-B/16: sides of its patches in pixels, and its blocks."""

MAIN = "cifar100-20"
PLACES = {MAIN: "fgpt-cifar100-s10", "cifar100-25": "fgpt-cifar100-s5", "five": "fgpt-five"}
"""Where methods are compared -> the experiment whose settings they have."""
SGPTS = {"sgpt-s10": "sgpt-cifar100-s10", "sgpt-s50": "sgpt-cifar100-s50", "sgpt-office": "sgpt-office"}
"""The same of SGPT, which inserts its prompts elsewhere."""
SENDERS = [*layout("fgpt-table-2").parts[1].rows]
"""Rows of the methods whose messages depend on the numbers of classes and groups alone."""
STAGES = ("sgpt-first", "sgpt-second")
COSTS = [row for part in layout("fgpt-table-10").parts[:2] for row in part.rows if row not in STAGES]
"""Rows of the methods in Table 10."""


class Family:
    """The methods with the settings that they have in the experiments.

    Args:
        params: with all the experiments that ``fgpt.yaml`` counts with.

    Attributes:
        at: the experiments, by names of :data:`PLACES` and :data:`SGPTS`.
    """

    def __init__(self, params: Params) -> None:
        samples = {"train": 500, "test": 100}
        self.at = {place: Setting(params, name, samples) for place, name in {**PLACES, **SGPTS}.items()}
        rows = {
            row: params.experiments[experiment].rows[row]
            for experiment, row in (("fgpt-share", "pt-fedavg-share"), ("fgpt-resnet", "fgpt-resnet"))
        }
        self._variants: dict[str, tuple[str, dict[str, Any]]] = {
            **{row: (settings.method, settings.settings) for row, settings in rows.items()},
            "fgpt-u2": ("fgpt", {"branches": 2}),
            "fgpt-u5": ("fgpt", {"branches": 5}),
        }

    def method(self, row: str, place: str = MAIN, **changes: Any) -> Method:
        """A row's method at a place, with some changes."""
        name, settings = self._variants.get(row, (row, {}))
        return self.at[place].method(name, **{**settings, **changes})

    def exchange(self, row: str, place: str = MAIN, sizes: Sequence[int] = (1,), **more: Any) -> Exchange:
        """The first round of a row's method on ViT-B/16; ``sizes`` are the clients' numbers of samples."""
        return first_round(self.method(row, place, **more), VIT, sizes)


def first_round(method: Method, name: str, sizes: Sequence[int] = (1,), **more: Any) -> Exchange:
    """The first round of a method on an architecture of which only the shapes are there."""
    held = [of_all_classes(samples, method.num_classes) for samples in sizes]
    return Exchange(method, [shapes(method, name)], held, **more)


def table_2(params: Params) -> Counts:
    """Numbers that train and travel; and those of every method, in the methods' own messages."""
    family = Family(params)
    main = family.at[MAIN]
    found: Cells = {}
    average = main.method("fedavg")
    rounds = {row: first_round(average, MODELS[row]) for row in ("resnet18", "resnet50", "vit_b16")}
    for row, sent in {**rounds, "vit_b16-fgpt": family.exchange("fgpt")}.items():
        found[row, "params"] = float_elements(sent.up)
        found[row, "trained"] = sent.method.trained_elements(sent.models[0])
        found[row, "up"], found[row, "down"] = float_elements(sent.up), float_elements(sent.down)
        found[row, "bytes"] = float_bytes(sent.up)
        found[row, "run"] = run_bytes(sent, main)
    for row, prefix, method, place in [
        *((row, place, row, place) for place in PLACES for row in SENDERS),
        *((place, "sgpt", "sgpt", place) for place in SGPTS),
    ]:
        sent = family.exchange(method, place)
        ways = {"up": sent.up, "down": sent.down}
        for suffix, count in (("", float_elements), ("-bytes", float_bytes), ("-integers", integer_bytes)):
            for way, messages in ways.items():
                found[row, f"{prefix}-{way}{suffix}"] = count(messages)
        found[row, f"{prefix}-run"] = run_bytes(sent, family.at[place])
    for row, counts in _once(family).items():
        found[row, "once-up"], found[row, "once-down"], found[row, "kept"] = counts
    fgpt, sizes = family.method("fgpt"), client_sizes(main)
    backbone = shapes(fgpt, VIT)
    frozen = backbone.total_elements - backbone.elements(fgpt.trains())
    facts = {
        "classes": main.classes,
        "frozen": frozen,
        "frozen_MB": 4 * frozen / 10**6,
        "rounds": fgpt.settings.rounds,
        "participants": _participants(fgpt, main),
        "least": min(sizes),
        "most": max(sizes),
    }
    return Counts(found, facts)


def table_10(params: Params) -> Counts:
    """Cost of a sample: its prediction, a step of training, the feature it is sorted by; and ratios to PT-FedAvg."""
    family, printed = Family(params), layout("fgpt-table-10").printed
    costs = {row: SampleCost(family.exchange(row)) for row in COSTS}
    embeddings = {row: gmac(own.embedding) for row, own in costs.items()}
    updates = {row: [gmac(sum(step)) for step in own.steps] for row, own in costs.items()}
    ours = {
        row: {"testing": embeddings[row] + gmac(own.prediction), "training": sum(updates[row])}
        for row, own in costs.items()
    }
    base = ours["pt-fedavg"]
    found: Cells = {}
    for row, own in ours.items():
        terms = [own["testing"], *([embeddings[row]] if embeddings[row] else [])]
        found |= {(row, column): value for column, value in own.items()}
        if embeddings[row]:
            found[row, "embedding"] = embeddings[row]
        found[row, "constant"] = " + ".join(rounded(term, 2) for term in terms)
        found[row, "slope"] = own["training"]
        for column, value in own.items():
            found[row, f"{column}-ratio"] = value / base[column]
    for row, update in zip(STAGES, updates["sgpt"], strict=True):
        found[row, "training"], found[row, "training-ratio"] = update, update / base["training"]
    vit, plain = costs["fgpt"].model, embeddings["fgpt"]
    tokens = 1 + (vit.spec.size // PATCH) ** 2
    images, epochs = image_gradient(family), family.method("fedmoon").settings.local_epochs
    facts = {
        "pixels": vit.spec.size,
        "plain": plain,
        "without_attention": plain - gmac(2 * BLOCKS * 2 * tokens**2 * vit.width),
        # PT-FedAvg is not printed; FedMix predicts as it does, and FGPT takes its steps.
        "testing_ratio": printed["fgpt", "testing"] / printed["fedmix", "testing"],
        "training_ratio": printed["fedmix", "training"] / printed["fgpt", "training"],
        "needed": ours["fedmix"]["training"] - images,
        "images": images,
        "cached": base["training"] + 2 * base["testing"] / epochs,
        "epochs": epochs,
        "server": server_cost(family),
    }
    return Counts(found, facts)


def run_bytes(sent: Exchange, place: Setting) -> int:
    """Bytes of the values that travel up and down in all rounds of a run."""
    each = float_bytes(sent.up) + float_bytes(sent.down)
    return int(sent.method.settings.rounds * _participants(sent.method, place) * each)


def client_sizes(place: Setting) -> list[int]:
    """Training samples of each client."""
    return [len(part) for part in place.partition.train]


def gmac(operations: int) -> float:
    """Thousand million multiply-adds: a multiplication and the addition after it are two operations."""
    return operations / 2 / 10**9


def server_cost(family: Family) -> float:
    """GMAC of pFedHN's server in a round."""
    method, main = family.method("pfedhn"), family.at[MAIN]
    sent = first_round(method, VIT, [1] * main.clients, participants=_participants(method, main))
    server, _ = sent.after, sent.up
    return gmac(flops(lambda: sent.downlinks(server)) + flops(lambda: sent.aggregate(server, round=2)))


def image_gradient(family: Family) -> float:
    """GMAC of the gradient of an image from that of its patches' tokens."""
    vit = fitted(family.method("fedmix"), VIT)
    return gmac(2 * (vit.spec.size // PATCH) ** 2 * 3 * PATCH**2 * vit.width)


def _participants(method: Method, place: Setting) -> int:
    return len(participants(place.clients, method.settings.participation, Draws(0)))


def _once(family: Family) -> dict[str, tuple[int, int, int]]:
    """Bytes that a client sends and is sent once, and that are kept instead of being sent."""
    found, sizes = {}, client_sizes(family.at[MAIN])
    for row, chunk in (("pool", None), ("pool-5", 5)):
        sent = family.exchange("fedmix", sizes=sizes, chunk=chunk)
        up = float_bytes(sent.registered) / len(sent.registered)
        found[row] = round(up), float_bytes(sent.first) - float_bytes(sent.down), 0
    kept = {}
    for row in ("fgpt", "fgpt-resnet"):
        method = family.method(row)
        by = encoder(method, fitted(method, VIT))
        kept[f"{row}-keys"] = method.keys({}, torch.zeros(1, by.width))  # type: ignore[union-attr, attr-defined]
    moon, hyper = family.exchange("fedmoon"), family.exchange("pfedhn", sizes=sizes)
    bytes_of = {row: float_bytes([{row: keys}]) for row, keys in kept.items()}
    bytes_of["previous"] = float_bytes([moon.kept])
    bytes_of["network"] = float_bytes([hyper.method.server_parameters(hyper.server)])
    bytes_of["query"] = float_bytes([{"query": torch.zeros(moon.models[0].width)}])
    return found | {row: (0, 0, count) for row, count in bytes_of.items()}
