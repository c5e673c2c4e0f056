"""Disks that are full or read-only and paths that are taken: one line in every stage, and all right after."""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fault_table import QUICK, Tries
from own_disk import Disk, in_child, with_own_disk
from PIL import Image
from stage_runner import Ended, run_command, run_stage
from sweep_project import results

from hetfl.tensors import read_metadata
from hetfl.tracking.mlflow_database import set_environment

pytestmark = [pytest.mark.faults, pytest.mark.slow]

SPLITS = ("iid", "dir", "noniid")
ROW = {"method": "fedhpl", "title": "FedHPL", "settings": {"share": "prompts"}}
EXPERIMENT = {
    "title": "Full disks",
    "dataset": "digits",
    "models": "tiny",
    "splits": {name: name for name in SPLITS},
    "seeds": [0],
    "defaults": {"rounds": 2},
    "rows": {"fedhpl": ROW},
}
PARAMS: dict[str, Any] = {
    "compute": {"device": "cpu", "jobs": 1},
    "data": {"digits": {"public": 600, "test": 900}, "mine": {"path": "images", "size": 8, "licence": "mine"}},
    "partitions": {"digits": {"seeds": [0], "splits": {name: {"scheme": "iid", "clients": 2} for name in SPLITS}}},
    "pretrain": {
        "digits": {
            "dataset": "digits",
            "models": ["digits_vit_small"],
            "epochs": 1,
            "batch_size": 32,
            "lr": 0.003,
            "weight_decay": 0.05,
        }
    },
    "models": {"tiny": ["digits_vit_small"]},
    # The figure of Theorem 1 shows both.
    "experiments": {"digits-homogeneous": EXPERIMENT, "digits-heterogeneous": {**EXPERIMENT, "title": "More"}},
}
NAME = "digits-homogeneous"
STAGES = {
    "download": ("data/digits", "digits"),
    "prepare": ("data/mine", "mine"),
    "partition": ("partitions/digits", "digits"),
    "pretrain": ("weights", "digits"),
    "train": ("runs", NAME),
    "evaluate": ("evaluations", NAME),
    "table": ("tables", NAME),
    "figure": ("figures", "digits-theorem"),
    "report": ("report",),
    "export": ("out/cells.tar", NAME, "-o", "out/cells.tar"),
    "sync": ("mlruns",),
}
"""What each stage or command writes, and its arguments."""


