"""FedTGP's Tables 5, 8 and 12: elements of messages and operations of training, counted on what this project runs.

M stands for 10^6 and B for 10^9. No data set is read: how many samples of which class a client gets in the practical
split depends on how many there are, not on the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl.data.partitions.base import Side
from hetfl.experiments.plan import Params
from hetfl.methods.base import Method
from hetfl.metrics.flops import StepFlops, flops
from hetfl.models import Model
from hetfl.tables.counted.exchange import Exchange, SampleCost, Setting, fitted, float_elements, shapes
from hetfl.tables.counted.layout import Cells, Counts, layout, rounded
from hetfl.tables.notation import methods

METHODS = methods("fedtgp")

M, B = 10**6, 10**9
SMALLEST = "cnn"


def setting(params: Params) -> Setting:
    """The experiment behind Table 1's Cifar100, which has 600 samples of each class in its two splits."""
    return Setting(params, "fedtgp-htfe8-cifar100-practical", {"all": 600})


def table_5(params: Params) -> Counts:
    """Elements that travel in a round, by the paper's formulas and in the methods' own messages."""
    of, printed = setting(params), layout("fedtgp-table-5").printed
    sizes = formulas(of)
    found: Cells = {}
    shares: list[float] = []
    for row in METHODS:
        sent = exchange(of, row)
        found[row, "formula"] = printed[row, "formula"]
        found[row, "ours"] = f"{rounded(sizes[row] / M, 2)} r" if row == "fedkd" else sizes[row]
        found[row, "messages"] = float_elements([*sent.up, *sent.down])
        found[row, "bytes"] = sum(message.size.bytes for message in (*sent.up, *sent.down))
        if row == "fedkd":
            shares = [2 * float_elements(way) / sizes[row] for way in (sent.up, sent.down)]
    width, answered, given = model_of(of, "fedproto").width, of.clients * of.classes, printed["fedproto", "messages"]
    with_test = held_classes(of, ["train", "test"])
    # Sums over C_i that would make what is printed of the prototypes.
    lowest, beyond = (ceil(edge * M / width) - answered for edge in (given - 0.005, given + 0.005))
    facts = {
        "clients": of.clients,
        "classes": of.classes,
        "embedding": of.method("fedtgp").settings.model_dump()["embedding"],
        "held": held_classes(of),
        "gathered": sum(len(labels.unique()) for labels in gathered_labels(of, quick(of, "fedproto"))),
        "held_with_test": with_test,
        "with_test_M": width * (with_test + answered) / M,
        "printed_M": given,
        "lowest": lowest,
        "highest": beyond - 1,
        "up_share": shares[0],
        "down_share": shares[1],
        "printed_share": printed["fedkd", "messages"] / printed["fml", "messages"],
    }
    return Counts(found, facts, alone=[(row, "formula") for row in METHODS])


def table_12(params: Params) -> Counts:
    """Operations of one step with one sample per client; and Table 8, of each architecture."""
    of, table = setting(params), layout("fedtgp-table-12")
    names = [*table.models.values()]
    listed = {name: table.printed[name, "forward"] for name in names}
    single = {name: step(of, name=name) for name in names}
    alone = single[SMALLEST]
    models = models_of(of)
    found: Cells = {}
    for row in METHODS:
        own = step(of, row)
        # What a method adds works on images and features, and is the same beside every architecture.
        added = StepFlops(own.forward - alone.forward, own.backward - alone.backward)
        second = quick(of, row).model_options().auxiliary
        networks = sum(listed[name] + (listed[second] if second else 0) for name in models)
        # Clients do not train the generator.
        generator = 0 if second else of.clients * added.forward / B
        found[row, "times-4"] = 4 * networks + generator
        found[row, "times-3"] = 3 * networks + generator
        forward = sum(single[name].forward for name in models) + of.clients * added.forward
        found[row, "forward"] = forward / 2 / B
        found[row, "training"] = (sum(sum(single[name]) for name in models) + of.clients * sum(added)) / B
    for name, cost in single.items():
        found[name, "forward"], found[name, "training"] = cost.forward / 2 / B, sum(cost) / B
    seen = [len(labels) for labels in gathered_labels(of, quick(of, "fedproto"))]
    facts = {
        "clients": of.clients,
        "pixels": model_of(of, "fedproto").spec.size,
        **{name: step(of, name=name, pixels=224).forward / 2 / B for name in ("googlenet", "mobilenet_v2")},
        "server": server_flops(of) / B,
        "steps": sum(sum(single[name]) * samples for name, samples in zip(models, seen, strict=True)) / B,
    }
    return Counts(found, facts)


