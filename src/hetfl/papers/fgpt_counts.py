"""FGPT's Tables 2 and 10: what trains and travels, and what a sample costs, counted on what this project runs.

M stands for 10^6, MB for 10^6 bytes, and GMAC for 10^9 multiplications, each with the addition after it. No data set
and no weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.data.partitions import Pathological, make_partition
from hetfl.data.sets import CATALOGUE
from hetfl.data.store import Dataset, Split
from hetfl.draws import Draws
from hetfl.experiments.plan import Params, cells, shared_settings
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Client, Method, Statistics, Uplinks, Work, create
from hetfl.methods.fedmix import FedMix
from hetfl.methods.sgpt import SGPT
from hetfl.metrics.flops import flops, step_flops
from hetfl.models import Model, ModelOptions, build
from hetfl.papers import counted
from hetfl.papers.counted import Cell, Counted, formula, number, remarked, rounded, whole
from hetfl.papers.fgpt import METHODS, printed
from hetfl.training.sampling import participants

M, GIGA = 10**6, 10**9
VIT = "vit_base_patch16_224.orig_in21k"
RESNET = "resnet50.tv_in1k"
PIXELS, PATCH, BLOCKS = 224, 16, 12
"""Of ViT-B/16: sides of images and patches, and its blocks."""
STORED = 32
"""Side of CIFAR-100's images."""


@dataclass(frozen=True)
class Place:
    """Where methods are compared.

    Attributes:
        title: of the setting.
        experiment: whose settings they have.
        classes: C of the data set.
        clients: of the partition.
        partition: its settings.
    """

    title: str
    experiment: str
    classes: int
    clients: int
    partition: Mapping[str, Any]


class Places:
    """Where methods are compared: the experiments, and what a row of any method would be there.

    Args:
        params: with all of :data:`hetfl.papers.fgpt.COUNTED`.
    """

    def __init__(self, params: Params) -> None:
        self._params = params

    def of(self, name: str) -> Place:
        """One of them; see :data:`PLACES` and :data:`SGPTS`."""
        title, experiment = {**PLACES, **SGPTS}[name]
        cell, *_ = cells(self._params, experiment)
        classes = len(CATALOGUE[cell.dataset].class_names)
        return Place(title, experiment, classes, cell.partition["clients"], cell.partition)

    def made(self, row: str, place: str = "cifar100-20", **more: Any) -> Method:
        """A method with the settings that it has in an experiment, and those of its variant."""
        _, name, settings = FAMILY[row]
        there = self.of(place)
        if isinstance(settings, tuple):
            experiment, variant = settings
            settings = self._params.experiments[experiment].rows[variant].settings
        common = shared_settings(self._params, there.experiment, name)
        return create(name, {**common, **settings, **more}, there.classes)


CIFAR100 = "cifar100-20"
PLACES = {
    CIFAR100: ("CIFAR-100 and CIFAR-100-C, G = 20", "fgpt-cifar100-s10"),
    "cifar100-25": ("CIFAR-100, G = 25", "fgpt-cifar100-s5"),
    "five": ("Five-Dataset, C = 50, G = 5", "fgpt-five"),
}
"""Titles and experiments."""
SGPTS = {
    "sgpt-s10": ("SGPT, CIFAR-100, s = 10", "sgpt-cifar100-s10"),
    "sgpt-s50": ("SGPT, CIFAR-100, s = 50", "sgpt-cifar100-s50"),
    "sgpt-office": ("SGPT, Office-Caltech10", "sgpt-office"),
}
"""The same of SGPT, which inserts its prompts elsewhere."""

