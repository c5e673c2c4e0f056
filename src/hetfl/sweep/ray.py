"""Cells as tasks of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from joblib import cpu_count

from hetfl.errors import one_line
from hetfl.experiments.plan import ComputeSettings, Workspace
from hetfl.experiments.schedule import identities, pick_device
from hetfl.sweep.backend import POLL, Watch, do_cell
from hetfl.sweep.choice import Choice
from hetfl.tracking.follow import Subscriber, following
from hetfl.training.ray import cluster, installed

RETRIES = 10
"""How often a cell goes on after its worker or its node died."""


class Ray:
    """A Ray cluster whose nodes share this checkout's file system, or one that is started on this machine.

    Args:
        workspace: the checkout.
        compute: ``jobs`` is the number of tasks at the same time, 0: as many as Ray has room for; ``threads`` is the
            number of CPUs of each. A task also takes a GPU where the cluster has some.
        address: of an existing cluster, e.g. ``auto``, ``10.0.0.1:6379`` or ``ray://head:10001``; None: start one.

    Raises:
        HetflError: Ray is not installed.
    """

    def __init__(self, workspace: Workspace, compute: ComputeSettings, address: str | None = None) -> None:
        self._ray = installed()
        self._workspace, self._compute, self._address = workspace, compute, address
        self.device: torch.device = pick_device("cpu" if compute.device == "cpu" else "auto")

    def at_once(self, cells: int) -> int:
        """As set; otherwise as on this machine's CPUs, or one where the engine has processes of its own."""
        many = 1 if self._compute.own_processes else max(1, cpu_count() // self._compute.threads)
        return min(cells, self._compute.jobs or many)

    def do(self, order: Sequence[Choice], until: float, subscribers: Sequence[Subscriber]) -> dict[Path, str]:
        """See :class:`hetfl.sweep.backend.Backend`. Interrupted, it stops the tasks."""
        cluster(self._address, setting="--address")
        try:
            with following(subscribers) as tell:
                expected = identities([choice.cell for choice in order], self._workspace)
                return self._follow(order, until, Watch(expected, tell))
        finally:
            self._ray.shutdown()  # of an existing cluster, this only ends the connection and its tasks

    def _follow(self, order: Sequence[Choice], until: float, watch: Watch) -> dict[Path, str]:
        """Submit tasks, no more at once than ``jobs``, and wait for them."""
        alone = self._compute.own_processes
        gpus = not alone and self._compute.device != "cpu" and self._ray.cluster_resources().get("GPU", 0) > 0
        # A task leaves CPUs and GPUs to processes that its engine has of its own, and is the only one, so that all of
        # them fit.
        task = self._ray.remote(do_cell).options(
            num_cpus=0 if alone else self._compute.threads, num_gpus=int(gpus), max_retries=RETRIES, name="hetfl"
        )
        most = self._compute.jobs or (1 if alone else len(order))
        root, waiting, running = self._workspace.root.resolve(), list(order), dict[Any, Path]()
        failures: dict[Path, str] = {}
        while running or waiting:
            while waiting and time.time() < until and len(running) < most:
                path = waiting.pop(0).cell.path
                running[task.remote(path.as_posix(), root, until)] = self._workspace.runs / path
            if not running:
                break
            ended, _ = self._ray.wait(list(running), num_returns=len(running), timeout=POLL)
            for task_id in ended:
                folder = running.pop(task_id)
                reason = self._result(task_id)
                if reason:
                    failures[folder] = reason
            watch.look()
        return failures

    def _result(self, task_id: Any) -> str | None:
        try:
            reason: str | None = self._ray.get(task_id)
        except Exception as error:  # its node died too often, or does not have hetfl
            reason = one_line(error)
        return reason
