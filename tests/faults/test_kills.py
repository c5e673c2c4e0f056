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
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
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
SETTINGS = {
    **PARAMS,
    "pretrain": {"digits": {**PARAMS["pretrain"]["digits"], "epochs": 1}},
    "experiments": {"kills": EXPERIMENT},
}
# Who is killed, and the cells that train at once. A lone dvc leaves its stage, a lone trainer its workers behind.
VICTIMS = [("all", 1), ("all", 2), ("trainer", 1), ("all", 1), ("dvc", 1), ("all", 1), ("trainer", 2), ("dvc", 2)]
KILLS = int(os.environ.get("KILLS", "3" if QUICK else "100"))
IN_A_ROW = 5
"""Kills of one project before it is made to its end."""
AT_ONCE = 1 if QUICK else 2
TIMEOUT = 900.0


@dataclass
class Kill:
    """One kill, the stage that it met, the rounds that it left in the records, and whether it broke DVC's locks."""

    number: int
    victim: str
    jobs: int
    after: float
    stage: str
    rounds: dict[str, int]
    broken_locks: bool

    def __str__(self) -> str:
        return (
            f"kill {self.number:3} {self.victim:7} jobs {self.jobs}  after {self.after:5.1f} s  in {self.stage:18} "
            f"rounds {' '.join(str(self.rounds.get(row, '-')) for row in ROWS)}"
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

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """``dvc repro`` in a process group of its own."""
        with (self.root / "log.txt").open("ab") as log:
            return subprocess.Popen(
                ["dvc", "repro", STAGE],
                cwd=self.root,
                env=self.environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def finish(self, dvc: subprocess.Popen[bytes]) -> None:
        assert dvc.wait(TIMEOUT) == 0, (self.root / "log.txt").read_text()[-3000:]

    def mend_locks(self) -> bool:
        """Delete DVC's file of locks if DVC was killed while it wrote it, as ``hetfl doctor`` says."""
        locks = self.root / ".dvc" / "tmp" / "rwlock"
        try:
            json.loads(locks.read_text())
        except FileNotFoundError:
            return False
        except ValueError:
            locks.unlink()
            return True
        return False

    def run(self) -> None:
        """Make all of it."""
        dvc = self.start()
        try:
            self.finish(dvc)
        finally:
            bury(dvc.pid)

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

    def compare(self, reference: dict[str, Any]) -> None:
        """See that all there is in the end is what it is without kills, and nothing else."""
        found = self.content()
        for name, expected in reference.items():
            assert found[name] == expected, name
        assert found.keys() == reference.keys()
        assert not any((self.root / ".hetfl" / "resume").glob("*"))

    def tables(self) -> dict[str, bytes]:
        """The files of the table."""
        folder = self.root / "tables" / "kills"
        return {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }


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


@dataclass
class Made:
    """A project that was made without a break.

    Attributes:
        span: seconds that it took.
    """

    project: Pipeline
    span: float
    content: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("kills") / "reference"
    project = Pipeline.make(root, SETTINGS)
    began = time.monotonic()
    project.run()
    return Made(project, time.monotonic() - began, project.content())


def kill_in_a_row(project: Pipeline, numbers: Sequence[int], made: Made) -> Iterator[Kill]:
    """Make a project from nothing, kill that so often, then let it end, and compare.

    After each kill all records that are finished must be those of the reference. A project that ends before it was
    killed is compared, too, and the next one begins.
    """
    project.wipe()
    for number in numbers:
        victim, jobs = VICTIMS[number % len(VICTIMS)]
        project.compute(jobs)
        after = random.Random(number).uniform(0, made.span / 2)
        dvc = project.start()
        try:
            dvc.wait(after)
        except subprocess.TimeoutExpired:
            kill(victim, dvc)
        else:
            project.finish(dvc)
            project.compare(made.content)
            project.wipe()
            dvc = project.start()
            time.sleep(after / 2)
            kill(victim, dvc)
        finally:
            bury(dvc.pid)
        for name, record in results(project.root).items():
            assert record == made.content["records"][name], name
        yield Kill(number, victim, jobs, after, project.stage(), project.rounds(), project.mend_locks())
    project.compute(1)
    project.run()
    project.compare(made.content)


@pytest.mark.slow
@pytest.mark.faults
def test_kills_of_any_stage_leave_identical_results(
    made: Made, tmp_path: Path, tries: Tries, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(made.content["records"]) == len(made.content["runs"]) == len(ROWS)
    every: list[Kill] = []
    rows = [range(KILLS)[first : first + IN_A_ROW] for first in range(0, KILLS, IN_A_ROW)]

    def some_rows(first: int) -> None:
        own = made.project.copy(tmp_path / f"project-{first}")
        for numbers in rows[first::AT_ONCE]:
            problem, began = "", time.monotonic()
            try:
                for one in kill_in_a_row(own, numbers, made):
                    every.append(one)
                    print(one, flush=True)
                print(
                    f"kills {numbers[0]} to {numbers[-1]}: all as without ({time.monotonic() - began:.0f} s)",
                    flush=True,
                )
            except Exception:
                problem = traceback.format_exc()
            for _ in numbers:  # which of them it was is not known
                tries.add("kill -9 of any stage", problem)

    with capsys.disabled(), ThreadPoolExecutor(AT_ONCE) as pool:
        print(f"\nwithout kills: {made.span:.1f} s, {len(made.content['metrics'])} metrics in MLflow")
        list(pool.map(some_rows, range(AT_ONCE)))
        print(
            "kills in:", *(f"{stage} {many}" for stage, many in Counter(one.stage for one in every).items()), sep="  "
        )
    if broken := sum(one.broken_locks for one in every):
        tries.note(
            f"kill -9: DVC's own .dvc/tmp/rwlock was half written {broken} times, and deleted as `hetfl doctor` says"
        )
    # Without this the test could pass by missing every run.
    interrupted = [one for one in every if any(one.rounds.get(row, -1) < ROUNDS for row in ROWS)]
    assert len(interrupted) >= (1 if QUICK else len(every) / 2)


DYING = """
import os

_replace, _left = os.replace, [int(os.environ.get("FILES", 2**30))]


def replace(source, target, **more):
    if "/tables/" in os.fspath(target) and "pipeline/" in " ".join(sys.orig_argv):
        if not _left[0]:
            os.kill(os.getpid(), 9)
        _left[0] -= 1
    _replace(source, target, **more)


os.replace = replace
"""
"""A start-up module with which a stage is killed just before a file of a table takes its place."""


@pytest.mark.slow
@pytest.mark.faults
def test_a_kill_between_two_files_of_a_table_is_mended_by_the_next_command(
    made: Made, tmp_path: Path, tries: Tries
) -> None:
    """Each file is replaced atomically, not all of them at once. DVC has no lock entry then, and makes all again."""
    project = Pipeline(
        tmp_path / "project", {**SETTINGS, "experiments": {"kills": {**EXPERIMENT, "title": "Another"}}}
    )
    shutil.copytree(made.project.root, project.root, symlinks=True)
    folder, before = project.root / "tables" / "kills", made.project.tables()
    project.compute(1)
    project.run()
    whole = project.tables()
    changed = {name for name in whole if whole[name] != before.get(name)}
    assert len(changed) > 1
    (tmp_path / "dying").mkdir()
    (tmp_path / "dying" / "sitecustomize.py").write_text(f"import sys{DYING}")
    for many in range(1, 2 if QUICK else len(whole)):
        with tries.one("kill -9 between two files of a stage"):
            shutil.rmtree(folder)
            shutil.copytree(made.project.root / "tables" / "kills", folder)
            shutil.copy(made.project.root / "dvc.lock", project.root)
            killed = project.start(
                FILES=str(many), PYTHONPATH=f"{tmp_path / 'dying'}{os.pathsep}{project.environment['PYTHONPATH']}"
            )
            assert killed.wait(TIMEOUT) != 0
            bury(killed.pid)
            assert project.tables() != whole
            project.run()
            assert project.tables() == whole
