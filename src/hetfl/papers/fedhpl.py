"""FedHPL (arXiv 2405.17267): its printed tables beside our experiments."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hetfl.config import read_yaml
from hetfl.federation.plan import Params
from hetfl.papers.spec import Column, TableSpec

HOMOGENEOUS, HETEROGENEOUS = "fedhpl-homogeneous-cifar10", "fedhpl-heterogeneous-cifar10"
SPLITS = {"iid": "IID", "dir": "Dir", "noniid": "NonIID"}
"""Our splits, and the keys of the printed tables."""


@cache
def printed() -> dict[str, Any]:
    """The printed tables, as transcribed in ``fedhpl.yaml``."""
    return read_yaml(Path(__file__).with_suffix(".yaml"))["tables"]


def table_3(params: Params) -> TableSpec:
    """Table 3, right half: Local, FedHPL, +P and +H on CIFAR10 with homogeneous and heterogeneous ViTs."""
    rows = {"local": "Local", "fedhpl": "FedHPL", "fedhpl-plus-p": "plus_P", "fedhpl-plus-h": "plus_H"}
    groups = {"H": (HOMOGENEOUS, "homogeneous"), "V": (HETEROGENEOUS, "heterogeneous")}
    accuracy = printed()["table_3_right"]["rows"]
    return TableSpec(
        name="fedhpl-table-3",
        title="FedHPL, Table 3 (right): CIFAR10, average test accuracy (%)",
        rows={"local": "Local", "fedhpl": "FedHPL", "fedhpl-plus-p": "+P", "fedhpl-plus-h": "+H"},
        columns={
            f"{group}-{split}": Column(title=f"{title}, {print_}", experiment=experiment, split=split)
            for group, (experiment, title) in groups.items()
            for split, print_ in SPLITS.items()
        },
        seeds=params.experiments[HOMOGENEOUS].seeds,
        printed={
            row: {
                f"{group}-{split}": float(accuracy[key][group][print_])
                for group in groups
                for split, print_ in SPLITS.items()
            }
            for row, key in rows.items()
        },
    )
