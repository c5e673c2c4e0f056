"""Kill -9 at random moments of training: the record that comes out in the end is always the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from hetfl import stages
from hetfl.experiments.plan import load_params

REPOSITORY = Path(__file__).parents[2]
STAGE = "train-kills"
ROUNDS = 6
CELLS = ("fedavg-s0", "fedavg-s1", "fedhpl-s0", "fedhpl-s1")
PARAMS: dict[str, Any] = {
    "data": {"digits": {"public": 1000, "test": 300}},
    "partitions": {"digits": {"seeds": [0, 1], "splits": {"iid": {"scheme": "iid", "clients": 3}}}},
    "pretrain": {
        "digits": {
            "dataset": "digits",
            "models": ["digits_vit_base"],
            "epochs": 5,
            "batch_size": 32,
            "lr": 0.003,
            "weight_decay": 0.05,
        }
    },
    "models": {"kills": ["digits_vit_base"]},
    "experiments": {
        "kills": {
            "title": "Kills",
            "paper": "fedhpl",
            "dataset": "digits",
            "models": "kills",
            "splits": {"iid": "IID"},
            "seeds": [0, 1],
            "defaults": {"rounds": ROUNDS, "embedding": 16},
            "rows": {
                "fedavg": {
                    "method": "fedavg",
                    "title": "FedAvg",
                    "settings": {"optimiser": "adam", "lr": 0.004, "batch_size": 8, "keep_optimiser": True},
                },
                "fedhpl": {"method": "fedhpl", "title": "FedHPL +P", "settings": {"share": "prompts"}},
            },
        }
    },
}
# Who is killed, and the cells that train at once. A lone dvc leaves its trainer, a lone trainer its workers behind.
KILLS = 2 * [
    ("all", 1),
    ("all", 2),
    ("trainer", 1),
    ("all", 1),
    ("dvc", 1),
    ("all", 1),
    ("trainer", 2),
    ("all", 1),
    ("dvc", 2),
    ("all", 1),
]
LANES = 2
TIMEOUT = 300.0


@dataclass
class Kill:
    """One kill and what it left: rounds in the record and the last resume point of every cell."""

    number: int
    victim: str
    jobs: int
    after: float
    rounds: dict[str, int]
    resume: dict[str, int]
    seconds: float = 0.0

    def __str__(self) -> str:
        def row(numbers: dict[str, int]) -> str:
            return " ".join(
                str(numbers.get(cell, "-")) for cell in ("fedavg-s0", "fedavg-s1", "fedhpl-s0", "fedhpl-s1")
            )

        return (
            f"kill {self.number:2} {self.victim:7} jobs {self.jobs}  after {self.after:5.2f} s  "
            f"rounds {row(self.rounds)}  resume points {row(self.resume)}  ({self.seconds:.0f} s)"
        )


class Project:
    """A checkout with one small experiment."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def make(cls, root: Path) -> Project:
        """Build it; it has a copy of the code, so that edits during the test cannot make other runs of these."""
        project = cls(root)
        for name in ("pipeline", "src"):
            shutil.copytree(
                REPOSITORY / name,
                root / name,
                # The papers' experiments stay behind.
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "params.yaml", "dvc.yaml"),
            )
        shutil.copy(REPOSITORY / "versions.yaml", root)
        project.compute(1)
        stages.write(load_params(root / "params.yaml"), root)
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        subprocess.run(["dvc", "init", "--quiet"], cwd=root, check=True, env=project.environment)
        return project

    def copy(self, root: Path) -> Project:
        """The same project elsewhere, nothing trained and nothing mirrored."""
        shutil.copytree(self.root, root, ignore=shutil.ignore_patterns("mlruns"))
        copied = Project(root)
        copied.wipe()
        return copied

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.root / "src"),
            "DVC_NO_ANALYTICS": "1",
        }

    def compute(self, jobs: int) -> None:
        """Set how many cells train at once, which is no part of a run's identity."""
        params = {"compute": {"device": "cpu", "jobs": jobs}, **PARAMS}
        (self.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))

    def wipe(self) -> None:
        shutil.rmtree(self.root / "runs", ignore_errors=True)
        shutil.rmtree(self.root / ".hetfl", ignore_errors=True)

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

    def await_training(self, dvc: subprocess.Popen[bytes]) -> None:
        """Return as soon as the first cell has begun."""
        deadline = time.monotonic() + TIMEOUT
        while not any(self.root.glob("runs/kills/*/*/*/run.json")):
            assert dvc.poll() is None and time.monotonic() < deadline, (self.root / "log.txt").read_text()[-3000:]
            time.sleep(0.02)

    def cells(self) -> dict[str, Path]:
        return {f"{p.parent.name}-{p.name.split('-')[1]}": p for p in sorted(self.root.glob("runs/kills/*/*/*"))}

    def lines(self) -> dict[str, list[dict[str, Any]]]:
        """The complete lines of every cell's ``rounds.jsonl``, with their times."""
        return {
            name: [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            for name, folder in self.cells().items()
            if (path := folder / "rounds.jsonl").exists()
        }

    def resume_points(self, identities: dict[str, str]) -> dict[str, int]:
        """The newest resume point of every cell that has one."""
        resume = self.root / ".hetfl" / "resume"
        folders = {name: next(resume.glob(f"*/{identity}"), resume / name) for name, identity in identities.items()}
        rounds = {name: [int(p.name.split("-")[1]) for p in f.glob("round-*")] for name, f in folders.items()}
        return {name: max(numbers) for name, numbers in rounds.items() if numbers}

    def record(self) -> dict[str, dict[str, Any]]:
        """All there is of every cell besides when and how fast it ran."""
        record = {}
        for name, folder in self.cells().items():
            run = json.loads((folder / "run.json").read_text())
            record[name] = {
                "run": {key: value for key, value in run.items() if key not in ("started", "finished")},
                "rounds": [
                    {key: value for key, value in line.items() if key not in ("seconds", "peak_memory")}
                    for line in self.lines()[name]
                ],
                "model": (folder / "model.safetensors").read_bytes(),
                "files": sorted(path.name for path in folder.iterdir()),
            }
        return record


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


def kill_and_continue(project: Project, number: int, span: float, reference: dict[str, dict[str, Any]]) -> Kill:
    """One iteration: train, kill, continue, compare."""
    began = time.monotonic()
    victim, jobs = KILLS[number]
    project.wipe()
    project.compute(jobs)
    after = random.Random(number).uniform(0, span / jobs)
    dvc = project.start()
    again = None
    try:
        project.await_training(dvc)
        time.sleep(after)
        kill(victim, dvc)
        left = project.lines()
        resume = project.resume_points({name: cell["run"]["fingerprint"] for name, cell in reference.items()})
        rounds = {name: lines[-1]["round"] if lines else 0 for name, lines in left.items()}
        killed = Kill(number, victim, jobs, after, rounds, resume)
        project.compute(1)
        again = project.start()
        project.finish(again)
    finally:
        for process in filter(None, (dvc, again)):
            bury(process.pid)
    killed.seconds = time.monotonic() - began
    print(killed, flush=True)
    assert project.record() == reference, killed
    if victim == "all":
        # Equal times say that these rounds were not played a second time.
        for name, round in resume.items():
            assert project.lines()[name][: round + 1] == left[name][: round + 1], killed
    assert not any((project.root / ".hetfl" / "resume").glob("*")), killed
    return killed


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.make(tmp_path_factory.mktemp("reference"))


@pytest.mark.slow
def test_twenty_kills_leave_twenty_identical_records(project: Project, tmp_path: Path) -> None:
    dvc = project.start()
    try:
        project.await_training(dvc)
        began = time.time()
        project.finish(dvc)
    finally:
        bury(dvc.pid)
    reference = project.record()
    assert tuple(reference) == CELLS
    assert all(len(cell["rounds"]) == 1 + ROUNDS for cell in reference.values())
    span = max((folder / "run.json").stat().st_mtime for folder in project.cells().values()) - began
    print(f"\nreference: {span:.2f} s of training")

    def lane(first: int) -> list[Kill]:
        own = project.copy(tmp_path / f"lane-{first}")
        return [kill_and_continue(own, number, span, reference) for number in range(first, len(KILLS), LANES)]

    with ThreadPoolExecutor(LANES) as pool:
        kills = [killed for lane_kills in pool.map(lane, range(LANES)) for killed in lane_kills]

    # Without these the test could pass by missing every run.
    interrupted = [k for k in kills if any(k.rounds.get(name, 0) < ROUNDS for name in reference)]
    resumed = [k for k in kills if k.victim == "all" and any(0 < round < ROUNDS for round in k.resume.values())]
    assert len(kills) == 20
    assert len(interrupted) >= 15, f"{len(interrupted)} of 20 kills met an unfinished run"
    assert len(resumed) >= 5, f"{len(resumed)} of 20 kills left a run to be continued"
