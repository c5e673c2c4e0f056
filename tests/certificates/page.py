"""Writes docs/certificates.md: what every method was compared with, and how far apart the numbers are."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

from readings import READINGS, Reading
from replay import Comparison, compared
from test_equations import ROUNDS
from vector import Vector

from hetfl.methods import METHODS
from hetfl.methods.base import MethodSettings
from hetfl.models import ModelOptions

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "certificates.md"
EQUATIONS = Path(__file__).parent / "test_equations.py"
ENGINES = ("sequential", "batched")
TOLERANCE = 1e-10

HEAD = """\
# Certificates

This page compares hetfl's training steps with those of each method's published code. The published code, by the
authors or from the library in which FedTGP's authors keep other methods, was run on very small inputs: three clients,
four classes, networks of a few hundred weights, two or three rounds. All numbers of these runs were kept: the loss of
every step, the parameters after every round, the messages, the server's state, the scores and the predictions. hetfl
starts from the same data, initial values, participants, order of samples and random draws of the server. Everything
else is the code that every run uses: the round loop, the engines, optimisers, objectives, messages, aggregation and
prediction. {numbers:,} numbers of {vectors} examples are compared in float64, with each of the two engines. **The
largest difference is {largest}.**

To show that the comparison can fail, each example is also run with one setting slightly wrong (the "counter-check").
The numbers then differ by at least {spoilt}. A method without an example is compared with its equations, which
[`test_equations.py`](../tests/certificates/test_equations.py) implements again in plain torch. This page does not
show how initial values, partitions and augmented images are drawn, because the examples provide them. Nor does it
show how accurate a method is; the tables do.