def run(root: Path, stage: str) -> Ended:
    """Run a stage in a process of its own: MLflow keeps its database open."""
    once = run_command if stage in ("export", "sync") else run_stage
    return Ended(*in_child(lambda: once(root, stage, *STAGES[stage][1:])))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which every stage has run; not to be changed."""
    set_environment()
    importlib.import_module("mlflow.tracking")  # once for all processes
    root = tmp_path_factory.mktemp("finished")
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS, sort_keys=False))
    for label in ("cat", "dog"):
        (root / "images" / label).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((8, 8, 3), 30 * number, np.uint8)
            Image.fromarray(pixels).save(root / "images" / label / f"{number}.png")
    for stage in STAGES:
        ended = run(root, stage)
        assert ended.status == 0, f"{stage}: {ended.stderr}"
    return root


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def half_written(root: Path) -> list[str]:
    """Files that are not whole, and those that an atomic write has left."""
    found = []
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if not path.is_file() or name.startswith(("mlruns", "images", "src")):
            continue
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".jsonl":
                assert path.read_text() == "" or path.read_text().endswith("\n")
                [json.loads(line) for line in path.read_text().splitlines()]
            elif path.suffix == ".safetensors":
                assert read_metadata(path) is not None
            elif path.suffix in (".npz", ".npy"):
                np.load(path)
            left = any(part.startswith(".") and part not in (".hetfl", ".lock") for part in Path(name).parts)
            assert not left or path.name.endswith(".lock")
        except Exception:
            found.append(name)
    return found


def content(root: Path, stage: str) -> Any:
    """What a stage has written, without times."""
    out = root / STAGES[stage][0]
    if stage == "train":
        return results(root)
    if stage == "sync":
        database = root / "mlruns" / "mlflow.db"
        with closing(sqlite3.connect(database)) as connection:
            shown = "SELECT name, status, lifecycle_stage FROM runs ORDER BY name"
            return [[*row] for row in connection.execute(shown)]
    files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    same = stage in ("download", "prepare", "partition", "pretrain", "table", "figure")
    return {path.relative_to(root).as_posix(): path.read_bytes() if same else b"" for path in files}


def problem(ended: Ended, root: Path, at: Path) -> str:
    """What is wrong with how a stage ended that could not write; empty if nothing is."""
    lines = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
    if ended.status != 2 or "Traceback" in ended.stderr or len(lines) != 1:
        return f"status {ended.status}, {len(lines)} lines:\n{ended.stderr}\n{ended.stdout}"
    if not any(name in lines[0] for name in (at.parts[-1], at.parts[0], ".hetfl", ".lock")):
        return f"does not name {at}: {lines[0]}"
    if "then run the same command again" not in lines[0]:
        return f"does not say what to do: {lines[0]}"
    return f"half written: {found}" if (found := half_written(root)) else ""


def endure(disk: Disk, finished: Path, stage: str) -> list[tuple[str, str, str]]:
    """All faults of one stage: the fault, the line that told of it, and what was wrong."""
    root = disk.place / "project"
    shutil.copytree(finished, root, symlinks=True)
    at = Path(STAGES[stage][0])
    out, top = root / at, root / at.parts[0]

    def clear() -> None:
        remove(out)
        if stage == "train":
            remove(root / ".hetfl")
        if stage == "report":
            remove(root / ".hetfl" / "costs.json")

    clear()
    empty = disk.used
    assert run(root, stage).status == 0
    before = content(root, stage)
    written = disk.used - empty
    found = []

    def attempt(fault: str, begin: Callable[[], object], end: Callable[[], object], must_fail: bool = True) -> None:
        clear()
        begin()
        try:
            ended = run(root, stage)
            wrong = problem(ended, root, at) if must_fail or ended.status else ""
        finally:
            end()
        again = run(root, stage)
        if again.status or "Traceback" in again.stderr:
            wrong += f"\nthe next run: status {again.status}\n{again.stderr}"
        elif content(root, stage) != before:
            wrong += "\nthe next run gives something else"
        line = next((line for line in ended.stderr.splitlines() if line.startswith("error:")), "")
        found.append((fault, line, wrong))

    def full() -> None:
        for share in (0.0,) if QUICK else (0.0, 0.2, 0.5, 0.8):
            attempt("full disk", lambda share=share: disk.fill(int(share * written)), disk.free, must_fail=share == 0)

    def protected() -> None:
        attempt("read-only disk", lambda: disk.protect(True), lambda: disk.protect(False))

    def put(make: Callable[[Path], object]) -> None:
        remove(top)
        make(top)

    def taken() -> None:
        begin = partial(put, lambda path: path.write_text(""))
        attempt("file in place of a folder", begin, lambda: remove(top))

    def dangling() -> None:
        begin = partial(put, lambda path: path.symlink_to("nowhere"))
        # MLflow makes the folder that the link names.
        attempt("dangling link", begin, lambda: remove(top), must_fail=stage != "sync")

    faults = [full, taken, protected, dangling]
    # A quick run has two of them for each stage.
    for fault in faults[[*STAGES].index(stage) % 2 :: 2] if QUICK else faults:
        fault()
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_cannot_be_written_is_one_line(
    finished: Path, tmp_path: Path, tries: Tries, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = with_own_disk(tmp_path / "disk", lambda disk: endure(disk, finished, stage))
    if found is None:
        pytest.fail("needs a disk of its own, and this system forbids mounts, also in a user namespace")
    with capsys.disabled():
        print()
        for fault, line, wrong in found:
            print(f"  {stage}, {fault}: {line}")
            tries.add(fault, wrong)
