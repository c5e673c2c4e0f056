"""Our SVG files as parts of a page."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import Markup

from hetfl.figures import style

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