def models_of(of: Setting) -> list[str]:
    """Every client's architecture."""
    return of.cell.dealt(of.clients)


def held_classes(of: Setting, sides: Sequence[Side] = ("train",)) -> int:
    """The sum of C_i: pairs of a client and a class that it has samples of, on some sides of its part."""
    counts = [of.partition.class_counts(of.labels, of.classes, side) for side in sides]
    return int(np.count_nonzero(np.sum(counts, axis=0)))


def gathered_labels(of: Setting, method: Method) -> list[Tensor]:
    """Classes of the samples from which each client gathers what it sends: in training, those of whole batches."""
    size = method.settings.batch_size
    whole = method.statistics_source(round=1) != "training"
    parts = (part if whole else part[: len(part) // size * size] for part in of.partition.train)
    return [torch.from_numpy(of.labels[part]) for part in parts]


def formulas(of: Setting) -> dict[str, int]:
    """Table 5's formulas with the sizes of our models and split; FedKD's without r."""
    head = model_of(of, "lg-fedavg").elements(["head"])
    common = model_of(of, "fml").elements(["auxiliary"])
    fedgen = exchange(of, "fedgen", clients=1)
    generator = float_elements([fedgen.method.server_parameters(fedgen.server)])
    rows = held_classes(of) + of.clients * of.classes
    prototypes = rows * model_of(of, "fedproto").width
    return {
        "lg-fedavg": 2 * of.clients * head,
        "fedgen": of.clients * (2 * head + generator),
        "fml": 2 * of.clients * common,
        "fedkd": 2 * of.clients * common,
        "feddistill": rows * of.classes,
        "fedproto": prototypes,
        "fedtgp": prototypes,
    }


def quick(of: Setting, row: str, **changes: Any) -> Method:
    """A method of the paper's protocol, with a server that trains no longer than sizes need."""
    short: dict[str, dict[str, Any]] = {"fedtgp": {"server_epochs": 1}, "fedgen": {"server_steps": 1}}
    return of.method(row, **{**short.get(row, {}), **changes})


def model_of(of: Setting, row: str) -> Model:
    """The 4-layer CNN as a method wants it, of which only the shapes are there."""
    return shapes(quick(of, row), SMALLEST, of.cell.input.size)


def exchange(
    of: Setting,
    row: str,
    clients: int | None = None,
    name: str = SMALLEST,
    pixels: int | None = None,
    device: str = "cpu",
    **changes: Any,
) -> Exchange:
    """A first round of a method's, in which all clients take part.

    Args:
        of: the experiment.
        row: the method.
        clients: the first so many are all there are; None: those of the experiment.
        name: of the architecture.
        pixels: side of the images; None: the experiment's.
        device: of the model; see :func:`fitted`.
        **changes: of the method's settings.
    """
    method, side = quick(of, row, **changes), pixels or of.cell.input.size
    held = gathered_labels(of, method)[:clients]
    model = shapes(method, name, side) if device == "meta" else fitted(method, name, side, device)
    return Exchange(method, [model], held, len(held))


def step(of: Setting, row: str = "lg-fedavg", name: str = SMALLEST, pixels: int | None = None) -> StepFlops:
    """Operations of a step for one sample after the first round; LG-FedAvg's loss is the cross-entropy alone."""
    device = "meta" if row == "lg-fedavg" else "cpu"
    return SampleCost(exchange(of, row, 1, name, pixels, device)).steps[0]


def server_flops(of: Setting) -> int:
    """Operations of FedTGP's server in a round."""

    def aggregation(epochs: int) -> int:
        sent = exchange(of, "fedtgp", server_epochs=epochs)
        server, _ = sent.server, sent.up
        return flops(lambda: sent.aggregate(server))

    # Epochs differ in the order of their batches alone.
    once, twice = aggregation(1), aggregation(2)
    return once + (of.method("fedtgp").settings.model_dump()["server_epochs"] - 1) * (twice - once)
