"""A sweep through Ray: a worker that is killed is replaced, and its cell goes on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil
import pytest
import sweep_project as project

TIMEOUT = 300.0
ROUNDS = 30


@pytest.mark.slow
def test_a_killed_worker_costs_a_round_at_most(made: Path, tmp_path: Path) -> None:
    root = project.copy(made, tmp_path / "project", rounds=ROUNDS, seeds=1)
    sweep = subprocess.Popen(
        [project.HETFL, "sweep", project.NAME, "--on", "ray"],
        cwd=root,
        # Ray's sockets need a short folder.
        env={**project.environment(tmp_path / "locks"), "RAY_TMPDIR": "/tmp"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + TIMEOUT
        while max(project.last_rounds(root).values(), default=0) < 5:
            assert sweep.poll() is None and time.monotonic() < deadline, sweep.communicate()[0]
            time.sleep(0.05)
        workers = [one for one in psutil.Process(sweep.pid).children(recursive=True) if "ray::hetfl" in title(one)]
        assert workers
        before = project.last_rounds(root)
        workers[0].kill()
        output, _ = sweep.communicate(timeout=TIMEOUT)
    finally:
        for process in [*psutil.Process(sweep.pid).children(recursive=True)] if sweep.poll() is None else []:
            process.kill()
        sweep.kill()
    print(output)
    assert sweep.returncode == 0, output
    assert 5 <= max(before.values()) < ROUNDS
    assert project.results(root) == project.trained(made, tmp_path / "reference", rounds=ROUNDS, seeds=1)


def title(process: psutil.Process) -> str:
    """What a process calls itself; Ray's workers name their task."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
