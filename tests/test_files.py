"""Atomic writes, and what is left of those that were killed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hetfl.errors import HetflError, foreseen
from hetfl.files import atomic_folder, atomic_path, clear_leftovers, folder_bytes, write_bytes, writing


@pytest.mark.parametrize("name", ["run.json", "kills-communication.svg", "a.b.safetensors"])
def test_what_a_killed_write_leaves_is_removed_and_nothing_else(tmp_path: Path, name: str) -> None:
    others = [".DS_Store", ".nfs00012", ".gitignore", ".hidden.json", name]
    for other in others:
        (tmp_path / other).touch()
    child = os.fork()
    if child == 0:
        with atomic_path(tmp_path / name):
            os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_what_a_killed_process_leaves_of_a_folder_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    def write(end: Callable[[], object]) -> int:
        child = os.fork()
        if child == 0:
            with atomic_folder(tmp_path / "[data]") as folder:
                (folder / "part").touch()
                end()
                os._exit(0)
        return child

    alive = write(signal.pause)
    while not [*tmp_path.glob(".*/part")]:
        time.sleep(0.01)
    os.waitpid(write(lambda: os._exit(0)), 0)
    assert len([*tmp_path.glob(".*/part")]) == 2
    (tmp_path / ".[data].toolong123").mkdir()
    (tmp_path / ".[data].12345678").touch()
    with atomic_folder(tmp_path / "[data]") as folder:
        (folder / "whole").touch()
    assert [path.name for path in (tmp_path / "[data]").iterdir()] == ["whole"]
    (kept,) = tmp_path.glob(".*/part")
    os.kill(alive, signal.SIGKILL)
    os.waitpid(alive, 0)
    with atomic_folder(tmp_path / "[data]"):
        assert not kept.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".[data].12345678", ".[data].toolong123", "[data]"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((os.fstat(file).st_size, (tmp_path / "a").exists())))
    write_bytes(tmp_path / "a", b"12345")
    assert seen == [(5, False)] and (tmp_path / "a").read_bytes() == b"12345"


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a") as temporary:
        temporary.write_bytes(b"ne")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"")
    with atomic_folder(tmp_path / "b"):
        pass
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o644, 0o755]


def test_a_folder_that_is_not_there_has_no_leftovers(tmp_path: Path) -> None:
    clear_leftovers(tmp_path / "none")


def test_a_folder_that_a_link_names_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "disk" / "big").mkdir(parents=True)
    (tmp_path / "disk" / "big" / "old").touch()
    (tmp_path / "data").symlink_to("disk/big")
    with atomic_folder(tmp_path / "data") as folder:
        (folder / "new").touch()
    assert (tmp_path / "data").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["big"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Path.touch, "is a file where a folder is needed"),
        (lambda path: path.symlink_to("none"), "is a link to none, which does not exist"),
        (lambda path: path.symlink_to("/proc"), "a disk is mounted there, which cannot be replaced"),
    ],
)
def test_what_cannot_be_replaced_is_refused_before_any_work(tmp_path: Path, make, told: str) -> None:
    make(tmp_path / "data")
    with pytest.raises((HetflError, OSError)) as failed, atomic_folder(tmp_path / "data"):
        pytest.fail("work has begun")
    assert told in str(foreseen(failed.value)) and len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError("800 requested and 16 written"), errno.ENOSPC),
        (shutil.Error([("a", "b", "[Errno 122] Disk quota exceeded: 'b'")]), errno.EDQUOT),
        (shutil.Error([("a", "b", "[Errno 13] Permission denied: 'a'")]), errno.EACCES),
        (OSError("Cannot call rmtree on a symbolic link"), None),
    ],
)
def test_only_a_full_disk_is_called_full(tmp_path: Path, error: OSError, number: int | None) -> None:
    with pytest.raises(OSError) as failed, writing(tmp_path / "a"):
        raise error
    assert failed.value.errno == number


def test_what_vanishes_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_bytes(tmp_path / "none") == 0
    for name in ("a", "b/c", "b/d"):
        write_bytes(tmp_path / name, b"12345")
    (tmp_path / "link").symlink_to("none")
    assert folder_bytes(tmp_path) == 15
    stat = Path.stat

    def removed(path: Path, **given: bool) -> os.stat_result:
        if path.name == "c":
            path.unlink(missing_ok=True)
        return stat(path, **given)

    monkeypatch.setattr(Path, "stat", removed)
    assert folder_bytes(tmp_path) == 10
