"""Our SVG files as parts of a page, and what they were drawn from."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import Markup

from hetfl.figures import style
from hetfl.figures.base import Figure
from hetfl.tables.records import Records

Provenance = list[tuple[str, list[tuple[str, str]]]]
"""What stands behind numbers or drawings: names, each with its (value, SHA-256 or nothing) pairs."""

_COLOURS = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    style.PAPER: "page",
    style.HEAT: "heat",
    **{colour: f"series-{index}" for index, colour in enumerate(style.PALETTE)},
}


def inline_svg(path: Path, label: str, prefix: str) -> Markup:
    """One of our SVG files as part of a page: in the page's colours, its ids kept apart by a prefix."""
    text = path.read_text()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    prefix = re.sub(r"[^A-Za-z0-9_-]", "-", prefix)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = body.replace("url(#", f"url(#{prefix}-")
    for colour, name in _COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    width = float(box.group().split()[2]) if box else 0.0
    opening = Markup('<svg role="img" aria-label="{}" style="--width: {:.0f}pt" {}').format(
        label, width, Markup(box.group() if box else "")
    )
    return opening + Markup(' xmlns:xlink="http://www.w3.org/1999/xlink">' + body.rstrip())


def drawn_from(figure: Figure, records: Records) -> Provenance:
    """What stands behind a figure: the runs that are here of the cells that it shows, or its data sets."""
    if not figure.of_runs:
        names = dict.fromkeys([*figure.partitions(), *figure.datasets(records.params)])
        return [("Data set", [(name, "") for name in names])]
    places = [(entry, seed) for entry in figure.entries for seed in entry.seeds]
    found = {record.path: record for place in places if (record := records.get(*place))}
    runs = [record.run for record in found.values()]
    datasets = {run.dataset: run.inputs.dataset for run in runs}
    partitions = {f"{run.dataset}/{run.split}-s{run.seed}": run.inputs.partition for run in runs}
    pairs = {
        "Runs": [(path, "") for path in found] or [("their records are not here any more", "")],
        "Data set, SHA-256": [*datasets.items()],
        "Partitions, SHA-256": [*partitions.items()],
        "Device": [
            (device, "") for device in dict.fromkeys(device for run in runs for device in run.throughout("device"))
        ],
        "Commit": [(commit, "") for commit in dict.fromkeys(run.commit for run in runs)],
    }
    return [(name, values) for name, values in pairs.items() if values]
