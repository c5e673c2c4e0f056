"""Atomic writes, and what is left of those that were killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hetfl.files import atomic_path, clear_leftovers, write_bytes


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


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((os.fstat(file).st_size, (tmp_path / "a").exists())))
    write_bytes(tmp_path / "a", b"12345")
    assert seen == [(5, False)] and (tmp_path / "a").read_bytes() == b"12345"


def test_a_folder_that_is_not_there_has_no_leftovers(tmp_path: Path) -> None:
    clear_leftovers(tmp_path / "none")
