"""FedHPL (arXiv 2405.17267): its printed tables beside our experiments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from hetfl.config import read_yaml
from hetfl.experiments.plan import Params
from hetfl.papers.spec import Block, Entry, Statistic, TableSpec, entry, grid

SETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "svhn": "SVHN"}
SPLITS = {"iid": "IID", "dir": "Dir", "noniid": "NonIID"}
ALPHAS = {"noniid-0.1": "alpha_0.1", "noniid-0.5": "alpha_0.5", "noniid-1.0": "alpha_1.0"}
"""Our names, and the keys of the printed tables."""
MODELS = {"H": "homogeneous", "V": "heterogeneous"}
CLIENTS: tuple[Statistic, ...] = ("lowest", "average", "highest")

FRAME_3 = "fedhpl-resnet-frame-3"
"""Whose frame is as wide as printed counts need."""

_BATCH_32 = (
    "The SVHN columns of Tables 1 and 2 lie below Table 11, which prints the same runs again; the only printed "
    "number that fits them is that of a batch of 32. All rows here use 16."
)
_KEPT_OPTIMISERS = (
    "FedMD and FedHE: a client keeps its Adam through all rounds, as in the methods' own code, with FedMD one for "
    "digesting and one for its own data, the latter from before the first round on. This paper does not say."
)
_RANDOM_ALPHA = (
    "Non-IID: disjoint shares drawn from Dir(1) over the clients, the reading of the paper's random alpha."
)


@cache
def printed() -> dict[str, Any]:
    """The printed tables, as transcribed in ``fedhpl.yaml``."""
    return read_yaml(Path(__file__).with_suffix(".yaml"))["tables"]


def table_1(params: Params) -> TableSpec:
    """Table 1: eight methods with homogeneous ViT-B/16."""
    rows = {
        "fedavg": "FedAVG",
        "fedprox": "FedProx",
        "scaffold": "SCAFFOLD",
        "fedbabu": "FedBABU",
        "fedrep": "FedRep",
        "pfedpt": "pFedPT",
        "pfedpg": "pFedPG",
        "fedhpl": "FedHPL",
    }
    accuracy = printed()["table_1"]["rows"]

    def cell(row: str, column: str) -> Entry:
        ours, split = column.rsplit("-", 1)
        if split == "parameters":
            count = accuracy[rows[row]]["param_M"]
            more = {"statistic": "parameters", "server": row == "pfedpg", "printed": count}
            return entry(params, "fedhpl-homogeneous-cifar10", row, "iid", **more)
        value = accuracy[rows[row]][SETS[ours]][SPLITS[split]]
        return entry(params, f"fedhpl-homogeneous-{ours}", row, split, printed=value)

    return TableSpec(
        name="fedhpl-table-1",
        title="FedHPL, Table 1: homogeneous ViT-B/16, average test accuracy (%)",
        rows=rows,
        columns={"cifar10-parameters": "Parameters, M"} | _sets_and_splits(),
        entries=grid(rows, ["cifar10-parameters", *_sets_and_splits()], cell),
        footnotes=["Parameters: trainable elements of one client on CIFAR10, M = 1024².", _RANDOM_ALPHA, _BATCH_32],
        decimals=2,
        curves=True,
    )


def table_2(params: Params) -> TableSpec:
    """Table 2: seven methods with heterogeneous ResNets, FedHPL with heterogeneous ViTs as well."""
    rows = {
        "fedgen": "FedGen",
        "fedgh": "FedGH",
        "fedproto": "FedProto",
        "fedtgp": "FedTGP",
        "fedmd": "FedMD",
        "fedhe": "FedHE",
        "fedhpl-cnn": "FedHPL_CNN",
        "fedhpl": "FedHPL_ViT",
    }
    accuracy = printed()["table_2"]["rows"]
    footnotes = {
        ("fedhpl-cnn", "cifar10-parameters"): "A frame of width 3, which the printed count is of; the accuracies are "
        "those of the text's width 10.",
        ("fedhpl", "svhn-dir"): "The text has 90.75 for a batch of 32 and 91.86 for 16; Table 11 prints 91.49 and "
        "91.40 for the same setting. Our runs use 16.",
    }

    def cell(row: str, column: str) -> Entry:
        ours, split = column.rsplit("-", 1)
        family = "heterogeneous" if row == "fedhpl" else "resnet"
        footnote = footnotes.get((row, column), "")
        if split == "parameters":
            count, server = accuracy[rows[row]]["param_M"], row in ("fedgen", "fedtgp")
            more = {"statistic": "parameters_total", "server": server, "printed": count, "footnote": footnote}
            if row == "fedhpl-cnn":
                return entry(params, FRAME_3, "fedhpl-cnn-w3", "iid", **more)
            return entry(params, f"fedhpl-{family}-cifar10", row, "iid", **more)
        value = accuracy[rows[row]][SETS[ours]][SPLITS[split]]
        return entry(params, f"fedhpl-{family}-{ours}", row, split, printed=value, footnote=footnote)

    return TableSpec(
        name="fedhpl-table-2",
        title="FedHPL, Table 2: heterogeneous models, average test accuracy (%)",
        rows=rows | {"fedhpl-cnn": "FedHPL (CNN)", "fedhpl": "FedHPL (ViT)"},
        columns={"cifar10-parameters": "Parameters, M"} | _sets_and_splits(),
        entries=grid(rows, ["cifar10-parameters", *_sets_and_splits()], cell),
        footnotes=[
            "Parameters: trainable elements of the five clients on CIFAR10, with the server's network of FedGen and "
            "FedTGP, M = 1024².",
            _KEPT_OPTIMISERS,
            _RANDOM_ALPHA,
            _BATCH_32,
        ],
        decimals=2,
        curves=True,
    )


def table_3(params: Params) -> TableSpec:
    """Table 3: CIFAR10 with fixed alpha (left); Local, FedHPL, +P and +H (right)."""
    left, right = printed()["table_3_left"]["rows"], printed()["table_3_right"]["rows"]
    alphas = ALPHAS | {"iid": "IID"}
    rows = {"local": "Local", "fedhpl": "FedHPL", "fedhpl-plus-p": "plus_P", "fedhpl-plus-h": "plus_H"}
    clients = {f"{group}-{statistic}": statistic for group, statistic in product(MODELS, CLIENTS)}
    splits = {f"{group}-{split}": split for group, split in product(MODELS, SPLITS)}
    arrow = "Below Local (96.20): of the paper's two renderings the one with the arrow down is right."

    def fixed(split: str, column: str) -> Entry:
        group, statistic = column.split("-")
        value = left[alphas[split]][group][statistic]
        return entry(params, _of(group, split), "fedhpl", split, statistic=statistic, printed=value)

    def ablated(row: str, column: str) -> Entry:
        group, split = column.split("-")
        footnote = arrow if (row, column) == ("fedhpl-plus-h", "H-noniid") else ""
        value = right[rows[row]][group][SPLITS[split]]
        experiment = _of(group) if row == "fedhpl" else f"fedhpl-ablations-{MODELS[group]}"
        return entry(params, experiment, row, split, printed=value, footnote=footnote)

    return TableSpec(
        name="fedhpl-table-3",
        title="FedHPL, Table 3: CIFAR10, test accuracy (%)",
        head="Setting",
        rows={split: f"α={split[7:]}" if split in ALPHAS else "IID" for split in alphas}
        | {"local": "Local", "fedhpl": "FedHPL", "fedhpl-plus-p": "+P", "fedhpl-plus-h": "+H"},
        columns={column: f"{MODELS[column[0]]}, {statistic}" for column, statistic in clients.items()}
        | {column: f"{MODELS[column[0]]}, {_title(split)}" for column, split in splits.items()},
        entries=grid(alphas, clients, fixed) | grid(rows, splits, ablated),
        blocks=[
            Block(
                title="Left: Non-IID with fixed α; lowest, average and highest client",
                rows=[*alphas],
                columns=[*clients],
            ),
            Block(
                title="Right: average; prompts (+P) or heads (+H) averaged besides", rows=[*rows], columns=[*splits]
            ),
        ],
        footnotes=["The averages of the left part's IID row and of the right part's FedHPL row are the same runs."],
        decimals=2,
    )


def table_10(params: Params) -> TableSpec:
    """Table 10: elements that all clients upload in the first and in the last round."""
    sizes = printed()["table_10"]["rows"]
    columns = {f"{ours}-{end}": f"{SETS[ours]}, {end}" for ours, end in product(SETS, ("first", "last"))}
    impossible = (
        "Printed 0.531M would be 50,618 logits with their labels, more than the 50,000 training images; probably a "
        "wrong digit."
    )

    def cell(row: str, column: str) -> Entry:
        (group, split), (ours, end) = row.split("-"), column.split("-")
        value = sizes[group][SPLITS[split]][SETS[ours]][end]
        footnote = impossible if (row, column) == ("V-noniid", "cifar10-first") else ""
        more = {"statistic": f"up_{end}", "printed": value, "footnote": footnote}
        return entry(params, f"fedhpl-{MODELS[group]}-{ours}", "fedhpl", split, **more)

    return TableSpec(
        name="fedhpl-table-10",
        title="FedHPL, Table 10: logits uploaded by all clients in the first and the last round, M elements",
        head="Subset",
        rows=_models_and_splits(),
        columns=columns,
        entries=grid(_models_and_splits(), columns, cell),
        blocks=_by_models(list(columns)),
        footnotes=[
            "M = 1024² elements; n_c logits and a label for each correctly predicted training sample.",
            "Averaged per class instead, five clients upload 0.537K (CIFAR10, SVHN) or 49.316K (CIFAR100) elements "
            "in every round: 5 n_c (n_c + 1), K = 1024.",
        ],
    )


def table_11(params: Params) -> TableSpec:
    """Table 11: class means against all correct logits as upload."""
    accuracy = {group: printed()[f"table_11_{name}"]["rows"] for group, name in MODELS.items()}
    forms = {"average": "fedhpl-average-upload", "all": "fedhpl"}
    columns = {f"{ours}-{form}": f"{SETS[ours]}, {form}" for ours, form in product(SETS, forms)}

    def cell(row: str, column: str) -> Entry:
        (group, split), (ours, form) = row.split("-"), column.split("-")
        value = accuracy[group][SPLITS[split]][SETS[ours]][form]
        family = f"upload-{MODELS[group]}" if form == "average" else MODELS[group]
        return entry(params, f"fedhpl-{family}-{ours}", forms[form], split, printed=value)

    return TableSpec(
        name="fedhpl-table-11",
        title="FedHPL, Table 11: uploads averaged per class or all correct logits, average test accuracy (%)",
        head="Subset",
        rows=_models_and_splits(),
        columns=columns,
        entries=grid(_models_and_splits(), columns, cell),
        blocks=_by_models(list(columns)),
        footnotes=[
            "A yardstick of the paper's noise: it ran FedHPL again for the columns 'all', which differ from Tables 1 "
            "and 2 by up to 0.45 points on CIFAR10 and CIFAR100 and 1.4 on SVHN. Ours are the same runs.",
        ],
        decimals=2,
    )


def table_12(params: Params) -> TableSpec:
    """Table 12: FedHPL on backbones of MoCo-v3."""
    accuracy = printed()["table_12"]["rows"]

    def cell(group: str, column: str) -> Entry:
        ours, split = column.split("-")
        value = accuracy[group][SETS[ours]][SPLITS[split]]
        return entry(params, f"fedhpl-moco-{MODELS[group]}-{ours}", "fedhpl", split, printed=value)

    return TableSpec(
        name="fedhpl-table-12",
        title="FedHPL, Table 12: backbones of MoCo-v3, 50 rounds, average test accuracy (%)",
        head="Models",
        rows={group: f"{name} ViTs" for group, name in MODELS.items()},
        columns=_sets_and_splits(),
        entries=grid(MODELS, _sets_and_splits(), cell),
        footnotes=["MoCo-v3's authors published no ViT-L; the paper does not say whose it used."],
        decimals=2,
        curves=True,
    )


def table_13(params: Params) -> TableSpec:
    """Table 13: fixed alpha, supervised backbones and MoCo-v3 after few and after 50 rounds."""
    accuracy = printed()["table_13"]["rows"]
    rows = {f"{ours}/{split}": f"{SETS[ours]}, α={split[7:]}" for ours, split in product(SETS, ALPHAS)}
    titles = {"moco_1": "MoCo-v3 (1)", "moco_2": "MoCo-v3 (2)", "supervised": "supervised"}
    columns = {f"{group}-{start}": f"{MODELS[group]}, {titles[start]}" for group, start in product(MODELS, titles)}

    def cell(row: str, column: str) -> Entry:
        (ours, split), (group, start) = row.split("/"), column.split("-")
        moco = f"fedhpl-moco-alpha-{MODELS[group]}-{ours}"
        experiment = _of(group, split, ours) if start == "supervised" else moco
        supervised = params.experiments[_of(group, split, ours)].defaults["rounds"]
        round = supervised if start == "moco_1" else None
        value = accuracy[SETS[ours]][ALPHAS[split]][group][start]
        return entry(params, experiment, "fedhpl", split, round=round, printed=value)

    return TableSpec(
        name="fedhpl-table-13",
        title="FedHPL, Table 13: Non-IID with fixed α, average test accuracy (%)",
        head="Data",
        rows=rows,
        columns=columns,
        entries=grid(rows, columns, cell),
        footnotes=[
            "MoCo-v3 (1): after round 10 (CIFAR10) or 15 (CIFAR100, SVHN), as many as the supervised backbones have; "
            "MoCo-v3 (2): the same runs after round 50."
        ],
        decimals=2,
    )


def table_14(params: Params) -> TableSpec:
    """Table 14: one to four local epochs."""
    accuracy = printed()["table_14"]["rows"]
    rows = ("1", "2", "3", "4")
    columns = {
        f"{group}-{statistic}": f"{MODELS[group]}, {statistic}" for group, statistic in product(MODELS, CLIENTS)
    }

    def cell(epochs: str, column: str) -> Entry:
        group, statistic = column.split("-")
        value = accuracy[f"Tc_{epochs}"][group][statistic]
        more = {"statistic": statistic, "printed": value}
        experiment, row = f"fedhpl-epochs-{MODELS[group]}", f"fedhpl-local-epochs-{epochs}"
        if epochs == "1":
            experiment, row = _of(group, "noniid-0.1"), "fedhpl"
        return entry(params, experiment, row, "noniid-0.1", **more)

    return TableSpec(
        name="fedhpl-table-14",
        title="FedHPL, Table 14: local epochs, CIFAR10, Non-IID with α=0.1, test accuracy (%)",
        head="Training",
        rows={epochs: f"{epochs} local epoch{'s' if epochs != '1' else ''}" for epochs in rows},
        columns=columns,
        entries=grid(rows, columns, cell),
        footnotes=["One local epoch is the first row of Table 3, left: the same runs."],
        decimals=2,
    )


TABLES: dict[str, Callable[[Params], TableSpec]] = {
    "fedhpl-table-1": table_1,
    "fedhpl-table-2": table_2,
    "fedhpl-table-3": table_3,
    "fedhpl-table-10": table_10,
    "fedhpl-table-11": table_11,
    "fedhpl-table-12": table_12,
    "fedhpl-table-13": table_13,
    "fedhpl-table-14": table_14,
}
"""The tables that show runs."""

ARITHMETIC: dict[str, tuple[str, ...]] = {
    "fedhpl-table-5": (),
    "fedhpl-table-6": (),
    "fedhpl-table-7": (FRAME_3,),
    "fedhpl-table-8": (FRAME_3,),
    "fedhpl-table-9": (),
}
"""The tables that are computed and never trained, each with the experiments whose settings it counts with."""


def _of(group: str, split: str = "iid", dataset: str = "cifar10") -> str:
    """The experiment of FedHPL itself; those of a fixed alpha are apart."""
    alpha = split.partition("-")[2]
    return f"fedhpl-alpha-{MODELS[group]}-{dataset}-{alpha}" if alpha else f"fedhpl-{MODELS[group]}-{dataset}"


def _title(split: str) -> str:
    return "Non-IID" if split == "noniid" else SPLITS[split]


def _sets_and_splits() -> dict[str, str]:
    return {f"{ours}-{split}": f"{SETS[ours]}, {_title(split)}" for ours, split in product(SETS, SPLITS)}


def _models_and_splits() -> dict[str, str]:
    return {f"{group}-{split}": _title(split) for group, split in product(MODELS, SPLITS)}


def _by_models(columns: list[str]) -> list[Block]:
    return [
        Block(title=f"{name.capitalize()} ViTs", rows=[f"{group}-{split}" for split in SPLITS], columns=columns)
        for group, name in MODELS.items()
    ]
