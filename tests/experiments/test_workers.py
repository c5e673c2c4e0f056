"""Processes that do a task after another."""

from __future__ import annotations

import signal

import pytest

from hetfl.experiments.workers import _ending


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1, "ended with status 1"),
        (255, "ended with status 255"),
        (-35, "ended with status -35"),  # a signal without a name
        (None, "ended with status None"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (128 + signal.SIGTERM, "was ended by SIGTERM"),
        (-signal.SIGKILL, "was killed by the system, probably for memory (fewer compute.jobs need less)"),
    ],
)
def test_how_a_process_ended_is_told_whatever_its_status(code: int | None, told: str) -> None:
    assert _ending(code) == told
