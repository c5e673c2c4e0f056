"""Kill -9 at random moments of a pipeline: records, tables and MLflow's runs are always the same in the end."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from dvc_project import PARAMS, Project
from fault_table import QUICK, Tries
from sweep_project import results

STAGE = "kills"
"""The table, and with it all stages before."""
ROUNDS = 4
MADE = ("data", "partitions", "weights", "runs", "evaluations", "tables", "mlruns", ".hetfl", "dvc.lock")
"""What the stages make."""
ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {"settings": {"optimiser": "adam", "lr": 0.004, "batch_size": 8, "keep_optimiser": True}},
    "fedprox": {"settings": {"mu": 0.1}},
    "scaffold": {"settings": {"momentum": 0.0}},
    "fedbabu": {"settings": {"finetune_epochs": 1}},
    "fedrep": {},
    "fedproto": {"settings": {"embedding": 16, "flat": None}},
    "fedtgp": {"settings": {"embedding": 16}},
    "fedhpl": {"models": "prompted", "settings": {"share": "prompts"}},
}
EXPERIMENT = {**PARAMS["experiments"]["kills"], "defaults": {"rounds": ROUNDS}, "rows": ROWS}
# Who is killed, and the cells that train at once. A lone dvc leaves its stage, a lone trainer its workers behind.
VICTIMS = [("all", 1), ("all", 2), ("trainer", 1), ("all", 1), ("dvc", 1), ("all", 1), ("trainer", 2), ("dvc", 2)]
KILLS = 3 if QUICK else int(os.environ.get("KILLS", "20"))
LANES = 1 if QUICK else 2
TIMEOUT = 900.0


@dataclass
class Kill:
    """One kill, the stage that it met, and the rounds that it left in the records."""

    number: int
    victim: str
    jobs: int
    after: float
    stage: str
    rounds: dict[str, int]
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"kill {self.number:3} {self.victim:7} jobs {self.jobs}  after {self.after:5.1f} s  in {self.stage:18} "
            f"rounds {' '.join(str(self.rounds.get(row, '-')) for row in ROWS)}  ({self.seconds:.0f} s)"
        )


class Pipeline(Project):
    """The project while it is made, killed and made again."""

    def copy(self, root: Path) -> Pipeline:
        """The same project elsewhere, nothing made."""
        shutil.copytree(self.root, root, ignore=lambda folder, _: MADE if Path(folder) == self.root else ())
        return Pipeline(root, self.params)

    def wipe(self) -> None:
        """Remove all that stages make, and DVC's cache."""
        for name in (*MADE, ".dvc/cache", ".dvc/tmp", "log.txt"):
            path = self.root / name
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)

    def start(self) -> subprocess.Popen[bytes]:
        """``dvc repro`` in a process group of its own."""
        with (self.root / "log.txt").open("ab") as log:
            return subprocess.Popen(
                ["dvc", "repro", STAGE],
                cwd=self.root,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def finish(self, dvc: subprocess.Popen[bytes]) -> None:
        assert dvc.wait(TIMEOUT) == 0, (self.root / "log.txt").read_text()[-3000:]

    def stage(self) -> str:
        """The stage that DVC began last."""
        log = self.root / "log.txt"
        begun = re.findall(r"Running stage '(.*)'", log.read_text()) if log.exists() else []
        return begun[-1] if begun else "-"

    def rounds(self) -> dict[str, int]:
        """The lines of each record."""
        files = self.root.glob("runs/kills/*/*/*/rounds.jsonl")
        return {path.parts[-3]: path.read_bytes().count(b"\n") - 1 for path in files}

    def content(self) -> dict[str, Any]:
        """All there is in the end besides when and how fast it was made."""
        found: dict[str, Any] = {"records": results(self.root)}
        for path in sorted(self.root.glob("evaluations/kills/*/*/*/*")):
            found[path.relative_to(self.root).as_posix()] = path.read_bytes()
        table = json.loads((self.root / "tables/kills/kills.json").read_text())
        shown = ("row", "column", "value", "std", "best", "last", "rounds", "status", "seeds")
        found["table"] = [{name: cell.get(name) for name in shown} for cell in table["cells"]]
        with closing(sqlite3.connect(self.root / "mlruns/mlflow.db")) as connection:
            active = "FROM runs WHERE lifecycle_stage = 'active'"
            found["runs"] = sorted(connection.execute(f"SELECT name, status {active}"))
            metrics = connection.execute(
                "SELECT runs.name, key, step, value FROM metrics JOIN runs USING (run_uuid) "
                "WHERE lifecycle_stage = 'active' AND key NOT LIKE 'seconds%' AND key NOT LIKE 'memory%'"
            )
            found["metrics"] = sorted(metrics)
        return found


def members(group: int) -> list[psutil.Process]:
    """The living processes of a group."""

    def belongs(process: psutil.Process) -> bool:
        try:
            return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False

    return [process for process in psutil.process_iter() if belongs(process)]


def trainers(group: int) -> list[psutil.Process]:
    """The training stage itself: no shell around it, no worker below it."""
    running = [process for process in members(group) if "pipeline/train.py" in process.cmdline()]
    return [process for process in running if process.name().startswith("python")]


def kill(victim: str, dvc: subprocess.Popen[bytes]) -> None:
    if victim == "all":
        os.killpg(dvc.pid, signal.SIGKILL)
    elif victim == "dvc":
        dvc.kill()
    else:
        for process in trainers(dvc.pid):
            process.kill()
    dvc.wait(TIMEOUT)


def bury(group: int) -> None:
    """End what still lives of a group, and see it gone."""
    if members(group):
        os.killpg(group, signal.SIGKILL)
    psutil.wait_procs(members(group), timeout=10)
    assert not members(group)


def kill_and_continue(project: Pipeline, number: int, span: float, reference: dict[str, Any]) -> Kill:
    """One iteration: begin, kill, continue, compare."""
    began = time.monotonic()
    victim, jobs = VICTIMS[number % len(VICTIMS)]
    project.wipe()
    project.compute(jobs)
    after = random.Random(number).uniform(0, span)
    dvc = project.start()
    again = None
    try:
        try:
            dvc.wait(after)
        except subprocess.TimeoutExpired:
            kill(victim, dvc)
        killed = Kill(number, victim, jobs, after, project.stage(), project.rounds())
        project.compute(1)
        again = project.start()
        project.finish(again)
    finally:
        for process in filter(None, (dvc, again)):
            bury(process.pid)
    killed.seconds = time.monotonic() - began
    print(killed, flush=True)
    found = project.content()
    for name, expected in reference.items():
        assert found[name] == expected, f"{killed}: {name}"
    assert found.keys() == reference.keys()
    assert not any((project.root / ".hetfl" / "resume").glob("*")), killed
    return killed


@pytest.mark.slow
@pytest.mark.faults
def test_kills_of_any_stage_leave_identical_results(
    tmp_path: Path, tries: Tries, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Pipeline.make(tmp_path / "reference", {**PARAMS, "experiments": {"kills": EXPERIMENT}})
    dvc, began = project.start(), time.monotonic()
    try:
        project.finish(dvc)
    finally:
        bury(dvc.pid)
    span, reference = time.monotonic() - began, project.content()
    assert len(reference["records"]) == len(reference["runs"]) == len(ROWS)
    kills: list[Kill] = []

    def lane(first: int) -> None:
        own = project.copy(tmp_path / f"lane-{first}")
        for number in range(first, KILLS, LANES):
            with tries.one("kill -9 of any stage"):
                kills.append(kill_and_continue(own, number, span, reference))

    with capsys.disabled(), ThreadPoolExecutor(LANES) as pool:
        print(f"\nreference: {span:.1f} s, {len(reference['metrics'])} metrics in MLflow")
        list(pool.map(lane, range(LANES)))
    # Without this the test could pass by missing every run.
    interrupted = [one for one in kills if any(one.rounds.get(row, -1) < ROUNDS for row in ROWS)]
    assert len(interrupted) >= (1 if QUICK else len(kills) / 2)