FAMILY: dict[str, tuple[str, str, dict[str, Any] | tuple[str, str]]] = {
    "pt-fedavg-share": ("PT-FedAvg-share", "pt-fedavg", ("fgpt-share", "pt-fedavg-share")),
    **{name: (METHODS[name], name, {}) for name in ("pt-fedavg", "fedmoon", "fedmix", "pfedhn")},
    "fedpr": ("FedPR", "fedpr", {}),
    "fgpt": (METHODS["fgpt"], "fgpt", {}),
    "fgpt-u2": ("FGPT-U, K = 2", "fgpt", {"branches": 2}),
    "fgpt-u5": ("FGPT-U, K = 5", "fgpt", {"branches": 5}),
    "fgpt-resnet": ("FGPT-ResNet", "fgpt", ("fgpt-resnet", "fgpt-resnet")),
    "fgpt-fedmix": ("FGPT+FedMix", "fgpt-fedmix", {}),
    "fed-dualprompt": (METHODS["fed-dualprompt"], "fed-dualprompt", {}),
    "sgpt": ("SGPT", "sgpt", {}),
}
"""Title, registered name and own settings of every method, or the experiment's row that has them."""
SENDERS = [row for row in FAMILY if row not in ("fgpt-u2", "sgpt")]
"""Rows of the methods whose messages depend on C and G alone."""
COSTS = ["fgpt", "fgpt-resnet", "fedmix", "fedmoon", "pfedhn"]
"""Rows that Table 10 prints."""
MORE_COSTS = ["pt-fedavg", "pt-fedavg-share", "fed-dualprompt", "fgpt-u2", "fgpt-u5", "sgpt"]

FULL = {
    "resnet18": ("FedAvg, ResNet-18", "resnet18"),
    "resnet50": ("FedAvg, ResNet-50", RESNET),
    "vit_b16": ("FedAvg, ViT-B/16", VIT),
}
"""Whole networks: title and model, by name in the printed table."""

_NOTE = "Counted, not trained. M: a million, MB: a million bytes, GMAC: a thousand million multiply-adds."


def arithmetic_table(name: str, params: Params) -> dict[str, Any]:
    """Count what one of the tables counts; see :func:`hetfl.papers.counted.arithmetic_table`.

    Args:
        name: ``fgpt-table-2`` or ``fgpt-table-10``.
        params: whose experiments have the settings that it counts with.

    Raises:
        HetflError: there is no such table.
    """
    return counted.arithmetic_table(name, params, ARITHMETIC_TABLES, _NOTE)


