"""FedTGP's Tables 5, 8 and 12: elements of messages and operations of training, counted on what this project runs.

M stands for 10^6 and B for 10^9. No data set is read: how many samples of which class a client gets in the practical
split depends on how many there are, not on the images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl.data.batches import Batch, class_counts
from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Partition, Practical, make_partition
from hetfl.data.partitions.base import Side
from hetfl.data.store import Dataset, Split
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell, Params, cells
from hetfl.message import Message, ServerState
from hetfl.methods.base import Client, Method, Uplinks, Work, create
from hetfl.metrics.flops import StepFlops, flops, step_flops
from hetfl.models import Model, build
from hetfl.papers import counted
from hetfl.papers.counted import Counted, formula, number, remarked, rounded
from hetfl.papers.fedtgp import CIFAR100, METHODS, printed

M, B = 10**6, 10**9
CLASSES, PER_CLASS = 100, 600
"""Cifar100's classes, and the samples of each in both its splits."""
LABELS = np.repeat(np.arange(CLASSES), PER_CLASS)
HTFE_8 = {
    "cnn": "4-layer-CNN",
    "googlenet": "GoogleNet",
    "mobilenet_v2": "MobileNet_v2",
    "resnet18": "ResNet18",
    "resnet34": "ResNet34",
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "resnet152": "ResNet152",
}
"""The architectures' names in Table 8."""
SMALLEST = "cnn"


@dataclass(frozen=True, eq=False)
class Setting:
    """What is counted: a cell of every method, one seed, of the experiment behind Table 1's Cifar100."""

    cells: Mapping[str, Cell]

    @classmethod
    def of(cls, params: Params) -> Setting:
        """The setting as params.yaml has it."""
        every = cells(params, CIFAR100)
        return cls({cell.row: cell for cell in every if cell.seed == every[0].seed})

    @property
    def clients(self) -> int:
        """How many there are."""
        return int(self._any.partition["clients"])

    @property
    def pixels(self) -> int:
        """Of a side of the images."""
        size = self._any.input.size
        if size is None:
            raise HetflError(f"pipeline/fedtgp/params.yaml: experiments of {CIFAR100}: need an input.size")
        return size

    @property
    def dealt(self) -> list[str]:
        """Every client's architecture."""
        return [self._any.models[client % len(self._any.models)] for client in range(self.clients)]

    @cached_property
    def split(self) -> Partition:
        """The partition of Cifar100 that all methods and trials share; it counts through :data:`LABELS`."""
        pool = Split(np.empty((len(LABELS), 0), np.uint8), LABELS)
        dataset = Dataset("cifar100", "Cifar100", tuple(map(str, range(CLASSES))), {"all": pool}, checksum="")
        scheme = Practical.model_validate(self._any.partition | {"pool": ("all",)})
        return make_partition(scheme, dataset, Draws(self._any.seed))

    @property
    def _any(self) -> Cell:
        return next(iter(self.cells.values()))


_NOTE = "Counted, not trained. M: a million, B: a thousand million, MB: a million bytes."


def arithmetic_table(name: str, params: Params) -> dict[str, Any]:
    """Count what one of the tables counts; see :func:`hetfl.papers.counted.arithmetic_table`.

    Args:
        name: ``fedtgp-table-5`` or ``fedtgp-table-12``.
        params: whose experiments have the settings that it counts with.

    Raises:
        HetflError: there is no such table.
    """
    return counted.arithmetic_table(name, params, ARITHMETIC_TABLES, _NOTE)


