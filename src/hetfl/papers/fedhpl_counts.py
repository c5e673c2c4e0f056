"""FedHPL's Tables 5 to 9: elements of models and messages, counted on what this project builds and sends.

K stands for 1024 and M for 1024^2 elements, as the printed numbers need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hetfl.data.batches import Batch, class_counts
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.experiments.plan import Params
from hetfl.methods.base import Client, Method, Statistics, Work, create
from hetfl.models import Model, build
from hetfl.papers import counted
from hetfl.papers.counted import Cell, Counted, formula, number, remarked, rounded
from hetfl.papers.fedhpl import FRAME_3, printed

K, M = 1024, 1024**2
VITS = {
    "ViT-S": "vit_small_patch16_224.random",
    "ViT-B": "vit_base_patch16_224.random",
    "ViT-L": "vit_large_patch16_224.random",
}
RESNETS = {"ResNet18": "resnet18.random", "ResNet34": "resnet34.random", "ResNet50": "resnet50.random"}
PFEDPT = "pfedpt_vit"
CLASSES = {"CIFAR10_SVHN": 10, "CIFAR100": 100}
PUBLIC_CLASSES = 10
"""Of FedMD's public set."""
CLIENTS = 5

_TITLES = {"CIFAR10_SVHN": "CIFAR10, SVHN", "CIFAR100": "CIFAR100"}
_NOTE = "Counted, not trained. 1 K = 1024 and 1 M = 1024² elements, never bytes."
_FRAME_NOTE = (
    "Every count with a frame needs one 3 pixels wide, in Tables 2, 7 and 8 alike, where the paper's text says that "
    "ResNets have 10 prompts. A frame of 10 would make Table 2's 0.078M 0.173M. Our runs use 10, but for a control."
)


def arithmetic_table(name: str, params: Params) -> dict[str, Any]:
    """Count what one of the tables counts; see :func:`hetfl.papers.counted.arithmetic_table`.

    Args:
        name: ``fedhpl-table-5`` to ``fedhpl-table-9``.
        params: whose experiments have the settings that it counts with.

    Raises:
        HetflError: there is no such table.
    """
    return counted.arithmetic_table(name, params, ARITHMETIC_TABLES, _NOTE)


def table_5(_: Params) -> Counted:
    """Trainable elements of the baselines with homogeneous models."""
    columns = {
        **{f"backbone-{size}": f"Backbone, {size} (M)" for size in VITS},
        **{f"entire-{size}": f"Entire model, {size} (M)" for size in VITS},
        "pfedpt-vit": "pFedPT, ViT (M)",
        "pfedpt-g1": "pFedPT, G1 (K)",
        "pfedpt-f1": "pFedPT, F1 (M)",
        "pfedpg-g2": "pFedPG, G2 (M)",
        "pfedpg-f2": "pFedPG, F2 (M)",
    }
    sums = (
        "F2 is the generator, the prompts and the head together. It is rounded from the exact sum: the printed G2 of "
        "1.512 plus 7,680 prompt elements and the head would round to "
    )
    remarks = {
        ("CIFAR10_SVHN", "entire-ViT-S"): "Printed 20.57 is less than the printed backbone alone (20.66); 20.67 with "
        "the head, so probably a misprint of one digit.",
        ("CIFAR10_SVHN", "pfedpg-f2"): f"{sums}1.527.",
        ("CIFAR100", "pfedpg-f2"): f"{sums}1.593.",
    }
    cells = []
    for row, classes in CLASSES.items():
        given = printed()["table_5"]["rows"][row]
        for size, name in VITS.items():
            model = _counted("fedavg", {}, name, classes)
            cells.append(
                _number(row, f"backbone-{size}", model.elements(["body"]), "M", 2, given["backbone_M"][size])
            )
            cells.append(_number(row, f"entire-{size}", model.total_elements, "M", 2, given["entire_model_M"][size]))
        small = _counted("pfedpt", {}, PFEDPT, classes)
        border = small.elements(["prompts"])
        cells.append(_number(row, "pfedpt-vit", small.total_elements - border, "M", 3, given["pFedPT_ViT_M"]))
        cells.append(_number(row, "pfedpt-g1", border, "K", 4, given["pFedPT_G1_K"]))
        cells.append(_number(row, "pfedpt-f1", small.total_elements, "M", 3, given["pFedPT_F1_M"]))
        prompted = _counted("pfedpg", {}, VITS["ViT-B"], classes)
        generator = _server(create("pfedpg", {}, classes), prompted)
        total = generator + prompted.elements(["prompts", "head"])
        cells.append(_number(row, "pfedpg-g2", generator, "M", 3, given["pFedPG_G2_M"]))
        cells.append(_number(row, "pfedpg-f2", total, "M", 3, given["pFedPG_F2_M"]))
    return Counted(
        "FedHPL, Table 5: trainable elements of the baselines, homogeneous models",
        _TITLES,
        columns,
        remarked(cells, remarks),
        [*VITS.values(), PFEDPT],
        ['The printed caption says "with 3 prompts", but no count contains them.'],
        head="Data",
    )


