import re
from pathlib import Path

import numpy as np
import pytest

from hetfl.report.partitions import Kind, Panel, partition_figure


def counts(clients: int, classes: int) -> np.ndarray:
    return np.array([[(7 * client + 13 * label) % 40 for label in range(classes)] for client in range(clients)])


def draw(path: Path, kind: Kind, *panels: Panel, columns: int = 1) -> str:
    written = partition_figure(panels, kind, path, columns)
    assert [file.name for file in written] == [f"{path.name}.svg", f"{path.name}.png"]
    return written[0].read_text()


@pytest.mark.parametrize(("clients", "classes"), [(5, 10), (20, 100)])
def test_heatmap_names_and_numbers_what_has_room(tmp_path: Path, clients: int, classes: int) -> None:
    names = [f"class {label}" for label in range(classes)]
    panel = Panel("Dirichlet", counts(clients, classes), names)
    text = draw(tmp_path / "heatmap", "heatmap", panel)
    assert "Dirichlet" in text
    assert (">class 3<" in text) == (classes == 10)
    assert (">39<" in text) == (classes == 10)


def test_bubbles_are_one_circle_for_each_class_a_client_holds(tmp_path: Path) -> None:
    held = np.array([[100, 0, 25], [0, 4, 0]])
    text = draw(tmp_path / "bubbles", "bubbles", Panel("practical", held))
    circles = []
    for shape in re.findall(r'<g id="line2d_\d+">(.*?)</g>\s*</g>', text, re.DOTALL):
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
    panels = [Panel("CIFAR10-IID", counts(5, 10)), Panel("SVHN-IID", None), Panel("SVHN-Dir", counts(5, 10))]
    text = draw(tmp_path / "figure", "heatmap", *panels, columns=2)
    assert text.count("not prepared") == 1
    assert all(panel.title in text for panel in panels)


@pytest.mark.parametrize("kind", ["heatmap", "bubbles"])
def test_bytes_are_the_same_every_time(tmp_path: Path, kind: Kind) -> None:
    panel = Panel("IID", counts(20, 10))
    for name in "ab":
        draw(tmp_path / name, kind, panel)
    for suffix in (".svg", ".png"):
        one, two = ((tmp_path / name).with_suffix(suffix).read_bytes() for name in "ab")
        assert one == two