def table_2(params: Params) -> Counted:
    """Numbers that train and travel; and those of every method, in the methods' own messages."""
    given = {(row["method"], row["arch"]): row["params_M"] for row in printed()["table_2"]["rows"]}
    places, found = Places(params), list[Cell]()
    made, main = places.made, places.of(CIFAR100)
    for row, (_, name) in FULL.items():
        average = create("fedavg", shared_settings(params, main.experiment, "fedavg"), main.classes)
        found += _trained(row, average, name, whole_network(average, name), main, given["fedavg_full", row], 0)
    ours = made("fgpt")
    found += _trained("vit_b16-fgpt", ours, VIT, exchange(ours), main, given["fgpt", "vit_b16"], 1)
    for name in PLACES:
        for row in SENDERS:
            found += _traffic(row, name, made(row, name), places.of(name))
    for row in SGPTS:
        found += _traffic(row, "sgpt", made("sgpt", row), places.of(row))
    once, sizes = _once(places), client_sizes(main)
    trained = {
        "params": "Trained and sent (M)",
        "trained": "Trained (numbers)",
        "up": "Up (numbers)",
        "down": "Down (numbers)",
        "bytes": "Each way (B)",
        "run": "Whole run (MB)",
    }
    traffic = {
        "up": "Up (numbers)",
        "down": "Down (numbers)",
        "up-bytes": "Up (B)",
        "down-bytes": "Down (B)",
        "up-integers": "Integers up (B)",
        "down-integers": "Integers down (B)",
        "run": "Whole run (MB)",
    }
    kept = {"once-up": "Up, a client (B)", "once-down": "Down, a client (B)", "kept": "Kept, not sent (B)"}
    parts = {name: (title, SENDERS) for name, (title, _) in PLACES.items()} | {"sgpt": ("SGPT", [*SGPTS])}
    columns = {f"{name}-{column}": title for name in parts for column, title in traffic.items()}
    backbone = fitted(ours)
    frozen = backbone.total_elements - backbone.elements(ours.trains())
    return Counted(
        "FGPT, Table 2: numbers that train and travel between a participant and the server in a round",
        {row: title for row, (title, _) in FULL.items()}
        | {"vit_b16-fgpt": f"{METHODS['fgpt']}, ViT-B/16"}
        | {row: FAMILY[row][0] for row in SENDERS}
        | {row: title for row, (title, _) in SGPTS.items()}
        | {row: title for row, (title, _) in once.items()},
        trained | columns | kept,
        [*found, *(cell for _, some in once.values() for cell in some)],
        [VIT, *(name for _, name in FULL.values() if name != VIT)],
        [
            f"Table 2 is of C = {main.classes} classes and counts what one participant sends, or is sent, in a "
            "round.",
            "Numbers: values of 32 bits in a participant's messages after the first round. Integers, of 32 bits too, "
            "stand beside them: how many samples each group has, which never changes, with FGPT; how often a client "
            "picked each group, and all clients so far, with SGPT; a seed for directions that are dropped besides "
            "the prompts' own, with FedPR. Every client sends its number of samples once, 4 B.",
            f"The frozen backbone ({frozen:,} numbers, {rounded(4 * frozen / M, 1)} MB) is with the clients before "
            "and not counted.",
            f"Whole run: the values in all messages up and down; {made('fgpt').settings.rounds} rounds of "
            f"{_participants(made('fgpt'), main)} participants with CIFAR-100, as in the paper. Without integers "
            "and what is sent once.",
            "Sent once: FedMix's pool goes to every client on its first visit; with chunks, up is the mean over "
            f"clients, which have {min(sizes)} to {max(sizes)} samples in our split. FGPT's keys are drawn "
            "from a seed that everybody knows.",
        ],
        head="Method, model",
        blocks=[
            {"title": "Table 2", "rows": [*FULL, "vit_b16-fgpt"], "columns": [*trained]},
            *(
                {
                    "title": f"Every method of the family: {title}",
                    "rows": rows,
                    "columns": [f"{name}-{column}" for column in traffic],
                }
                for name, (title, rows) in parts.items()
            ),
            {"title": "Sent once, or never: CIFAR-100, s = 10, G = 20", "rows": [*once], "columns": [*kept]},
        ],
    )