def table_6(_: Params) -> Counted:
    """Trainable elements of FedHPL over n prompts, and the caption's example."""
    depths = {"shallow": "VPT-shallow", "deep": "VPT-deep"}
    about = printed()["table_6"]
    example = about["example_caption_n3_CIFAR10_SVHN_K"]
    cells = []
    rows: dict[str, str] = {}
    for data, classes in CLASSES.items():
        for depth, title in depths.items():
            rows[f"{data}-{depth}"] = f"{_TITLES[data]}, {title}"
            for size, name in VITS.items():
                one, two = (_prompted(name, depth, n, classes) for n in (1, 2))
                slope = two.elements(["prompts"]) - one.elements(["prompts"])
                text = f"{rounded(one.elements(['head']) / K, 2)} + {'' if slope == K else f'{slope / K:g}'}n"
                given = about["rows"][data][f"VPT_{depth}"][size]["printed"]
                cells.append(formula(f"{data}-{depth}", size, text, "K", given))
    for depth, title in depths.items():
        rows[f"example-{depth}"] = f"caption: CIFAR10, SVHN, {title}, n = 3"
        for size, name in VITS.items():
            trained = _prompted(name, depth, 3, 10).elements(["prompts", "head"])
            cells.append(_number(f"example-{depth}", size, trained, "K", 2, example[depth][size]))
    remark = "Printed 4.89 adds the rounded 3.76 to 1.125; the exact sum is 4.8848."
    return Counted(
        "FedHPL, Table 6: trainable elements of FedHPL with n prompts (K)",
        rows,
        {size: size for size in VITS},
        remarked(cells, {("example-shallow", "ViT-S"): remark}),
        list(VITS.values()),
        head="Data and prompts",
    )


def table_7(params: Params) -> Counted:
    """Elements of the entire client model in the heterogeneous ResNet setting."""
    given = printed()["table_7"]["rows"]
    methods = {
        "FedGen": "fedgen",
        "FedGH": "fedgh",
        "FedProto": "fedproto",
        "FedTGP": "fedtgp",
        "FedMD": "fedmd",
        "FedHE": "fedhe",
    }
    frames = {"FedHPL_32": 32, "FedHPL_224": 224}
    cells = []
    for data, classes in CLASSES.items():
        for size, name in RESNETS.items():
            column = f"{data}-{size}"
            for row, method in methods.items():
                model = _counted(method, {}, name, classes)
                cells.append(_number(row, column, model.total_elements, "M", 3, given[row][data][size]))
            for row, pixels in frames.items():
                framed = _framed(params, name, pixels, classes)
                cells.append(_number(row, column, framed.total_elements, "M", 3, given[row][data][size]))
    return Counted(
        "FedHPL, Table 7: elements of the clients' entire models, heterogeneous ResNets (M)",
        {row: row for row in methods} | {row: f"FedHPL, {pixels} x {pixels}" for row, pixels in frames.items()},
        {f"{data}-{size}": f"{_TITLES[data]}, {size}" for data in CLASSES for size in RESNETS},
        cells,
        list(RESNETS.values()),
        [_FRAME_NOTE],
    )


