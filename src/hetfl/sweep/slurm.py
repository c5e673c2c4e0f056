"""Cells as jobs of a Slurm cluster, through submitit."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hetfl.errors import HetflError, one_line
from hetfl.experiments.plan import ComputeSettings, Workspace
from hetfl.experiments.schedule import identities, pick_device
from hetfl.sweep.backend import POLL, Watch, do_cell
from hetfl.sweep.choice import Choice
from hetfl.tracking.follow import Subscriber, following

LIMIT = 240
"""Minutes of a job, unless set otherwise; one that needs more is requeued and goes on."""
SPARE = 5
"""Minutes of a job beyond the budget, to stop by itself."""
GONE = 30.0
"""Seconds that the file system may take to show what a job wrote at its end."""


@dataclass(frozen=True)
class Task:
    """What a job does with the cell that it is given. Only this and the cell's path are submitted.

    Attributes:
        root: the checkout, which all nodes see at the same path.
        until: seconds since the epoch.
    """

    root: Path
    until: float

    def __call__(self, path: str) -> str | None:
        """See :func:`do_cell`."""
        return do_cell(path, self.root, self.until)

    def checkpoint(self, path: str) -> Any:
        """What a job that reaches its time limit is requeued with: the same, since its record says where to go on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, path)


class Slurm:
    """A Slurm cluster whose nodes share this checkout's file system.

    Args:
        workspace: the checkout.
        compute: ``jobs`` is the number of jobs at the same time, 0: as many as Slurm allows; ``threads`` is the
            number of CPUs of each.
        parameters: of the jobs, as submitit names them or as sbatch's long options; ``time`` is in minutes.

    Raises:
        HetflError: submitit is not installed, or this is no machine of a cluster.
    """

    def __init__(self, workspace: Workspace, compute: ComputeSettings, parameters: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError as error:
            raise HetflError("submitit: is not installed; pip install 'hetfl[slurm]'") from error
        self._workspace, self._compute = workspace, compute
        self._executor: Any = submitit.SlurmExecutor
        if self._executor.affinity() <= 0:
            raise HetflError("--on slurm: there is no srun on this machine; log in to a node of the cluster")
        self._options = dict(parameters)
        # Seconds are foreseen for the machine that submits; those of the nodes are not known.
        self.device: torch.device = pick_device("cpu" if compute.device == "cpu" else "auto")

    def at_once(self, cells: int) -> int:
        """As set; otherwise Slurm decides, at best all."""
        return self._compute.jobs or cells

    def do(self, order: Sequence[Choice], until: float, subscribers: Sequence[Subscriber]) -> dict[Path, str]:
        """See :class:`hetfl.sweep.backend.Backend`. Interrupted, it takes the jobs that wait or run back."""
        jobs = self._submit(order, until)
        array = str(jobs[0].job_id).partition("_")[0]
        print(f"Slurm job {array}: {len(jobs)} cells; logs are in {self._folder}", flush=True)
        try:
            with following(subscribers) as tell:
                expected = identities([choice.cell for choice in order], self._workspace)
                return self._follow(dict(zip(expected, jobs, strict=True)), array, until, Watch(expected, tell))
        except BaseException:
            _slurm("scancel", array)
            raise

    @property
    def _folder(self) -> Path:
        return self._workspace.scratch / "slurm"

    def _submit(self, order: Sequence[Choice], until: float) -> list[Any]:
        """Submit the cells as one array.

        Raises:
            HetflError: Slurm refuses it.
        """
        left = (until - time.time()) / 60
        wanted = {
            "job_name": "hetfl",
            "time": LIMIT if math.isinf(left) else min(LIMIT, math.ceil(left) + SPARE),
            "cpus_per_task": self._compute.threads,
            **({"array_parallelism": self._compute.jobs} if self._compute.jobs else {}),
            **self._options,
        }
        known = self._executor._valid_parameters()
        more = {key: value for key, value in wanted.items() if key not in known}
        executor = self._executor(self._folder.resolve(), max_num_timeout=10**6)
        try:
            executor.update_parameters(
                **{key: value for key, value in wanted.items() if key in known},
                additional_parameters={"requeue": True, **more},
            )
            task = Task(self._workspace.root.resolve(), until)
            jobs: list[Any] = executor.map_array(task, [choice.cell.path.as_posix() for choice in order])
        except Exception as error:
            raise HetflError(f"Slurm: does not take the jobs ({one_line(error)}); change --slurm") from error
        return jobs

    def _follow(self, jobs: dict[Path, Any], array: str, until: float, watch: Watch) -> dict[Path, str]:
        """Wait for all jobs. Jobs that have not begun in time are taken back."""
        failures: dict[Path, str] = {}
        missing: dict[Path, float] = {}
        taken_back: set[str] | None = None
        while jobs:
            time.sleep(POLL)
            watch.look()
            if time.time() > until and taken_back is None:
                taken_back = _queued(array, "--states=PENDING") or set()
                _slurm("scancel", "--state=PENDING", array)
            queued = _queued(array)
            for folder, job in list(jobs.items()):
                ended = job.paths.result_pickle.exists()
                if not ended and (queued is None or job.job_id in queued):
                    missing.pop(folder, None)
                    continue
                if not ended and job.job_id in (taken_back or ()):
                    del jobs[folder]
                    continue
                since = missing.setdefault(folder, time.time())
                if ended or time.time() - since > GONE:
                    del jobs[folder]
                    if reason := _reason(job):
                        failures[folder] = reason
        watch.look()
        return failures


def _reason(job: Any) -> str | None:
    """What went wrong with a job that has ended, in one line, or None."""
    if not job.paths.result_pickle.exists():
        return f"Slurm ended its job {job.job_id}; its log is {job.paths.stderr}"
    error = job.exception()
    if error is not None:
        return f"its job {job.job_id} failed; its log is {job.paths.stderr}"
    reason: str | None = job.result()
    return reason


def _queued(array: str, *options: str) -> set[str] | None:
    """The jobs of an array that wait or run, or as squeue's options narrow them; None if Slurm does not answer."""
    listed = _slurm("squeue", "--noheader", "--array", "--jobs", array, "--format", "%i", *options)
    if listed.returncode == 0:
        return set(listed.stdout.split())
    return set() if "Invalid job id" in listed.stderr else None


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
