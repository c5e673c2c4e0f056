"""Hooks of MkDocs: pages that come from elsewhere, and links to files that are no pages.

``mkdocs build --strict`` writes the documentation into ``build/docs``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)#\s]+)(#[^)\s]*)?\)")
"""A link of Markdown to a file: its text, the path and the heading."""
COMPARISONS = (
    "choices-fedtgp",
    "choices-fedhpl",
    "choices-fgpt",
    "orderings-fgpt",
    "orderings-fedhpl-transfer",
    "orderings-fgpt-transfer",
)
ELSEWHERE = {"ledger.md": "papers/ledger.md"}
ELSEWHERE |= {f"{name}.md": f"papers/tables/{name}/{name}.md" for name in COMPARISONS}
"""Pages by the files of the repository that they are."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are written elsewhere or by the program."""
    from mkdocs.structure.files import File

    for page, path in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files that are no pages into links to the repository, or into text if it has no address."""
    source = ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {path: name for name, path in ELSEWHERE.items()}

    def link(match: re.Match[str]) -> str:
        text, target, heading = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside and files.get_file_from_path(inside):
            return f"[{text}]({inside}{heading})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{heading})"
        return text

    return LINK.sub(link, markdown)


def commands() -> str:
    """The page of all commands, as ``hetfl --help`` tells them."""
    import typer.main
    from typer.cli import get_docs_for_click

    from hetfl.cli import app

    command = typer.main.get_command(app)
    for one in command.commands.values():
        # By default the list of commands has the first 45 characters of each.
        one.short_help = " ".join((one.help or "").partition("\n\n")[0].split())
    text = get_docs_for_click(
        obj=command, ctx=command.make_context("hetfl", [], resilient_parsing=True), name="hetfl"
    )
    return text.replace("# `hetfl`", "# Commands", 1)