def table_8(params: Params) -> Counted:
    """Trainable elements of FedHPL with ResNets and a frame around the image."""
    sizes = (32, 224)
    groups = {"R18_34": ("ResNet18", "ResNet34"), "R50": ("ResNet50",)}
    titles = {"R18_34": "ResNet18 and 34", "R50": "ResNet50"}
    columns = {
        **{f"lr-{pixels}": f"Frame left and right, {pixels} x {pixels}" for pixels in sizes},
        **{f"tb-{pixels}": f"Frame top and bottom, {pixels} x {pixels}" for pixels in sizes},
        **{f"head-{group}": f"Head, {title} (K)" for group, title in titles.items()},
        **{
            f"sum-{pixels}-{group}": f"Sum, {pixels} x {pixels}, {title} (K)"
            for pixels in sizes
            for group, title in titles.items()
        },
    }
    cells = []
    for row, classes in CLASSES.items():
        given = printed()["table_8"]["rows"][row]
        models = {
            (size, pixels): _framed(params, RESNETS[size], pixels, classes) for size in RESNETS for pixels in sizes
        }
        for pixels in sizes:
            for side, part in (("lr", "prompts.sides"), ("tb", "prompts.ends")):
                count = _same(models[size, pixels].init(Draws(0), 0)[part].numel() for size in RESNETS)
                cells.append(_number(row, f"{side}-{pixels}", count, "elements", 0, given[f"prompt_{side}"][pixels]))
            for group, members in groups.items():
                total = _same(models[size, pixels].elements(["prompts", "head"]) for size in members)
                cells.append(_number(row, f"sum-{pixels}-{group}", total, "K", 2, given[f"sum_{pixels}_K"][group]))
        for group, members in groups.items():
            head = _same(models[size, pixels].elements(["head"]) for size in members for pixels in sizes)
            cells.append(_number(row, f"head-{group}", head, "K", 2, given["head_K"][group]))
    return Counted(
        "FedHPL, Table 8: trainable elements of FedHPL with ResNets",
        _TITLES,
        columns,
        cells,
        list(RESNETS.values()),
        [_FRAME_NOTE],
        head="Data",
    )


def table_9(_: Params) -> Counted:
    """Elements that a client sends in a round, measured on messages, and of the servers' models in the remarks."""
    given = printed()["table_9"]["rows"]
    rows = {
        "FedGen": ("fedgen", {}, "|D_k|"),
        "FedGH": ("fedgh", {}, ""),
        "FedProto": ("fedproto", {}, ""),
        "FedTGP": ("fedtgp", {}, ""),
        "FedMD": ("fedmd", {}, "|D_p|"),
        "FedHE": ("fedhe", {}, ""),
        # With the wrong logits every sample is one of those that count.
        "FedHPL": ("fedhpl", {"prompts": "frame", "selection": "all"}, "|Dt_k|"),
        "FedHPL_plus": ("fedhpl", {"prompts": "frame", "upload": "average"}, ""),
    }
    remarks = {"FedGen": ("G_M", "M"), "FedGH": ("H_g", "elements"), "FedTGP": ("G_p_M", "M")}
    cells = []
    for data, classes in CLASSES.items():
        for row, (name, settings, symbol) in rows.items():
            method = create(name, settings, classes, PUBLIC_CLASSES)
            # A message does not depend on the size of images.
            model = _fitted(method, RESNETS["ResNet18"], classes, pixels=8)
            fixed, each = _growth(method, model)
            if symbol:
                text = f"{f'{fixed}+' if fixed else ''}{'' if each == 1 else each}{symbol}"
                cells.append(formula(row, data, text, "elements", given[row][data]))
            else:
                cells.append(_number(row, data, fixed + each, "elements", 0, given[row][data]))
            if row in remarks:
                key, unit = remarks[row]
                count, digits = _server(method, model), 3 if unit == "M" else 0
                cells.append(_number(row, f"{data}-server", count, unit, digits, given[row]["remark"][key][data]))
    return Counted(
        "FedHPL, Table 9: elements a client uploads in a round, heterogeneous ResNets",
        {row: row.replace("_plus", "+") for row in rows},
        {
            **{data: f"{title}, upload" for data, title in _TITLES.items()},
            **{f"{data}-server": f"{title}, model of the server" for data, title in _TITLES.items()},
        },
        cells,
        [RESNETS["ResNet18"]],
        [
            "D_k: the client's samples; D_p: the round's public samples; Dt_k: the client's samples that it "
            f"classifies correctly. FedMD's public set has {PUBLIC_CLASSES} classes.",
        ],
    )


