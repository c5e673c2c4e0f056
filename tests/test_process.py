"""Processes end at once, with the status and the output that they would have had."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetfl.spawn import start

SCRIPT = """
import atexit, sys
from hetfl.process import quick
class Kept:
    def __del__(self):
        print("taken apart")
kept = Kept()
atexit.register(print, "closed")
with quick():
    print("done")
    {end}
"""


def ended(end: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT.format(end=end)], stderr=-1, text=True, **options)


@pytest.mark.parametrize(
    ("end", "status"),
    [("pass", 0), ("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(2)", 2), ("sys.exit(130)", 130)],
)
def test_what_is_open_is_closed_and_nothing_is_taken_apart(end: str, status: int) -> None:
    found = ended(end, stdout=-1)
    assert (found.returncode, found.stdout, found.stderr) == (status, "done\nclosed\n", "")


@pytest.mark.parametrize(
    ("end", "said"), [("1 / 0", "ZeroDivisionError: division by zero"), ("sys.exit('why')", "why")]
)
def test_errors_that_python_tells_are_told(end: str, said: str) -> None:
    found = ended(end, stdout=-1)
    assert found.returncode == 1 and found.stderr.splitlines()[-1] == said


def test_an_output_that_cannot_be_written_is_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        found = ended("pass", stdout=full)
    assert found.returncode and "No space left" in found.stderr


def test_a_process_that_is_started_ends_at_once_too() -> None:
    process = start(time.sleep, 0)
    process.join(60)
    assert process.exitcode == 0
    failing = start(sys.exit, 3)
    failing.join(60)
    assert failing.exitcode == 3
