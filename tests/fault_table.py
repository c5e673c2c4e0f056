"""The table of `make test-faults`: what was broken on purpose, how often, and what came of it.

A test that is marked ``faults("name of the fault")`` is one try. A test that makes many uses the fixture ``tries``::

    @pytest.mark.faults
    def test_kills(tries):
        for number in range(100):
            with tries.one("kill -9 in training"):
                ...  # an exception is a loss; the next try follows all the same
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tabulate import tabulate

QUICK = bool(os.environ.get("QUICK"))
"""Whether to try a few of each fault, for a table within 5 minutes."""

_rows: dict[str, list[int]] = {}


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
    # A skipped test has tried nothing.
    if report.when == "call" and not report.skipped and not made:
        for fault in [row for name, row in properties if name == "fault"]:
            _count(fault, report.passed)


def _count(fault: str, survived: bool, many: int = 1) -> None:
    row = _rows.setdefault(fault, [0, 0, 0])
    row[0] += many
    row[1 if survived else 2] += many


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _rows and "faults" in config.getoption("markexpr", ""):
        total = [sum(column) for column in zip(*_rows.values(), strict=True)]
        lines = [[fault, *row] for fault, row in _rows.items()] + [["all", *total]]
        terminalreporter.write_line("")
        terminalreporter.write_line(tabulate(lines, headers=["fault", "tries", "survived", "lost"]))
