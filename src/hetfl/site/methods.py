"""What the page of a method says: it comes from the method's file, its runs and the ledger."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from inspect import cleandoc, getdoc
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

import hetfl.methods
from hetfl.methods import METHODS
from hetfl.methods.contract import Method, MethodSettings
from hetfl.report.shown import show_bytes, show_setting
from hetfl.tables.records import Record

FOLDER = Path(hetfl.methods.__file__).parent
MESSAGES = {"register": "Once, before round 1", "uplink": "A client sends", "downlink": "The server sends"}
EQUATIONS = {
    "objective": "A client minimises",
    "statistics": "It sums over its data",
    "aggregate": "The server computes",
    "predict": "A sample's scores",
}


class Place(NamedTuple):
    """A line of a method's file; ``page`` is relative to the site's root."""

    file: str
    line: int

    @property
    def page(self) -> str:
        """The line on the page of its file."""
        return f"source/{self.file}.html#L{self.line}"


class Detail(NamedTuple):
    """What a line of a class says of itself: a function's docstring, or a comment."""

    name: str
    text: str
    place: Place


@cache
def _file(name: str) -> tuple[str, ast.Module]:
    text = (FOLDER / f"{name}.py").read_text()
    return text, ast.parse(text)


def _details(cls: type) -> list[Detail]:
    """The docstrings of a class's own functions, or what the contract says of them, and the comments between."""
    name = cls.__module__.rpartition(".")[2]
    text, module = _file(name)
    body = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    found = [
        Detail(node.name, _said(node, cls), Place(name, node.lineno))
        for node in body.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    return sorted([*found, *_comments(text, name, body)], key=lambda detail: detail.place.line)


def _said(node: ast.FunctionDef, cls: type) -> str:
    # Without a docstring, what the contract says: a parent's equation is not that of a function that replaces it. Of
    # the contract's words only the first sentence holds for every method.
    general = getattr(Method, node.name, None) or getattr(cls, node.name)
    return ast.get_docstring(node) or (getdoc(general) or "").split("\n\n")[0]


def _comments(text: str, file: str, body: ast.ClassDef) -> Iterator[Detail]:
    """The comments of a class that stand on lines of their own, joined where they follow one another."""
    last, lines = -1, list[tuple[int, str]]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        whole = token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
        if whole and body.lineno <= token.start[0] <= (body.end_lineno or 0):
            words = token.string.lstrip("# ")
            if token.start[0] == last + 1:
                lines[-1] = lines[-1][0], f"{lines[-1][1]} {words}"
            else:
                lines.append((token.start[0], words))
            last = token.start[0]
    yield from (Detail("", words, Place(file, line)) for line, words in lines)


def _parents(cls: type[Method]) -> list[type[Method]]:
    """The class and those that it refines, up to the contract."""
    return [base for base in cls.__mro__ if issubclass(base, Method) and base is not Method]


def idea(name: str) -> str:
    """The docstring of a method's file, without the method's name."""
    text = ast.get_docstring(_file(METHODS[name].__module__.rpartition(".")[2])[1]) or ""
    text = text.removeprefix(f"{METHODS[name].title}: ")
    return text[:1].upper() + text[1:]


def method_view(
    name: str,
    records: Sequence[Record],
    cells: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    certificate: Mapping[str, str],
) -> dict[str, Any]:
    """What the page of a method shows.

    Args:
        name: of the method.
        records: all that have a page.
        cells: those of tables that show its runs: ``table``, ``title``, ``row``, ``column``, ``text`` and ``id``.
        lines: of the ledger, of its printed numbers, with ``row_title`` and ``column_title``.
        certificate: of its comparison with published code, see :func:`certificates`.
    """
    cls = METHODS[name]
    parents = _parents(cls)
    every = {parent: _details(parent) for parent in parents}
    first: dict[str, Detail] = {}
    for details in every.values():
        for detail in details:
            if detail.name:
                first.setdefault(detail.name, detail)
    own = [record for record in records if record.run.method == name]
    registered = {known: method for method, known in METHODS.items()}
    return {
        "name": name,
        "title": cls.title,
        "idea": idea(name),
        "about": getdoc(cls) or "",
        "source": cls.source,
        "travels": cls.travels,
        "facts": _facts(cls),
        "messages": [(title, first[key]) for key, title in MESSAGES.items() if key in first],
        "measured": _measured(own),
        "equations": [(title, first[key]) for key, title in EQUATIONS.items() if key in first],
        "settings": _settings(cls, own),
        "details": every[cls],
        "inherited": [(parent, registered.get(parent), every[parent]) for parent in parents[1:]],
        "files": [parent.__module__.rpartition(".")[2] for parent in parents],
        "cells": cells,
        "lines": lines,
        "certificate": certificate,
        "example": own[0] if own else None,
    }


def _facts(cls: type[Method]) -> list[tuple[str, str]]:
    tested = {"client": "the client's own model after local training", "global": "what the server would send next"}
    return [
        ("What travels", cls.travels),
        ("Architectures may differ", "yes" if cls.heterogeneous else "no"),
        ("Clients are tested with", tested[cls.evaluates]),
        ("Public data set", "yes" if cls.public else "no"),
        ("Server sends", "to each client something else" if cls.personal else "the same to all clients"),
    ]


def _measured(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """By experiment, the bytes of one client's messages in the last round of one of its runs."""
    found = {}
    for record in records:
        if record.training:
            line, run = record.training[-1], record.run
            many = max(1, len(line.participants))
            found[f"{run.experiment}, {run.title}"] = (
                show_bytes(line.up.bytes / many),
                show_bytes(line.down.bytes / many),
            )
    return [(where, *sizes) for where, sizes in found.items()]


def _settings(cls: type[Method], records: Sequence[Record]) -> list[dict[str, Any]]:
    """The method's own settings first, then those that all methods have."""
    told = _described(cls)
    shared = MethodSettings.model_fields
    fields, runs = cls.Settings.model_fields, [record.run for record in records]
    return [
        {
            "name": name,
            "default": fields[name].default,
            "says": told.get(name) or fields[name].description or "",
            # A record that is older than a setting has its default.
            "values": [*dict.fromkeys(show_setting(run.settings.get(name, fields[name].default)) for run in runs)],
            "shared": name in shared,
        }
        for name in sorted(fields, key=lambda name: name in shared)
    ]


def _described(cls: type[Method]) -> dict[str, str]:
    """What the docstrings of the settings say of each."""
    found: dict[str, str] = {}
    for settings in reversed(cls.Settings.__mro__):
        text = cleandoc(settings.__doc__ or "") if settings.__module__.startswith("hetfl.methods") else ""
        for names, words in re.findall(r"^ {4}((?:\w+, )*\w+): (.+(?:\n {8,}.+)*)", text, re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), " ".join(words.split()))
        for name, words in re.findall(r"``(\w+)``: ([^.;]+)", text):
            found.setdefault(name, " ".join(words.split()))
    return found


def certificates(page: Path) -> dict[str, dict[str, str]]:
    """What the table of ``docs/certificates.md`` says of each method, by title; empty without the page."""
    rows: dict[str, dict[str, str]] = {}
    if page.exists():
        table = re.findall(r"^\| (.+) \|$", page.read_text().partition("## Every method")[2], re.MULTILINE)
        for cells in (re.split(r" ?\| ?", row) for row in table[1:]):
            if len(cells) == 7:
                compared = re.sub(r"\[(.+?)\]\(.*?\)", r"\1", cells[2])
                rows.setdefault(cells[0], {"with": compared, "numbers": cells[3], "difference": cells[5]})
    return rows


def rst(text: str) -> Markup:
    """A docstring as HTML: its code and its paragraphs."""
    html = str(escape(text))
    html = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"<code>\1</code>", html)
    html = re.sub(r"``(.+?)``", r"<code>\1</code>", html)
    return Markup("<br>".join(" ".join(part.split()) for part in html.split("\n\n")))


def sources(files: Iterable[str]) -> dict[str, Markup]:
    """Some files of methods, coloured, each line with an anchor."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer, formatter = PythonLexer(), HtmlFormatter(nowrap=True)
    found = {}
    for name in files:
        lines = highlight(_file(name)[0], lexer, formatter).rstrip("\n").split("\n")
        numbered = (f'<a id="L{n}" href="#L{n}">{n}</a>{line}' for n, line in enumerate(lines, 1))
        found[name] = Markup("\n".join(numbered))
    return found