`make certificates` runs every example again and writes this page. `pytest tests/certificates` takes seconds. It fails
if a number differs by more than {tolerance}, if a number of an example is not compared, if a method has neither an
example nor an equation test, or if this page is out of date. The examples are in
[`tests/vectors/`](../tests/vectors/), as tensors without code. [`vectors.json`](../tests/vectors/vectors.json) names
the repository, the commit and the functions of each example, and what was replaced to run them.
[`replay.py`](../tests/certificates/replay.py) runs an example through the engines, and
[`readings.py`](../tests/certificates/readings.py) says where hetfl stores the numbers that an example expects.
Neither file implements a method. The differences were measured on one machine; on another one, their last digits may
differ.
"""


@dataclass(frozen=True)
class EquationTest:
    """A test that implements the equations of the methods that it is marked with."""

    path: Path
    name: str
    says: str

    def link(self) -> str:
        """Its name, leading to its file."""
        return f"[`{self.name}`](../{self.path.relative_to(ROOT).as_posix()})"


@cache
def equation_tests() -> dict[str, list[EquationTest]]:
    """Marked tests by method, read from the files' syntax."""
    found: dict[str, list[EquationTest]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.equation":
                    says = (ast.get_docstring(node) or "").partition("\n")[0]
                    for method in mark.args:
                        found[ast.literal_eval(method)].append(EquationTest(path, node.name, says))
    return dict(found)


@cache
def outcome(name: str, engine: str) -> tuple[Comparison, ...]:
    """What a vector's comparison finds, once for all tests."""
    return tuple(compared(name, engine))


@cache
def spoilt(name: str) -> float:
    """The largest difference, apart from whole numbers, with one setting slightly wrong."""
    found = compared(name, "sequential", READINGS[name].spoilt)
    return largest(one for one in found if not one.whole)


def largest(found: Any) -> float:
    """The largest difference of some comparisons."""
    return max(one.difference for one in found)


def page() -> str:
    """All of it.

    Raises:
        AssertionError: a number differs by more than the tolerance, and so there is nothing to certify.
    """
    vectors = [Vector(name) for name in READINGS]
    both = [one for vector in vectors for engine in ENGINES for one in outcome(vector.name, engine)]
    assert largest(both) <= TOLERANCE, max(both, key=lambda one: one.difference)
    head = HEAD.format(
        numbers=sum(one.numbers for one in both) // len(ENGINES),
        vectors=len(vectors),
        largest=shown(largest(both)),
        spoilt=shown(min(spoilt(vector.name) for vector in vectors)),
        tolerance=shown(TOLERANCE),
    )
    paragraphs = "\n\n".join(fill(part, 120, break_on_hyphens=False) for part in head.split("\n\n"))
    return (
        "\n".join([paragraphs, "", *overview(vectors), "", *(line for v in vectors for line in section(v))]).rstrip()
        + "\n"
    )


def overview(vectors: list[Vector]) -> list[str]:
    """A row for every registered method, and for VPT, which several of them use."""
    of_method: dict[str | None, list[Vector]] = defaultdict(list)
    for vector in vectors:
        of_method[vector.entry["hetfl"]["method"]].append(vector)
    lines = [
        "## Every method",
        "",
        "| method | from | compared with | numbers | rounds | largest difference | equation tests |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    rows = [(METHODS[name].title, METHODS[name].source, of_method.get(name, []), name) for name in METHODS]
    rows += [("VPT", "Jia et al., ECCV 2022", of_method[None], None)]
    for title, source, its, name in sorted(rows, key=lambda row: row[0].lower()):
        tests = ", ".join(test.link() for test in equation_tests().get(name, []))
        if not its:
            anew = any(test.path == EQUATIONS for test in equation_tests().get(name, []))
            far = [str(ROUNDS), f"below {shown(TOLERANCE)}"] if anew else ["", ""]
            what = "its equations" if tests else "**nothing**"
            lines.append(f"| {title} | {source} | {what} | | {' | '.join(far)} | {tests} |")
        for vector in its:
            found = [one for engine in ENGINES for one in outcome(vector.name, engine)]
            count = sum(one.numbers for one in found) // len(ENGINES)
            rounds = max(one.round for one in found)
            label = f"{vector.name}: {origin(vector)}" if len(its) > 1 else origin(vector)
            cells = [title, source, f"[{label}](#{vector.name})", f"{count:,}", str(rounds)]
            lines.append(f"| {' | '.join(cells)} | {shown(largest(found))} | {tests} |")
    return lines


def section(vector: Vector) -> list[str]:
    """One example: where it is from, what was compared, which settings match."""
    entry, reading, source = vector.entry, READINGS[vector.name], vector.entry["source"]
    repository = source["repository"]
    lines = [f"## {vector.name}", ""]
    lines += [
        f"Code: [{origin(vector)}]({repository}/tree/{source['commit']}), commit `{source['commit']}` of"
        f" {source['date']} ({source['license']}); what was replaced to run it: {entry['stubs']}.",
        "",
        *(f"- {_functions(repository, source['commit'], line)}" for line in source["code"]),
        "",
        f"What the code does: {entry['note']}",
        "",
    ]
    if reading.why:
        lines += [f"How it is compared: {reading.why}", ""]
    lines += ["| compared | numbers | sequential | batched |", "|---|---:|---:|---:|"]
    by_engine = {engine: outcome(vector.name, engine) for engine in ENGINES}
    for kind in dict.fromkeys(one.kind for one in by_engine["sequential"]):
        alike = {engine: [one for one in found if one.kind == kind] for engine, found in by_engine.items()}
        count = sum(one.numbers for one in alike["sequential"])
        lines.append(f"| {kind} | {count:,} | {' | '.join(shown(largest(alike[engine])) for engine in ENGINES)} |")
    wrong = ", ".join(f"`{key}: {value}`" for key, value in reading.spoilt.items())
    lines.append(f"| *all, with {wrong} (counter-check)* | | {shown(spoilt(vector.name))} | |")
    settings = reading.settings(vector)
    lines += ["", "hetfl's settings for the same steps:", "", "```yaml"]
    lines += [f"{{method: {reading.method(vector)}, settings: {_yaml(settings)}}}", "```", ""]
    cls = METHODS[reading.method(vector)]
    documented = [_plain(inspect.getdoc(cls) or ""), _plain(_intro(cls.Settings))]
    lines += ["hetfl's documentation of the method and its defaults: " + " ".join(filter(None, documented)), ""]
    if entry["hetfl"]["method"] and (rows := choices(reading, cls.Settings, settings)):
        lines += ["| choice | here | default | what it decides |", "|---|---|---|---|", *rows, ""]
    test = "[`test_vector`](../tests/certificates/test_vectors.py)"
    return [*lines, f"Test: {test}, `{vector.name}-sequential` and `{vector.name}-batched`.", ""]


def choices(reading: Reading, cls: type[MethodSettings], settings: dict[str, Any]) -> list[str]:
    """Rows about a method's own settings that choose a reading rather than a size, in their documentation's words.

    Raises:
        KeyError: a default is not what the example has, and nothing says why.
    """
    rows = []
    for key, value in settings.items():
        default, kind = cls.model_fields[key].default, str(cls.model_fields[key].annotation)
        if key in MethodSettings.model_fields or ("Literal" not in kind and "bool" not in kind):
            continue
        follows = "the same" if value == default else f"`{_yaml(default)}`: {reading.reasons[key]}"
        rows.append(f"| `{key}` | `{_yaml(value)}` | {follows} | {_documented(cls, key)} |")
    return rows


def _documented(cls: type, key: str) -> str:
    """What the settings' docstrings say about a key."""
    for owner in cls.__mro__:
        text = inspect.cleandoc(owner.__doc__ or "")
        if found := re.search(rf"^\s*(?:\w+, )*{key}(?:, \w+)*: (.*?)(?=^\s*[\w, ]+: |\Z)", text, re.M | re.S):
            says = _plain(found[1])
            return _documented(ModelOptions, key) if "ModelOptions" in says else says
    return ""


def _intro(cls: type) -> str:
    """A docstring of settings without its list of attributes, or nothing where it is not the class's own."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    return "" if re.match(r"``\w+``:", text) else text.partition("\n\nAttributes:")[0]


def _plain(text: str) -> str:
    """Documentation as one line of Markdown."""
    return " ".join(text.replace("``", "`").split())


def _functions(repository: str, commit: str, line: str) -> str:
    path, _, functions = line.partition(" ")
    return f"[`{path}`]({repository}/blob/{commit}/{path}): {functions}"


def origin(vector: Vector) -> str:
    """Repository and commit in short."""
    source = vector.entry["source"]
    return f"{source['repository'].removeprefix('https://github.com/')} {source['commit'][:7]}, {source['date']}"


def shown(difference: float) -> str:
    """A difference with one digit."""
    return f"{difference:.0e}" if difference else "0"


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


DIFFERENCE = re.compile(r"(?<=\| )0(?= \|)|(?<![\w.`])\de[-+]\d\d\b")


def same_page(written: str, made: str) -> str | None:
    """What is wrong with a written page, beside last digits; None where it is current.

    Everything but differences must be the same. A difference below the tolerance may be at most ten times what the
    page shows, or 1e-13; those of counter-checks must agree within a factor of two.
    """
    if DIFFERENCE.sub("#", written) != DIFFERENCE.sub("#", made):
        pairs = zip(*(DIFFERENCE.sub("#", text).splitlines() for text in (written, made)), strict=False)
        line = next((f"has {a!r} for {b!r}" for a, b in pairs if a != b), "has another number of lines")
        return f"docs/certificates.md {line}; run make certificates"
    for old, new in zip(map(float, DIFFERENCE.findall(written)), map(float, DIFFERENCE.findall(made)), strict=True):
        if new > TOLERANCE and not old / 2 <= new <= old * 2:
            return f"docs/certificates.md shows {old}, it is {new}; run make certificates"
        if new <= TOLERANCE and new > max(10 * old, 1e-13):
            return f"docs/certificates.md shows {old}, it is {new} here"
    return None
