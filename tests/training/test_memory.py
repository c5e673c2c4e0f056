"""Free memory is what the process may have of it: of the machine's, and of a container's or a job's limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hetfl.training import memory

CPU = torch.device("cpu")
MIB = 2**20
UNLIMITED = 9223372036854771712
"""What a group without a limit has in the first version of control groups."""

GROUPS = {
    # A cluster limits a job, and its steps below it have no limit of their own.
    "job": ("0::/slurm/job_7/step_0", 2, {"slurm/job_7/step_0": ("max", 90, 0), "slurm/job_7": (64 * MIB, 20, 4)}),
    # A container sees its own group as the root, and may be told the path that the machine knows it by.
    "container": ("0::/", 2, {"": (64 * MIB, 20, 4)}),
    "container of the first version": ("5:cpu:/x\n4:memory:/docker/f00", 1, {"": (64 * MIB, 20, 4)}),
    "lowest of two": (
        "4:cpu,memory:/a/b",
        1,
        {"a/b": (64 * MIB, 20, 4), "a": (80 * MIB, 20, 0), "": (UNLIMITED, 0, 0)},
    ),
}


@pytest.mark.parametrize("groups", GROUPS)
def test_memory_is_that_of_the_group(groups: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership, version, limits = GROUPS[groups]
    (tmp_path / "cgroup").write_text(f"{membership}\n")
    root, maximum, usage, files = tmp_path / "groups", *memory.CONTROL[version][1:]
    for path, (limit, used, cached) in limits.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / maximum).write_text(f"{limit}\n")
        (root / path / usage).write_text(f"{used * MIB}\n")
        (root / path / "memory.stat").write_text(f"anon 1\n{files} {cached * MIB}\n")
    monkeypatch.setattr(memory, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setitem(memory.CONTROL, version, (root, maximum, usage, files))
    assert memory.total_bytes(CPU) == 64 * MIB
    assert memory.free_bytes(CPU) == (64 - 20 + 4) * MIB


@pytest.mark.parametrize("membership", [None, "0::/nowhere", "3:cpuset:/", "4:memory:/nowhere"])
def test_memory_is_the_machines_without_a_limit(
    membership: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if membership is not None:
        (tmp_path / "cgroup").write_text(f"{membership}\n")
    monkeypatch.setattr(memory, "MEMBERSHIP", tmp_path / "cgroup")
    for version, (_, *names) in memory.CONTROL.items():
        monkeypatch.setitem(memory.CONTROL, version, (tmp_path, *names))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.total_bytes(CPU) == machine
    assert 0 < (memory.free_bytes(CPU) or 0) < machine