def table_10(params: Params) -> Counted:
    """Cost of a sample: its prediction, a step of training, the feature it is sorted by; and ratios to PT-FedAvg."""
    given = {row["method"].replace("_", "-"): row["values"] for row in printed()["table_10"]["rows"]}
    places = Places(params)
    methods = {row: places.made(row) for row in (*COSTS, *MORE_COSTS)}
    costs = {row: cost(method) for row, method in methods.items()}
    base = costs["pt-fedavg"]
    # PT-FedAvg is not printed; FedMix predicts as it does, and FGPT takes its steps.
    printed_base = given["fedmix"][0], given["fgpt"][1]
    cells = []
    for row, own in costs.items():
        testing, training, embedding, constant, slope, _ = given.get(row, [None] * 6)
        terms = [own.testing, *([own.embedding] if own.embedding else [])]
        quotients = [value and value / one for value, one in zip((testing, training), printed_base, strict=True)]
        cells += [
            number(row, "testing", own.testing, "GMAC", 2, testing),
            number(row, "training", own.training, "GMAC", 2, training),
            *([number(row, "embedding", own.embedding, "GMAC", 2, embedding)] if own.embedding else []),
            formula(row, "constant", _sum(terms), "GMAC", _sum(constant) if constant else None),
            number(row, "slope", own.training, "GMAC", 2, slope),
            number(row, "testing-ratio", own.testing / base.testing, "", 2, quotients[0]),
            number(row, "training-ratio", own.training / base.training, "", 2, quotients[1]),
        ]
    for row, training in zip(("sgpt-first", "sgpt-second"), costs["sgpt"].stages, strict=True):
        cells.append(number(row, "training", training, "GMAC", 2))
        cells.append(number(row, "training-ratio", training / base.training, "", 2))
    stages = {"sgpt-first": "SGPT, first stage", "sgpt-second": "SGPT, second stage"}
    columns = {
        "testing": "Testing (GMAC)",
        "training": "Training, an update (GMAC)",
        "embedding": "Embedding (GMAC)",
        "constant": "Total, constant (GMAC)",
        "slope": "Total, times T (GMAC)",
    }
    ratios = {"testing-ratio": "Testing, ratio", "training-ratio": "Training, ratio"}
    plain = costs["fgpt"].embedding
    tokens = 1 + (PIXELS // PATCH) ** 2
    products = BLOCKS * 2 * tokens**2 * fitted(methods["fgpt"]).width / GIGA
    return Counted(
        "FGPT, Table 10: cost of one sample, ViT-B/16, CIFAR-100",
        {row: FAMILY[row][0] for row in costs} | stages,
        columns | ratios,
        remarked(cells, _on_costs(places, methods, costs)),
        [VIT, RESNET],
        [
            "GMAC: matrix products and convolutions, those of attention included, for one image of "
            f"{PIXELS} x {PIXELS} pixels, by each method's own functions. The printed unit, FLOPs (M), can only be "
            "GMAC, and no convention makes all printed numbers: the ratios are what compares.",
            f"ViT-B/16 without prompts takes {rounded(plain, 2)}, and {rounded(plain - products, 2)} without the "
            "products of attention, where 16.55 is printed.",
            "Total: the constant and T times an update, T being the number of updates. Where samples are sorted the "
            "embedding stands in it twice, for a test sample within testing and once for a training sample.",
            f"Ratio: to PT-FedAvg. It is not printed; the printed ratios are to {printed_base[0]}, which FedMix, "
            f"FedMOON and pFedHN predict with as PT-FedAvg does, and to {printed_base[1]}, an update of FGPT.",
        ],
        blocks=[
            {"title": "Table 10", "rows": COSTS, "columns": [*columns]},
            {"title": "Not printed", "rows": [*MORE_COSTS, *stages], "columns": [*columns]},
            {"title": "Ratio to PT-FedAvg", "rows": [*costs, *stages], "columns": [*ratios]},
        ],
    )


ARITHMETIC_TABLES: dict[str, Callable[[Params], Counted]] = {"fgpt-table-2": table_2, "fgpt-table-10": table_10}
"""By the name of the stage."""


def fitted(method: Method, name: str = VIT) -> Model:
    """A network as a method wants it, of which only the shapes are there."""
    # Published weights have the same shapes.
    return _built(name, method.num_classes, method.model_options().model_copy(update={"weights": "scratch"}))


def encoder(method: Method) -> Model | None:
    """The network whose features a method sorts samples by; None where it does not sort any."""
    query = method.queries()
    if query is None:
        return None
    if query.model is None:
        return fitted(method)
    return _built(query.model, method.num_classes, ModelOptions(weights="scratch"))


@cache
def _built(name: str, classes: int, options: ModelOptions) -> Model:
    with torch.device("meta"):
        return build(name, classes, options)


@dataclass(frozen=True)
class Exchange:
    """What one participant and the server send each other in the first rounds, and what they keep.

    Attributes:
        registered: what each client sends before the first round.
        first: what the participant is sent in the first round.
        up: what it sends in a round.
        down: what it is sent in a later round.
        kept: what it remembers.
        server: the server's state after the first round.
    """

    registered: list[Message]
    first: Message
    up: Message
    down: Message
    kept: Tensors
    server: ServerState


def exchange(
    method: Method, samples: Sequence[int] = (1,), model: Model | None = None, pixels: int = STORED
) -> Exchange:
    """Play the messages up to the second downlink, with training that changes nothing.

    Args:
        method: of the family.
        samples: of each client; the first one takes part.
        model: None: ViT-B/16.
        pixels: side of the images as they are stored.
    """
    model = model or fitted(method)
    counts = [
        torch.bincount(torch.arange(many) % method.num_classes, minlength=method.num_classes) for many in samples
    ]
    clients = [Client(k, model, some) for k, some in enumerate(counts)]
    registered = {
        client.index: Message(_filled(method.register(_work(method, client, 0, {}, pixels)))) for client in clients
    }
    server = ServerState(_filled(method.initial_server([model] * len(clients), registered, Draws(0))))
    first = method.downlink(server, 0)
    work = _work(method, clients[0], 1, method.receive(first, {}), pixels)
    up = method.uplink(work)
    after = method.aggregate(server, Uplinks.of({0: up}), Draws(0, round=1))
    return Exchange([*registered.values()], first, up, method.downlink(after, 0), method.remember(work), after)


def whole_network(method: Method, name: str) -> Exchange:
    """The same of FedAvg with a whole network, of which only the shapes travel."""
    client = Client(0, fitted(method, name), torch.ones(method.num_classes, dtype=torch.int64))
    registered = method.register(Work(client, Draws(0), {}, {}, {}, Statistics(), 0))
    with torch.device("meta"):
        server = method.initial_server([client.model], {0: registered}, Draws(0))
    down = method.downlink(server, 0)
    up = method.uplink(Work(client, Draws(0, round=1), down, down, method.adopt({}, down), Statistics(), 1))
    return Exchange([registered], down, up, down, {}, server)


def values(tensors: Tensors) -> int:
    """Elements of the floating-point tensors, which are what the paper counts."""
    return sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())