def table_5(params: Params) -> Counted:
    """Elements that travel in a round, by the paper's formulas and in the methods' own messages."""
    of = Setting.of(params)
    given = printed()["table_5"]["rows"]
    sizes = formulas(of)
    cells, remarks = [], {}
    for row, title in METHODS.items():
        up, down = messages(of, quick(of, row))
        practice = given[title]["practice_M"]
        ours = number(row, "ours", sizes[row] / M, "M", 2)
        if row == "fedkd":
            ours = formula(row, "ours", f"{ours['value_text']} r", "M")
            ratios = [2 * floating_elements(way) / sizes[row] for way in (up, down)]
            remarks[row, "messages"] = _on_ratios(ratios, practice / given["FML"]["practice_M"])
        if row in ("fedproto", "fedtgp"):
            remarks[row, "messages"] = _on_classes(of, practice)
        cells += [
            formula(row, "formula", given[title]["theory"], "M"),
            ours,
            number(row, "messages", floating_elements([*up, *down]) / M, "M", 2, practice),
            number(row, "bytes", sum(message.size.bytes for message in (*up, *down)) / M, "MB", 2),
        ]
    gathered = sum(len(np.unique(labels)) for labels in gathered_labels(of, quick(of, "fedproto")))
    return Counted(
        "FedTGP, Table 5: elements that travel in a round, Cifar100, practical setting, HtFE_8",
        METHODS,
        {
            "formula": "Printed formula",
            "ours": "Formula, our sizes (M)",
            "messages": "Our messages (M)",
            "bytes": "Our messages (MB)",
        },
        remarked(cells, remarks),
        [SMALLEST],
        [
            f"One round of {of.clients} clients, up and down, once the server has something to send. In the formulas "
            f"M is the number of clients, C = {CLASSES} and K = {of.cells['fedtgp'].settings['embedding']}; C_i are "
            "our split's, heads, the generator and the common network of FML and FedKD our models'. What travels "
            "has the same size for all eight architectures.",
            "M: elements of floating-point tensors, as in the paper. MB: everything in the messages, with the class "
            "numbers and FedGen's label counts.",
            "FedDistill and FedProto gather while they train, without the samples of the last incomplete batch: the "
            f"sum over C_i is {held_classes(of)} in the formulas and {gathered} in their messages.",
        ],
    )


def table_12(params: Params) -> Counted:
    """Operations of one step with one sample per client; and Table 8, of each architecture."""
    of = Setting.of(params)
    listed = {name: printed()["table_8"]["rows"][title]["flops_B"] for name, title in HTFE_8.items()}
    given = printed()["table_12"]["rows"]
    single = {name: architecture_flops(of, name) for name in HTFE_8}
    alone = method_flops(of, "lg-fedavg")
    cells = []
    for row, title in METHODS.items():
        own = method_flops(of, row)
        # What a method adds works on images and features, and is the same beside every architecture.
        added = StepFlops(own.forward - alone.forward, own.backward - alone.backward)
        forward = sum(single[name].forward for name in of.dealt) + of.clients * added.forward
        training = sum(sum(single[name]) for name in of.dealt) + of.clients * sum(added)
        second = quick(of, row).model_options().auxiliary
        networks = sum(listed[name] + (listed[second] if second else 0) for name in of.dealt)
        # Clients do not train the generator.
        generator = 0 if second else of.clients * added.forward / B
        cells += [
            number(row, "times-4", 4 * networks + generator, "B", 2, given[title]["flops_B"]),
            number(row, "times-3", 3 * networks + generator, "B", 2),
            number(row, "forward", forward / 2 / B, "B", 3),
            number(row, "training", training / B, "B", 3),
        ]
    for name, step in single.items():
        cells += [
            number(name, "forward", step.forward / 2 / B, "B", 3, listed[name]),
            number(name, "training", sum(step) / B, "B", 3),
        ]
    seen = [len(labels) for labels in gathered_labels(of, quick(of, "fedproto"))]
    clients = sum(sum(single[name]) * samples for name, samples in zip(of.dealt, seen, strict=True))
    copied = {"times-4": "Table 8 times 4 (B)", "times-3": "Table 8 times 3 (B)"}
    measured = {"forward": "Forward, counted (B MAC)", "training": "Forward and backward, counted (B FLOP)"}
    googlenet, mobilenet = (
        rounded(architecture_flops(of, name, pixels=224).forward / 2 / B, 3) for name in ("googlenet", "mobilenet_v2")
    )
    return Counted(
        "FedTGP, Tables 12 and 8: operations of one training step with one sample per client, Cifar100, HtFE_8",
        METHODS | {name: title.replace("-CNN", " CNN") for name, title in HTFE_8.items()},
        copied | measured,
        cells,
        [*HTFE_8],
        [
            "Table 12 adds Table 8 up over the clients. By the text a backward pass costs two forward ones, which "
            "makes a step three times the sum; the printed numbers are four times the sum. They are of one sample "
            "per client, not of a round.",
            "Added to the sum: for FML and FedKD the 4-layer CNN beside every client's network; for FedGen the "
            "forward pass of the generator and of the head on its features, as counted here.",
            "Table 8 is from the literature, in part for larger images: with 224 x 224 pixels GoogLeNet takes "
            f"{googlenet} and MobileNet_v2 {mobilenet} B MAC. The 4-layer CNN's number has no source.",
            f"Counted: matrix products and convolutions for images of {of.pixels} x {of.pixels}, by each method's "
            "own loss; 1 MAC, a multiplication and an addition, is 2 FLOP. The first layer takes no gradient of the "
            "images, so a backward pass is less than two forward ones.",
            "Not in the table: the singular value decompositions of FedKD's clients (9.35 B by the text), and what "
            f"servers do. FedTGP's takes {server_flops(of) / B:,.0f} B FLOP in a round, its clients' steps "
            f"{clients / B:,.0f} B (counted, with our split).",
        ],
        head="Method, model",
        blocks=[
            {"title": f"Table 12: {of.clients} clients", "rows": [*METHODS], "columns": [*copied, *measured]},
            {"title": "Table 8: one client", "rows": [*HTFE_8], "columns": [*measured]},
        ],
        packages=("torch", "torchvision", "timm"),
    )


