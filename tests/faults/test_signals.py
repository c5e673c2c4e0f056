"""Signals to a training and to its processes: how it ends, what it says, and what the next command makes of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import sweep_project as project
from fault_table import QUICK, Tries

pytestmark = [pytest.mark.faults, pytest.mark.slow]

TIMEOUT = 300.0
ROUNDS = 30 if QUICK else 60
STATUS = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}
SAYS = {
    signal.SIGTERM: "ended by SIGTERM; the same command continues from the last completed round",
    signal.SIGHUP: "ended by SIGHUP; the same command continues from the last completed round",
    signal.SIGINT: "interrupted; the same command continues from the last completed round",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project.make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def reference(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the cells give without a break."""
    return project.trained(made, tmp_path_factory.mktemp("reference") / "project", rounds=ROUNDS, seeds=1)


class Training:
    """``hetfl train`` of a copy of the project in a session of its own."""

    def __init__(self, made: Path, root: Path, jobs: int) -> None:
        self.root = project.copy(made, root, rounds=ROUNDS, seeds=1, jobs=jobs)
        self.environment = project.environment(root.parent / "locks")
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        command = [project.HETFL, "train", project.NAME]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # A shell lets what it starts in the background ignore Ctrl-C; this test may be in the background.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(
            command, cwd=self.root, env=self.environment, start_new_session=True, preexec_fn=heed, **pipes
        )

    def await_rounds(self, cells: int, rounds: int = 3) -> None:
        deadline = time.monotonic() + TIMEOUT
        while sum(last >= rounds for last in project.last_rounds(self.root).values()) < cells:
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.communicate()
            time.sleep(0.02)

    def members(self) -> list[psutil.Process]:
        """The processes of its session that live."""
        session = self.process.pid
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def workers(self) -> list[psutil.Process]:
        """The processes that train, of which each has begun a round."""
        others = [one for one in self.members() if one.pid != self.process.pid]
        return [one for one in others if one.nice() == os.nice(0) and _spawned(one)]

    def close(self) -> None:
        for process in self.members():
            process.kill()
        self.process.wait(TIMEOUT)


def _spawned(process: psutil.Process) -> bool:
    return any("spawn_main" in word for word in process.cmdline())


@pytest.fixture
def begun(made: Path, tmp_path: Path) -> Iterator[Any]:
    """Begins a training with so many cells at once."""
    every: list[Training] = []

    def begin(jobs: int) -> Training:
        every.append(Training(made, tmp_path / f"project-{len(every)}", jobs))
        every[-1].await_rounds(jobs)
        return every[-1]

    yield begin
    for training in every:
        training.close()


CASES = [(number, jobs, group) for jobs in (1, 2) for number in STATUS for group in (False, True)]


@pytest.mark.parametrize(("number", "jobs", "group"), CASES[::5] if QUICK else CASES)
def test_a_signal_ends_the_training_and_its_processes_in_one_line(
    begun: Any, reference: dict[str, Any], tries: Tries, number: signal.Signals, jobs: int, group: bool
) -> None:
    """A terminal and a cluster tell all processes of a group, ``kill`` only the first."""
    training = begun(jobs)
    with tries.one(f"{number.name} to {'all processes' if group else 'the command'}"):
        began = time.monotonic()
        (os.killpg if group else os.kill)(training.process.pid, number)
        out, err = training.process.communicate(timeout=TIMEOUT)
        took = time.monotonic() - began
        print(f"\n{number.name}, {jobs} at once, {'group' if group else 'command'}: {took:.2f} s; {err!r}")
        assert training.process.returncode == STATUS[number], (out, err)
        assert SAYS[number] in err.splitlines() and "Traceback" not in err + out, err
        tries.took(f"{number.name} until the command has ended", took)
        assert took < 2 * slowness(), f"{took:.1f} s"
        time.sleep(0.2)
        assert not training.members()
        # What was completed stays, and the rest gives the same numbers.
        done = subprocess.run(training.process.args, cwd=training.root, env=training.environment, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert project.results(training.root) == reference


@pytest.mark.parametrize("number", [signal.SIGKILL] if QUICK else [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_worker_that_the_system_ends_is_named_and_the_others_go_on(
    begun: Any, reference: dict[str, Any], tries: Tries, number: signal.Signals
) -> None:
    training = begun(2)
    with tries.one("a worker is killed"):
        victim = training.workers()[0]
        victim.send_signal(number)
        out, err = training.process.communicate(timeout=TIMEOUT)
        print(f"\n{err}")
        assert training.process.returncode == 2
        lines = [line for line in err.splitlines() if line.startswith("error:")]
        assert len(lines) == 1 and "Traceback" not in err, err
        # On a busy machine MLflow says that it is waited for, and in a long folder that training is not shown.
        assert len([line for line in err.splitlines() if "MLflow" not in line and "not shown" not in line]) <= 2
        assert re.match(r"error: runs/small/fed\w+/fed\w+/iid-s0: its process was ", lines[0])
        assert "the same command continues" in lines[0]
        assert len(project.results(training.root)) == 1
        done = subprocess.run(training.process.args, cwd=training.root, env=training.environment, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert project.results(training.root) == reference


def slowness() -> float:
    """How many times as long as on an idle machine a process has to wait for a processor."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