def value_bytes(tensors: Tensors) -> int:
    """Bytes of the floating-point tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values() if tensor.is_floating_point())


def integer_bytes(message: Message) -> int:
    """Bytes of what else is in a message."""
    return message.size.bytes - value_bytes(message)


def run_bytes(method: Method, sent: Exchange, place: Place) -> int:
    """Bytes of the values that travel up and down in all rounds of a run."""
    each = value_bytes(sent.up) + value_bytes(sent.down)
    return int(method.settings.rounds * _participants(method, place) * each)


def client_sizes(place: Place) -> tuple[int, ...]:
    """Training samples of each client of CIFAR-100 in a place of pathological shares, seed 0.

    They depend on how many samples a class has, not on the images.
    """
    each = {"train": 500, "test": 100}
    labels = {side: np.repeat(np.arange(place.classes), many) for side, many in each.items()}
    splits = {side: Split(np.empty((len(some), 0), np.uint8), some) for side, some in labels.items()}
    dataset = Dataset("cifar100", "CIFAR-100", tuple(map(str, range(place.classes))), splits, checksum="")
    scheme = Pathological.model_validate(place.partition)
    return tuple(len(part) for part in make_partition(scheme, dataset, Draws(0)).train)


@dataclass(frozen=True)
class Cost:
    """GMAC of one sample.

    Attributes:
        testing: its prediction, with the embedding where it is sorted.
        embedding: the feature that it is sorted by; 0 where it is not.
        stages: its share of a step, in each stage of local training.
    """

    testing: float
    embedding: float
    stages: tuple[float, ...]

    @property
    def training(self) -> float:
        """Its share of a step of every stage."""
        return sum(self.stages)


def cost(method: Method) -> Cost:
    """Count what one sample costs a client after the first round."""
    model, query, by = fitted(method), method.queries(), encoder(method)
    sent = exchange(method)
    received = {name: tensor.to("meta") for name, tensor in method.receive(sent.down, sent.kept).items()}
    params = method.adopt({}, received)
    with torch.device("meta"):
        images, label = torch.zeros(1, 3, PIXELS, PIXELS), torch.zeros(1, dtype=torch.int64)
        batch = Batch(images, label, queries=torch.zeros(1, by.width) if by else None)
    embedding = _gmac(flops(lambda: by.query(images, query.block))) if by and query else 0.0
    with torch.no_grad():
        prediction = _gmac(flops(lambda: method.predict(model, params, batch, received)))
    if isinstance(method, FedMix):
        # The counter cannot follow a gradient that is taken of the very tensor that enters a network.
        images.requires_grad_()
    stages = [Stage(method, phase.trains) for phase in method.phases(1)] if isinstance(method, SGPT) else [method]
    steps = [sum(step_flops(stage, model, params, batch, received)) for stage in stages]
    return Cost(embedding + prediction, embedding, tuple(map(_gmac, steps)))


class Stage(SGPT):
    """A stage of SGPT's training where tensors have shapes alone: a sample's group is the nearest.

    To find it takes the same products as with the picks so far, which have no values here.
    """

    def __init__(self, method: SGPT, trained: tuple[str, ...]) -> None:
        super().__init__(method.settings, method.num_classes)
        self._trained = trained

    def trains(self) -> tuple[str, ...]:
        return self._trained

    def picks(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        return self.choose(params, batch, received)


def server_cost(places: Places) -> float:
    """GMAC of pFedHN's server in a round."""
    method, main = places.made("pfedhn"), places.of(CIFAR100)
    sent = exchange(method, [1] * main.clients)
    uplinks = dict.fromkeys(range(_participants(method, main)), sent.up)
    prompts = flops(lambda: [method.downlink(sent.server, client) for client in uplinks])
    return _gmac(prompts + flops(lambda: method.aggregate(sent.server, Uplinks.of(uplinks), Draws(0, round=2))))


