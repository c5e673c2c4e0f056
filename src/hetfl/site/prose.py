"""Pages of Markdown as pages of the report, where browsers would show the raw text."""

from __future__ import annotations

from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from hetfl.ledger.page import anchor


def prose(text: str, link: Callable[[str], str]) -> tuple[str, Markup]:
    """The first heading of a page of Markdown, and the page as HTML. HTML in it is shown as text.

    Args:
        text: Markdown with tables, in which ``<br>`` may break a line. Headings get the anchors that GitHub gives.
        link: from a relative link of the page to what it is called in the report.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text.replace("<br>", BREAK))
    title = ""
    for token, inside in zip(tokens, tokens[1:], strict=False):
        if token.type == "heading_open":
            words = "".join(part.content for part in inside.children or ())
            title = title or words
            token.attrSet("id", anchor(words))
    for token in tokens:
        for part in token.children or ():
            _follow(part, link)
    html = parser.renderer.render(tokens, parser.options, {}).replace(BREAK, "<br>")
    opened = '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table class="plain">'
    return title, Markup(html.replace("<table>", opened).replace("</table>", "</table></div>"))


BREAK = "\x1f"
"""Stands for a broken line, since the parser takes no HTML."""


def _follow(part: Token, link: Callable[[str], str]) -> None:
    target = part.attrGet("href") if part.type == "link_open" else None
    if isinstance(target, str) and not target.startswith(("#", "https://")):
        part.attrSet("href", link(target))
