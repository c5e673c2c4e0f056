import json
import re
from pathlib import Path

import numpy as np
import pytest
from figure_helpers import drawn_twice_alike, grid, sources

from hetfl.figures.partitions import PartitionBubbles, PartitionHeatMap, PartitionPanel


def counts(clients: int, classes: int) -> np.ndarray:
    return np.array([[(7 * client + 13 * label) % 40 for label in range(classes)] for client in range(clients)])


def write_card(root: Path, held: np.ndarray, names: list[str] | None = None) -> None:
    """The card of CIFAR10's partition IID, without test samples of clients."""
    path = root / "partitions" / "cifar10" / "iid-s0" / "card.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"class_counts": {"train": held.tolist()}, "class_names": names or [str(c) for c in range(held.shape[1])]}
        )
    )


def panel(kind: type[PartitionPanel], title: str, dataset: str = "cifar10") -> PartitionPanel:
    return kind(title=title, dataset=dataset, split="iid", seed=0)


def text(root: Path, *panels: PartitionPanel, columns: int = 1) -> str:
    return grid(*panels, columns=columns).write(sources(root), root / "figure")[0].read_text()


@pytest.mark.parametrize(("clients", "classes"), [(5, 10), (20, 100)])
def test_heatmap_names_and_numbers_what_has_room(tmp_path: Path, clients: int, classes: int) -> None:
    write_card(tmp_path, counts(clients, classes), [f"class {label}" for label in range(classes)])
    shown = text(tmp_path, panel(PartitionHeatMap, "Dirichlet"))
    assert "Dirichlet" in shown
    assert (">class 3<" in shown) == (classes == 10)
    assert (">39<" in shown) == (classes == 10)


def test_bubbles_are_one_circle_for_each_class_a_client_holds(tmp_path: Path) -> None:
    write_card(tmp_path, np.array([[100, 0, 25], [0, 4, 0]]))
    shown = text(tmp_path, panel(PartitionBubbles, "practical"))
    circles = []
    for shape in re.findall(r'<g id="line2d_\d+">(.*?)</g>\s*</g>', shown, re.DOTALL):
        radius = re.search(r'<path id="\w+" d="M 0 ([\d.]+)', shape)
        if "fill-opacity" in shape and radius:
            places = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', shape)
            circles += [(float(radius[1]), float(x), float(y)) for x, y in places]
    (r0, x0, y0), (r1, x1, y1), (r2, x2, y2) = sorted(circles, reverse=True)
    # Areas like 100 : 25 : 4, to the 40 diameters there are; clients to the right, classes up.
    assert (r1 / r0, r2 / r0) == pytest.approx((0.5, 0.2), abs=0.02)
    assert x0 == x1 < x2
    assert y1 < y2 < y0


def test_a_partition_that_is_not_there_is_said(tmp_path: Path) -> None:
    write_card(tmp_path, counts(5, 10))
    panels = [panel(PartitionHeatMap, "CIFAR10-IID"), panel(PartitionHeatMap, "SVHN-IID", "svhn")]
    shown = text(tmp_path, *panels, panel(PartitionHeatMap, "again"), columns=2)
    assert shown.count("not prepared") == 1
    assert all(title in shown for title in ("CIFAR10-IID", "SVHN-IID", "again"))


@pytest.mark.parametrize("kind", [PartitionHeatMap, PartitionBubbles])
def test_bytes_are_the_same_every_time(tmp_path: Path, kind: type[PartitionPanel], both_formats: None) -> None:
    write_card(tmp_path, counts(20, 10))
    drawn_twice_alike(grid(panel(kind, "IID")), tmp_path, tmp_path)