ARITHMETIC_TABLES: dict[str, Callable[[Params], Counted]] = {
    "fedhpl-table-5": table_5,
    "fedhpl-table-6": table_6,
    "fedhpl-table-7": table_7,
    "fedhpl-table-8": table_8,
    "fedhpl-table-9": table_9,
}
"""By the name of the stage."""


def _counted(method: str, settings: Mapping[str, Any], name: str, classes: int, pixels: int | None = None) -> Model:
    """A model as a method wants it, of which only the shapes are there."""
    with torch.device("meta"):
        return _fitted(create(method, settings, classes, PUBLIC_CLASSES), name, classes, pixels)


def _fitted(method: Method, name: str, classes: int, pixels: int | None = None) -> Model:
    # Published weights have the same shapes.
    options = method.model_options().model_copy(update={"weights": "scratch"})
    return build(name, classes, options, inputs=InputSettings(size=pixels))


def _prompted(name: str, depth: str, n: int, classes: int) -> Model:
    return _counted("fedhpl", {"prompts": depth, "prompt_length": n}, name, classes)


def _framed(params: Params, name: str, pixels: int, classes: int) -> Model:
    row = params.experiments[FRAME_3].rows["fedhpl-cnn-w3"]
    return _counted(row.method, row.settings, name, classes, pixels)


def _growth(method: Method, model: Model) -> tuple[int, int]:
    """Elements of a client's message: a constant, and what each further sample adds."""
    classes = model.num_classes
    few, many = (_uploaded(method, model, samples) for samples in (classes, 2 * classes))
    each = (many - few) // classes
    return few - each * classes, each


def _uploaded(method: Method, model: Model, samples: int) -> int:
    """Elements that a client sends after a round on samples of all classes."""
    params = model.init(Draws(0), 0)
    images = torch.randn(samples, 3, model.spec.size, model.spec.size, generator=Draws(0).generator("images"))
    labels = torch.arange(samples) % model.num_classes
    batch = Batch(images, labels, rows=torch.arange(samples))
    counts = class_counts(labels, model.num_classes).long()
    statistics = method.statistics(model, params, batch, {})
    work = Work(Client(0, model, counts), Draws(0, round=1), {}, params, params, statistics, steps=1)
    return method.uplink(work).size.elements


def _server(method: Method, model: Model) -> int:
    """Elements of the server's own model."""
    client = Client(0, model, torch.ones(model.num_classes, dtype=torch.int64))
    registrations = {0: method.register(Work(client, Draws(0), {}, {}, {}, Statistics(), steps=0))}
    state = method.initial_server([model] * CLIENTS, registrations, Draws(0))
    return sum(tensor.numel() for name, tensor in state.items() if name != "samples")


def _number(row: str, column: str, count: int, unit: str, digits: int, given: float) -> Cell:
    return number(row, column, count / {"M": M, "K": K, "elements": 1}[unit], unit, digits, given)


def _same(counts: Iterator[int]) -> int:
    """The count that all of them are."""
    (count,) = set(counts)
    return count
