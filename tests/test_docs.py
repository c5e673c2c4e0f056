"""The commands that README, documentation and help texts show exist, with these options, tables, stages and files."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

import pytest
import typer.main
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS, PAPERS, ROOT

from hetfl.cli import app, names
from hetfl.tables.catalogue import table_names

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
OWN = {"fedmine", "mine", "fedprox", "flowers"}
"""Names that a page gives to what it makes."""


def commands() -> list[tuple[str, str]]:
    """Lines of shell blocks, code in sentences that begins with a program's name, and examples in help, by page."""
    found = [("help", line) for line in examples(typer.main.get_command(app))]
    for page in PAGES:
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
        inline = re.findall(r"`((?:hetfl|dvc|make) [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for line in [*blocks, *inline]:
            if not re.search(r"<|\bTABLE\b|\bEXPERIMENT\b|\bFOLDER\b", line):
                found.append((page.name, line.partition(" #")[0].strip()))
    return list(dict.fromkeys(one for one in found if one[1]))


def examples(command: Any) -> list[str]:
    """The examples in the help texts of a command and those below it."""
    inner = [line for each in getattr(command, "commands", {}).values() for line in examples(each)]
    return [*re.findall(r"Example: (.+)", command.help or ""), *inner]


@cache
def known() -> set[str]:
    """Tables, experiments and stages of both projects."""
    both = [EMBEDDED_PARAMS, PAPER_PARAMS]
    found = {name for params in both for name in (*table_names(params), *params.experiments)}
    for root in (ROOT, PAPERS):
        found |= {name for name in names._stages(root)}
    return found


def is_known(word: str) -> bool:
    """Whether a word is a stage, a table, an experiment, or a path below one."""
    name = word.removeprefix("runs/").partition("/")[0].partition("@")[0]
    return name in known() or bool({name.removeprefix("download-"), word.partition("@")[2]} & OWN)


def parse(command: Any, words: list[str], parent: Any = None) -> Any:
    """Parse a command line without running it; returns the innermost command's context."""
    context = command.make_context(command.name, list(words), parent=parent)
    rest = [*context._protected_args, *context.args]
    if hasattr(command, "resolve_command"):
        name, inner, rest = command.resolve_command(context, rest)
        assert inner is not None, f"no command {name}"
        return parse(inner, rest, context)
    return context


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_is_one_that_exists(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAPERS if "papers" in line else ROOT)
    program, *words = shlex.split(line)
    if program == "hetfl":
        if words[:2] == ["--cd", "papers"]:
            words = words[2:]
        if words in (["--help"], ["--version"]):
            return
        if len(words) == 1 and words[0] in typer.main.get_command(app).commands:
            return  # a sentence names the command
        context = parse(typer.main.get_command(app), words)
        for key in ("targets", "experiment", "tables", "runs", "cell"):
            given = context.params.get(key) or ()
            for word in [given] if isinstance(given, str) else given:
                assert is_known(word), f"{page}: {word}"
    elif program == "dvc":
        action = [word for word in words if not word.startswith("-") and word != "papers"]
        assert action[0] in {"repro", "exp", "metrics", "plots", "pull", "push", "stage", "status", "dag"}
        targets = [word for word in action[1:] if action[0] in ("repro", "pull")]
        assert all(is_known(word) for word in targets), f"{page}: {targets}"
    elif program == "make":
        goals = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
        assert {word for word in words if "=" not in word} <= {*goals}
    elif program == "pytest":
        options = [word for word in words if word.startswith("--")]
        assert all(f'"{option}"' in (ROOT / "tests/conftest.py").read_text() for option in options)
        places = [word.partition("::")[0] for word in words if word.startswith("tests/")]
        assert places and all((ROOT / place).is_file() for place in places)
    else:
        assert program in {"export", "cd", ".", "git", "pip", "bash"}, f"{page}: {line}"


def test_pages_are_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    assert all(f"- {page.name}" in listed for page in PAGES[1:])


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