ARITHMETIC_TABLES: dict[str, Callable[[Params], Counted]] = {"fedtgp-table-5": table_5, "fedtgp-table-12": table_12}
"""By the name of the stage."""


def held_classes(of: Setting, sides: Sequence[Side] = ("train",)) -> int:
    """The sum of C_i: pairs of a client and a class that it has samples of, on some sides of its part."""
    counts = [of.split.class_counts(LABELS, CLASSES, side) for side in sides]
    return int(np.count_nonzero(np.sum(counts, axis=0)))


def gathered_labels(of: Setting, method: Method) -> list[np.ndarray]:
    """Labels of the samples from which each client gathers what it sends: in training, those of whole batches."""
    size = method.settings.batch_size
    whole = method.statistics_source(round=1) != "training"
    return [LABELS[part if whole else part[: len(part) // size * size]] for part in of.split.train]


def formulas(of: Setting) -> dict[str, int]:
    """Table 5's formulas with the sizes of our models and split; FedKD's without r."""
    head = fitted(of, quick(of, "lg-fedavg")).elements(["head"])
    common = fitted(of, quick(of, "fml")).elements(["auxiliary"])
    fedgen = quick(of, "fedgen")
    generator = sum(tensor.numel() for tensor in fedgen.server_parameters(_collected(of, fedgen)[0]).values())
    rows = held_classes(of) + of.clients * CLASSES
    prototypes = rows * fitted(of, quick(of, "fedproto")).width
    return {
        "lg-fedavg": 2 * of.clients * head,
        "fedgen": of.clients * (2 * head + generator),
        "fml": 2 * of.clients * common,
        "fedkd": 2 * of.clients * common,
        "feddistill": rows * CLASSES,
        "fedproto": prototypes,
        "fedtgp": prototypes,
    }


def messages(of: Setting, method: Method, clients: int | None = None) -> tuple[list[Message], list[Message]]:
    """What the clients send in a round with fresh parameters, and what the server sends them after it."""
    server, up = _collected(of, method, clients)
    server = method.aggregate(server, Uplinks.of(up), Draws(0, round=1))
    return [*up.values()], [method.downlink(server, client) for client in up]


def floating_elements(sent: Iterable[Message]) -> int:
    """Elements of the floating-point tensors in messages."""
    return sum(tensor.numel() for message in sent for tensor in message.values() if tensor.is_floating_point())


def architecture_flops(of: Setting, name: str, pixels: int | None = None) -> StepFlops:
    """Operations for one sample when an architecture learns by cross-entropy alone."""
    method = quick(of, "lg-fedavg")
    with torch.device("meta"):
        model = fitted(of, method, name, pixels)
        params = model.init(Draws(0), 0)
        batch = _batch(torch.zeros(method.settings.batch_size, dtype=torch.int64), pixels or of.pixels)
    return _per_sample(step_flops(method, model, params, batch, {}), batch)


def method_flops(of: Setting, row: str) -> StepFlops:
    """Operations for one sample when the 4-layer CNN learns by a method, after the first round."""
    method = quick(of, row)
    model = fitted(of, method)
    params = method.initial(model, Draws(0), 0)
    _, down = messages(of, method, clients=1)
    batch = _batch(torch.zeros(method.settings.batch_size, dtype=torch.int64), of.pixels)
    return _per_sample(step_flops(method, model, params, batch, method.receive(down[0], {})), batch)


def server_flops(of: Setting) -> int:
    """Operations of FedTGP's server in a round."""

    def aggregation(epochs: int) -> int:
        method = quick(of, "fedtgp", server_epochs=epochs)
        server, up = _collected(of, method)
        return flops(lambda: method.aggregate(server, Uplinks.of(up), Draws(0, round=1)))

    # Epochs differ in the order of their batches alone.
    once, twice = aggregation(1), aggregation(2)
    return once + (of.cells["fedtgp"].settings["server_epochs"] - 1) * (twice - once)


def quick(of: Setting, row: str, **more: Any) -> Method:
    """A method of the paper's protocol, with a server that trains no longer than sizes need."""
    short: dict[str, dict[str, Any]] = {"fedtgp": {"server_epochs": 1}, "fedgen": {"server_steps": 1}}
    return create(row, {**of.cells[row].settings, **short.get(row, {}), **more}, CLASSES)


def fitted(of: Setting, method: Method, name: str = SMALLEST, pixels: int | None = None) -> Model:
    """An architecture as a method wants it."""
    return build(name, CLASSES, method.model_options(), inputs=InputSettings(size=pixels or of.pixels))


def _collected(of: Setting, method: Method, clients: int | None = None) -> tuple[ServerState, dict[int, Message]]:
    """A server before it aggregates, and the uplinks that it has."""
    clients, model = clients or of.clients, fitted(of, method)
    work = [
        _work(of, method, model, client, labels)
        for client, labels in enumerate(gathered_labels(of, method)[:clients])
    ]
    registrations = {done.client.index: method.register(done) for done in work}
    server = method.initial_server([model] * clients, registrations, Draws(0))
    return server, {done.client.index: method.uplink(done) for done in work}


def _work(of: Setting, method: Method, model: Model, client: int, labels: np.ndarray) -> Work:
    """A client's first round as far as sizes need it: statistics of one sample of each class, and no training."""
    params = method.initial(model, Draws(0), client)
    batch = _batch(torch.from_numpy(np.unique(labels)), of.pixels)
    with torch.no_grad():
        statistics = method.statistics(model, params, batch, {})
    counts = class_counts(torch.from_numpy(labels), CLASSES).long()
    return Work(Client(client, model, counts), Draws(0, round=1), {}, params, params, statistics, steps=1)


def _batch(labels: Tensor, pixels: int) -> Batch:
    return Batch(torch.zeros(len(labels), 3, pixels, pixels), labels)


def _per_sample(step: StepFlops, batch: Batch) -> StepFlops:
    return StepFlops(*(count // len(batch.labels) for count in step))


def _on_ratios(ours: Sequence[float], needed: float) -> str:
    """What FedKD's r is up and down, and what it would be for the printed number."""
    up, down = (rounded(ratio, 3) for ratio in ours)
    return (
        f"r depends on the common network's weights. Here they are fresh: {up} up, and {down} down, where their mean "
        f"is cut once more. The printed number needs {rounded(needed, 3)}, of trained weights; the sizes that runs "
        "measured stand in the columns Up and Down of Table 1."
    )


def _on_classes(of: Setting, given: float) -> str:
    """Which sums of C_i would make what is printed of the prototypes."""
    width, sent = fitted(of, quick(of, "fedproto")).width, of.clients * CLASSES
    lowest, beyond = (ceil(edge * M / width) - sent for edge in (given - 0.005, given + 0.005))
    all_held = held_classes(of, ["train", "test"])
    return (
        f"The sum over C_i is {held_classes(of)} in our split, {all_held} with the classes of the test samples "
        f"({rounded(width * (all_held + sent) / M, 2)} M); {given} needs {lowest} to {beyond - 1}."
    )
