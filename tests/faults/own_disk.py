"""A process with a disk of its own, which may be full or read-only; nobody else sees it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000
READ_ONLY, REMOUNT, PRIVATE, RECURSIVE = 1, 32, 1 << 18, 1 << 14


class Disk:
    """A disk in memory, below a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / ".ballast"
        _mount(b"none", b"/", None, PRIVATE | RECURSIVE)
        _mount(b"none", bytes(place), b"tmpfs", 0, b"size=400m")

    @property
    def used(self) -> int:
        """Bytes."""
        usage = shutil.disk_usage(self.place)
        return usage.total - usage.free

    def fill(self, left: int) -> None:
        """Leave so many bytes free."""
        many = shutil.disk_usage(self.place).free - left
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, many)

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink(missing_ok=True)

    def protect(self, on: bool) -> None:
        """Make it read-only or writable."""
        _mount(b"none", bytes(self.place), b"tmpfs", REMOUNT | (READ_ONLY if on else 0))


def with_own_disk(place: Path, work: Callable[[Disk], Any]) -> Any:
    """What ``work`` returns, as JSON, in a process with a disk of its own at ``place``; None if that is forbidden.

    Raises:
        RuntimeError: with the traceback of what ``work`` raised.
    """
    place.mkdir(parents=True, exist_ok=True)
    return in_child(lambda: work(Disk(place)) if _isolate() else None)


def in_child(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, as JSON, in a fork of this process, which keeps nothing open.

    Raises:
        RuntimeError: with the traceback of what ``work`` raised.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reads)
            told: dict[str, Any] = {}
            try:
                told["result"] = work()
            except BaseException:
                told["error"] = traceback.format_exc()
            with os.fdopen(writes, "w") as pipe:
                json.dump(told, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    told = json.loads(content or "{}")
    if status or "error" in told:
        raise RuntimeError(told.get("error", f"the process ended with status {status}"))
    return told["result"]


def _isolate() -> bool:
    """Leave the mounts of all others; as a plain user in a user namespace too."""
    user, group = os.getuid(), os.getgid()
    if LIBC.unshare(NEW_MOUNTS) == 0:
        return True
    if LIBC.unshare(NEW_MOUNTS | NEW_USER) != 0:
        return False
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(content)
    return True


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    if LIBC.mount(source, target, kind, flags, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(target))
