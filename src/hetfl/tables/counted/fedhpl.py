"""FedHPL's Tables 5 to 9: elements of models and messages, counted on what this project builds and sends.

K stands for 1024 and M for 1024^2 elements, as the printed numbers need.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import torch

from hetfl.draws import Draws
from hetfl.experiments.plan import Params
from hetfl.methods.base import Method, create
from hetfl.models import Model
from hetfl.tables.counted.exchange import Exchange, float_elements, of_all_classes, shapes
from hetfl.tables.counted.layout import Cells, Counts, layout, rounded

K = 1024
VITS, RESNETS = ("ViT-S", "ViT-B", "ViT-L"), ("ResNet18", "ResNet34", "ResNet50")
CLASSES = {"CIFAR10_SVHN": 10, "CIFAR100": 100}
PUBLIC_CLASSES = 10
"""Of FedMD's public set."""
CLIENTS = 5


def table_5(_: Params) -> Counts:
    """Trainable elements of the baselines with homogeneous models."""
    models = layout("fedhpl-table-5").models
    found: Cells = {}
    for row, classes in CLASSES.items():
        for size in VITS:
            model = shapes(create("fedavg", {}, classes), models[size])
            found[row, f"backbone-{size}"] = model.elements(["body"])
            found[row, f"entire-{size}"] = model.total_elements
        small = shapes(create("pfedpt", {}, classes), models["pFedPT"])
        border = small.elements(["prompts"])
        found[row, "pfedpt-vit"] = small.total_elements - border
        found[row, "pfedpt-g1"] = border
        found[row, "pfedpt-f1"] = small.total_elements
        generating = create("pfedpg", {}, classes)
        prompted = shapes(generating, models["ViT-B"])
        found[row, "pfedpg-g2"] = generator = _server(generating, prompted)
        found[row, "pfedpg-f2"] = generator + prompted.elements(["prompts", "head"])
    return Counts(found)


def table_6(_: Params) -> Counts:
    """Trainable elements of FedHPL over n prompts, and the caption's example."""
    models = layout("fedhpl-table-6").models
    found: Cells = {}

    def prompted(size: str, depth: str, n: int, classes: int) -> Model:
        return shapes(create("fedhpl", {"prompts": depth, "prompt_length": n}, classes), models[size])

    for (data, classes), depth, size in product(CLASSES.items(), ("shallow", "deep"), VITS):
        one, two = (prompted(size, depth, n, classes) for n in (1, 2))
        slope = two.elements(["prompts"]) - one.elements(["prompts"])
        text = f"{rounded(one.elements(['head']) / K, 2)} + {'' if slope == K else f'{slope / K:g}'}n"
        found[f"{data}-{depth}", size] = text
    for depth, size in product(("shallow", "deep"), VITS):
        found[f"example-{depth}", size] = prompted(size, depth, 3, 10).elements(["prompts", "head"])
    return Counts(found)


def table_7(params: Params) -> Counts:
    """Elements of the entire client model in the heterogeneous ResNet setting."""
    found: Cells = {}
    for (data, classes), (size, name) in product(CLASSES.items(), layout("fedhpl-table-7").models.items()):
        for row in ("FedGen", "FedGH", "FedProto", "FedTGP", "FedMD", "FedHE"):
            method = create(row.lower(), {}, classes, PUBLIC_CLASSES)
            found[row, f"{data}-{size}"] = shapes(method, name).total_elements
        for pixels in (32, 224):
            framed = _framed(params, name, pixels, classes)
            found[f"FedHPL_{pixels}", f"{data}-{size}"] = framed.total_elements
    return Counts(found)


def table_8(params: Params) -> Counts:
    """Trainable elements of FedHPL with ResNets and a frame around the image."""
    names = layout("fedhpl-table-8").models
    found: Cells = {}
    sizes, groups = (32, 224), {"R18_34": ("ResNet18", "ResNet34"), "R50": ("ResNet50",)}
    for row, classes in CLASSES.items():
        models = {(size, side): _framed(params, names[size], side, classes) for size in RESNETS for side in sizes}
        for pixels in sizes:
            for column, part in (("lr", "prompts.sides"), ("tb", "prompts.ends")):
                frames = (models[size, pixels].init(Draws(0), 0)[part] for size in RESNETS)
                found[row, f"{column}-{pixels}"] = _same(frame.numel() for frame in frames)
            for group, members in groups.items():
                trained = (models[size, pixels].elements(["prompts", "head"]) for size in members)
                found[row, f"sum-{pixels}-{group}"] = _same(trained)
        for group, members in groups.items():
            heads = (models[size, pixels].elements(["head"]) for size in members for pixels in sizes)
            found[row, f"head-{group}"] = _same(heads)
    return Counts(found)


def table_9(_: Params) -> Counts:
    """Elements that a client sends in a round, measured on messages, and of the server's model where it has one."""
    found: Cells = {}
    # With the wrong logits every sample is one of those that count.
    variants = {
        "FedHPL": ("fedhpl", {"prompts": "frame", "selection": "all"}),
        "FedHPL_plus": ("fedhpl", {"prompts": "frame", "upload": "average"}),
    }
    symbols = {"FedGen": "|D_k|", "FedMD": "|D_p|", "FedHPL": "|Dt_k|"}
    table = layout("fedhpl-table-9")
    for (data, classes), row in product(CLASSES.items(), table.parts[0].rows):
        name, settings = variants.get(row, (row.lower(), {}))
        method = create(name, settings, classes, PUBLIC_CLASSES)
        model = shapes(method, table.models["ResNet18"])
        fixed, each = _growth(method, model)
        found[row, data] = fixed + each
        if row in symbols:
            found[row, data] = f"{f'{fixed}+' if fixed else ''}{'' if each == 1 else each}{symbols[row]}"
        if (row, f"{data}-server") in table.printed:
            found[row, f"{data}-server"] = _server(method, model)
    return Counts(found, {"public_classes": PUBLIC_CLASSES})


def _framed(params: Params, name: str, pixels: int, classes: int) -> Model:
    row = params.experiments["fedhpl-resnet-frame-3"].rows["fedhpl-cnn-w3"]
    return shapes(create(row.method, row.settings, classes), name, pixels)


def _growth(method: Method, model: Model) -> tuple[int, int]:
    """Elements of a client's message: a constant, and what each further sample adds."""
    classes = method.num_classes
    few, many = (
        sum(message.size.elements for message in Exchange(method, [model], [of_all_classes(samples, classes)]).up)
        for samples in (classes, 2 * classes)
    )
    each = (many - few) // classes
    return few - each * classes, each


def _server(method: Method, model: Model) -> int:
    """Elements of the server's own model."""
    return float_elements([Exchange(method, [model], [torch.arange(method.num_classes)] * CLIENTS).server])


def _same(counts: Iterable[int]) -> int:
    """The count that all of them are."""
    (count,) = set(counts)
    return count
