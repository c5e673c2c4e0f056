"""The table of `make test-faults`: what was broken on purpose, how often, and what came of it.

A test that is marked ``faults("name of the fault")`` is one try. A test that makes many uses the fixture ``tries``::

    @pytest.mark.faults
    def test_kills(tries):
        for number in range(100):
            with tries.one("kill -9 in training"):
                ...  # an exception is a loss; the next try follows all the same

The environment variable ``FAULTS_PAGE`` names a file that the table is written to, with what it was made on.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from tabulate import tabulate

QUICK = bool(os.environ.get("QUICK"))
"""Whether to try a few of each fault, for a table within 5 minutes."""

_rows: dict[str, list[int]] = {}
_longest: dict[str, float] = {}
_notes: list[str] = []
_began = time.monotonic()


class Tries:
    """The tries of one test.

    Args:
        rows: the test's ``user_properties``, which pytest carries from its workers to the table.
    """

    def __init__(self, rows: list[tuple[str, object]]) -> None:
        self._rows = rows
        self.lost: list[str] = []

    @contextmanager
    def one(self, fault: str) -> Iterator[None]:
        """One try; an exception in the block is a loss."""
        try:
            yield
        except Exception:
            self.add(fault, traceback.format_exc())
        else:
            self.add(fault)

    def more(self, fault: str, many: int) -> None:
        """So many tries that were survived."""
        self._rows.append(("try", (fault, True, many)))

    def took(self, what: str, seconds: float) -> None:
        """How long something took; the longest of all tries is shown below the table."""
        self._rows.append(("took", (what, seconds)))

    def note(self, what: str) -> None:
        """A line to show below the table."""
        self._rows.append(("note", what))

    def add(self, fault: str, problem: str = "") -> None:
        """A try whose outcome is known; an empty problem means that it was survived."""
        self._rows.append(("try", (fault, not problem, 1)))
        if problem:
            self.lost.append(f"{fault}:\n{problem}")


@pytest.fixture
def tries(request: pytest.FixtureRequest) -> Iterator[Tries]:
    """Counts the tries of a test, which fails at its end if one was lost."""
    made = Tries(request.node.user_properties)
    yield made
    if made.lost:
        pytest.fail("\n".join(made.lost), pytrace=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("faults")
    if marker and marker.args:
        item.user_properties.append(("fault", marker.args[0]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties = list(report.user_properties)
    made = [row for name, row in properties if name == "try"]
    if report.when == "teardown":
        for fault, survived, many in made:
            _count(fault, survived, many)
        for name, row in properties:
            if name == "took":
                what, seconds = row
                _longest[what] = max(seconds, _longest.get(what, 0.0))
            elif name == "note":
                _notes.append(row)
    # A skipped test has tried nothing.
    if report.when == "call" and not report.skipped and not made:
        for fault in [row for name, row in properties if name == "fault"]:
            _count(fault, report.passed)


def _count(fault: str, survived: bool, many: int = 1) -> None:
    row = _rows.setdefault(fault, [0, 0, 0])
    row[0] += many
    row[1 if survived else 2] += many


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not _rows or "faults" not in config.getoption("markexpr", ""):
        return
    notes = [*_notes, *(f"{what}: {seconds:.2f} s at most" for what, seconds in sorted(_longest.items()))]
    terminalreporter.write_line("")
    for line in [*_table("simple").splitlines(), "", *notes]:
        terminalreporter.write_line(line)
    if place := os.environ.get("FAULTS_PAGE"):
        Path(place).write_text(_page(notes, config))


def _table(form: str) -> str:
    total = [sum(column) for column in zip(*_rows.values(), strict=True)]
    lines = [[fault, *row] for fault, row in sorted(_rows.items())] + [["all", *total]]
    return tabulate(lines, headers=["fault", "tries", "survived", "lost"], tablefmt=form)


def _page(notes: list[str], config: pytest.Config) -> str:
    import torch  # which the process that hands out tests needs for nothing else

    from hetfl.experiments.record import device_name

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=config.rootpath, capture_output=True, text=True).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") + " with changes" * bool(git("status", "--porcelain", "-uno"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "dvc", "mlflow", "hypothesis"))
    machine = f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores; Python {platform.python_version()}"
    minutes = (time.monotonic() - _began) / 60
    return f"""# What was broken on purpose

`make test-faults{" QUICK=1" * QUICK}` in {minutes:.0f} minutes on {machine}, {versions};
commit {commit}; {datetime.now(UTC):%Y-%m-%d}. A try is lost where anything differs from what it should be: a
traceback, a half-written file, another number.

{_table("github")}

{chr(10).join(f"- {note}" for note in notes)}
"""