def image_gradient(places: Places) -> float:
    """GMAC of the gradient of an image from that of its patches' tokens."""
    return (PIXELS // PATCH) ** 2 * 3 * PATCH**2 * fitted(places.made("fedmix")).width / GIGA


def _work(method: Method, client: Client, round: int, received: Tensors, pixels: int) -> Work:
    """What a client does in a round without training: its statistics, before the first round of shapes alone."""
    size, query = client.samples, method.queries()
    by = encoder(method) if query and query.model else client.model
    with torch.device("cpu" if round else "meta"):
        images, labels = torch.zeros(size, 3, pixels, pixels), torch.zeros(size, dtype=torch.int64)
        batch = Batch(images, labels, queries=torch.zeros(size, by.width if by else 0))
    params = method.adopt({}, received)
    gathers = method.statistics_source(round) != "none"
    statistics = method.statistics(client.model, params, batch, received) if gathers else Statistics()
    return Work(client, Draws(0, round), received, params, params, statistics, steps=1)


def _filled(tensors: Tensors) -> dict[str, Tensor]:
    """Zeros where a tensor has no values."""
    return {
        name: torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor for name, tensor in tensors.items()
    }


def _participants(method: Method, place: Place) -> int:
    return len(participants(place.clients, method.settings.participation, Draws(0)))


def _trained(
    row: str, method: Method, name: str, sent: Exchange, place: Place, given: float, digits: int
) -> list[Cell]:
    return [
        number(row, "params", values(sent.up) / M, "M", digits, given),
        whole(row, "trained", fitted(method, name).elements(method.trains()), "elements"),
        whole(row, "up", values(sent.up), "elements"),
        whole(row, "down", values(sent.down), "elements"),
        whole(row, "bytes", value_bytes(sent.up), "B"),
        number(row, "run", run_bytes(method, sent, place) / M, "MB", 1),
    ]


def _traffic(row: str, prefix: str, method: Method, place: Place) -> list[Cell]:
    sent = exchange(method)
    ways = {"up": sent.up, "down": sent.down}
    return [
        *(whole(row, f"{prefix}-{way}", values(message), "elements") for way, message in ways.items()),
        *(whole(row, f"{prefix}-{way}-bytes", value_bytes(message), "B") for way, message in ways.items()),
        *(whole(row, f"{prefix}-{way}-integers", integer_bytes(message), "B") for way, message in ways.items()),
        number(row, f"{prefix}-run", run_bytes(method, sent, place) / M, "MB", 1),
    ]


def _once(places: Places) -> dict[str, tuple[str, list[Cell]]]:
    """Title and cells of what is sent once, and of what is kept instead of being sent."""
    found, made, main = {}, places.made, places.of(CIFAR100)
    for row, title, chunk in (("pool", "M_k = all", None), ("pool-5", "M_k = 5", 5)):
        sent = exchange(made("fedmix", chunk=chunk), client_sizes(main))
        up = sum(map(value_bytes, sent.registered)) / len(sent.registered)
        down = value_bytes(sent.first) - value_bytes(sent.down)
        found[row] = f"FedMix, pool, {title}", round(up), down, 0
    for row in ("fgpt", "fgpt-resnet"):
        method = made(row)
        by = encoder(method)
        keys = method.keys({}, torch.zeros(1, by.width))  # type: ignore[union-attr, attr-defined]
        found[f"{row}-keys"] = f"{FAMILY[row][0]}, keys", 0, 0, value_bytes({"keys": keys})
    moon = exchange(made("fedmoon"))
    found["previous"] = f"{METHODS['fedmoon']}, a client's last prompts", 0, 0, value_bytes(moon.kept)
    method = made("pfedhn")
    network = method.server_parameters(exchange(method, client_sizes(main)).server)
    found["network"] = f"{METHODS['pfedhn']}, the server's network", 0, 0, value_bytes(network)
    width = fitted(made("fgpt")).width
    found["query"] = f"{METHODS['fgpt']}, a sample's query", 0, 0, value_bytes({"query": torch.zeros(width)})
    return {
        row: (
            title,
            [whole(row, "once-up", up, "B"), whole(row, "once-down", down, "B"), whole(row, "kept", kept, "B")],
        )
        for row, (title, up, down, kept) in found.items()
    }


def _on_costs(places: Places, methods: Mapping[str, Method], costs: Mapping[str, Cost]) -> dict[tuple[str, str], str]:
    """What is to be said about single cells of Table 10."""
    epochs = methods["fedmoon"].settings.local_epochs
    step, prompted = costs["pt-fedavg"].training, costs["pt-fedavg"].testing
    cached = step + 2 * prompted / epochs
    images = image_gradient(places)
    mixed = costs["fedmix"].training - images
    return {
        ("fgpt", "testing"): (
            "The embedding and a pass with prompts. Printed is twice 16.555, where 16.55 and 18.31, the pass with "
            "prompts in the other rows, make 34.86."
        ),
        ("fgpt-resnet", "testing"): "Printed is 18.31, a pass with prompts, and 4.13.",
        ("fgpt-resnet", "constant"): "Printed with 4.12 here, 4.13 in the column before.",
        ("fedmix", "training"): (
            f"Gradients of a gradient of the images. {rounded(mixed, 2)} without {rounded(images, 2)} for "
            "the images' own, which the step takes along and nobody needs."
        ),
        ("fedmoon", "training"): (
            "Both features to compare with are made anew in every step. Made once per sample and visit they would "
            f"leave {rounded(cached, 2)} with {epochs} epochs, which is what the printed number needs."
        ),
        ("pfedhn", "training"): (
            "A step is PT-FedAvg's; the server's network takes "
            f"{rounded(server_cost(places), 3)} GMAC in a whole round. Nothing explains the printed number."
        ),
        ("sgpt", "training"): "Both stages, each with an update of its own.",
    }


def _sum(terms: Sequence[float]) -> str:
    return " + ".join(rounded(term, 2) for term in terms)


def _gmac(count: int) -> float:
    return count / 2 / GIGA
