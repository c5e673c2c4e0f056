from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from serving import Server, serve

from hetfl.data import fetch
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.errors import HetflError

CONTENT = np.random.default_rng(0).bytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(CONTENT) as found:
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WAIT", 0.0)
    monkeypatch.setattr(fetch, "TIMEOUT", (1.0, 0.3))


def file_at(server: Server, checksum: str = f"sha256:{SHA256}") -> RemoteFile:
    return RemoteFile("set.bin", (f"{server.url}/set.bin",), checksum, len(CONTENT))


def left(folder: Path) -> list[str]:
    """Files below a folder, without locks."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


def failure(sources: Sources, file: RemoteFile) -> str:
    with pytest.raises(HetflError) as caught:
        sources.get("toy", file)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("toy: set.bin")
    return message


def test_download_is_kept_checked_and_noted(server: Server, tmp_path: Path) -> None:
    sources = Sources(None, tmp_path)
    path = sources.get("toy", file_at(server))
    assert path == tmp_path / "toy" / "set.bin"
    assert path.read_bytes() == CONTENT
    assert sources.used == [{"name": "set.bin", "from": "official", "sha256": SHA256}]
    assert Sources(None, tmp_path).get("toy", file_at(server)) == path
    assert len(server.requests) == 1


@pytest.mark.parametrize("fault", ["drop", "drop-unsized", "stall"])
def test_broken_download_goes_on_where_it_broke(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = [fault, fault]
    checksum = f"sha256:{SHA256}"
    path = Sources(None, tmp_path).get("toy", file_at(server, checksum))
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["set.bin"]
    if fault != "drop-unsized":
        # Without a length, only the checksum tells that something is missing.
        assert [asked for _, asked in server.requests] == ["", "bytes=100000-", "bytes=150000-"]
        assert server.sent == len(CONTENT)


@pytest.mark.parametrize("fault", ["500", "503", "429", "408", "wrong", "redirect"])
def test_what_passes_is_tried_again(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = [fault]
    assert Sources(None, tmp_path).get("toy", file_at(server)).read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_server_that_ignores_ranges_starts_anew(server: Server, tmp_path: Path) -> None:
    server.faults = ["drop", "whole"]
    assert Sources(None, tmp_path).get("toy", file_at(server)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("faults", "requests", "reason", "stays"),
    [
        (["404"] * 9, 1, "HTTP 404 Not Found", []),
        (["403"] * 9, 1, "HTTP 403 Forbidden", []),
        (["500"] * 9, 5, "HTTP 500 Internal Server Error", []),
        (["drop"] * 9, 5, "ended after 193750 of 200000 bytes|the connection broke", ["set.bin.part"]),
        (["stall"] * 9, 5, "timed out|the connection broke", ["set.bin.part"]),
        (["wrong"] * 9, 5, "its SHA-256 is [0-9a-f]{12}, published is " + SHA256[:12], []),
    ],
)
def test_what_does_not_pass_is_one_line(
    server: Server, tmp_path: Path, faults: list[str], requests: int, reason: str, stays: list[str]
) -> None:
    server.faults = faults
    message = failure(Sources(None, tmp_path), file_at(server))

    assert re.search(reason, message), message
    assert "HETFL_MIRROR" in message
    assert len(server.requests) == requests
    assert left(tmp_path) == stays
    server.faults = []
    assert Sources(None, tmp_path).get("toy", file_at(server)).read_bytes() == CONTENT


def test_nobody_there_is_one_line(server: Server, tmp_path: Path) -> None:
    file = replace(file_at(server), urls=("http://127.0.0.1:9/set.bin",))
    assert "the connection broke" in failure(Sources(None, tmp_path), file)
    assert left(tmp_path) == []


def test_second_address_is_tried(server: Server, tmp_path: Path) -> None:
    server.faults = ["404"]
    file = replace(file_at(server), urls=(f"{server.url}/one", f"{server.url}/two"))
    assert Sources(None, tmp_path).get("toy", file).read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["/one", "/two"]


@pytest.mark.parametrize("part", [b"of another file" * 9, CONTENT + b"and more", b""])
def test_part_of_something_else_is_found_out(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "set.bin.part").write_bytes(part)
    assert Sources(None, tmp_path).get("toy", file_at(server)).read_bytes() == CONTENT


def test_damaged_download_is_fetched_again(server: Server, tmp_path: Path) -> None:
    path = Sources(None, tmp_path).get("toy", file_at(server))
    path.write_bytes(CONTENT[:-1])
    assert Sources(None, tmp_path).get("toy", file_at(server)).read_bytes() == CONTENT


def test_first_digits_of_a_checksum_are_enough(server: Server, tmp_path: Path) -> None:
    digits = hashlib.sha512(CONTENT).hexdigest()[:50]
    assert Sources(None, tmp_path).get("toy", file_at(server, f"sha512:{digits}")).exists()
    other = "0" + digits[1:] if digits[0] != "0" else "1" + digits[1:]
    assert "SHA-512" in failure(Sources(None, tmp_path / "b"), file_at(server, f"sha512:{other}"))


def test_unknown_checksum_is_not_downloaded(server: Server, tmp_path: Path) -> None:
    assert "its checksum is not known" in failure(Sources(None, tmp_path), file_at(server, ""))
    assert server.requests == []
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "set.bin").write_bytes(CONTENT)
    assert Sources(tmp_path / "mirror", tmp_path).get("toy", file_at(server, "")).read_bytes() == CONTENT


@pytest.mark.parametrize("place", ["toy/set.bin", "set.bin"])
def test_mirror_comes_first(server: Server, tmp_path: Path, place: str) -> None:
    mirrored = tmp_path / "mirror" / place
    mirrored.parent.mkdir(parents=True)
    mirrored.write_bytes(CONTENT)
    sources = Sources(tmp_path / "mirror", tmp_path / "downloads")
    assert sources.mirrored("toy", file_at(server))
    assert sources.get("toy", file_at(server)) == mirrored
    assert sources.used == [{"name": "set.bin", "from": "mirror", "sha256": SHA256}]
    assert server.requests == []
    mirrored.write_bytes(CONTENT[1:])
    with pytest.raises(HetflError, match=f"{mirrored}: its SHA-256 is .*, published is {SHA256[:12]}; copy it again"):
        sources.get("toy", file_at(server))
    assert mirrored.exists()


def test_mirrors_own_copies_are_checked_against_its_list(tmp_path: Path) -> None:
    sources = Sources(tmp_path, tmp_path / "downloads")
    assert sources.copy("toy", "train.npz") is None
    assert Sources(None, tmp_path).copy("toy", "train.npz") is None
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "train.npz").write_bytes(CONTENT)
    assert sources.copy("toy", "train.npz") == tmp_path / "toy" / "train.npz"
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  other/train.npz\n{SHA256}  toy/train.npz\n")
    sources.copy("toy", "train.npz")
    assert sources.used[-1] == {"name": "toy/train.npz", "from": "mirror copy", "sha256": SHA256}
    (tmp_path / "toy" / "train.npz").write_bytes(CONTENT[1:])
    with pytest.raises(HetflError, match="train.npz: its SHA-256 is .* copy it again"):
        sources.copy("toy", "train.npz")


def test_full_disk_is_told_before_anything_is_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 50_000))
    assert "needs 0.2 MB" in (message := failure(Sources(None, tmp_path), file_at(server)))
    assert "0.1 MB free" in message or "0.0 MB free" in message
    assert server.requests == []
    assert left(tmp_path) == []


def test_disk_that_fills_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(self: Path, mode: str = "r", *arguments, **named):
        file = opened(self, mode, *arguments, **named)
        if self.name.endswith(".part") and mode in ("ab", "wb"):
            file.write(b"some bytes")

            class Full:
                def write(self, data: bytes) -> int:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                def __enter__(self):
                    return self

                def __exit__(self, *error: object) -> None:
                    file.close()

            return Full()
        return file

    monkeypatch.setattr(Path, "open", full)
    assert "is full; make room" in failure(Sources(None, tmp_path), file_at(server))
    assert left(tmp_path) == []
    monkeypatch.setattr(Path, "open", opened)
    assert Sources(None, tmp_path).get("toy", file_at(server)).read_bytes() == CONTENT


FETCH = """
import sys
from pathlib import Path
from hetfl.data.fetch import RemoteFile, Sources
url, sha256, folder = sys.argv[1:]
Sources(None, Path(folder)).get("toy", RemoteFile("set.bin", (url,), f"sha256:{sha256}"))
"""


def test_killed_download_goes_on_in_the_next_run(server: Server, tmp_path: Path) -> None:
    server.faults = ["stall"]
    part = tmp_path / "toy" / "set.bin.part"
    command = [sys.executable, "-c", FETCH, f"{server.url}/set.bin", SHA256, str(tmp_path)]
    with subprocess.Popen(command) as process:
        until = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
            # What was received is on disk once a chunk is full or the connection ends.
            if server.requests:
                server.closing.set()
            time.sleep(0.02)
            if process.poll() is not None:
                break
        process.send_signal(signal.SIGKILL)
    assert left(tmp_path) == ["set.bin.part"]
    assert Sources(None, tmp_path).get("toy", file_at(server)).read_bytes() == CONTENT
    assert left(tmp_path) == ["set.bin"]
    assert server.requests[-1][1] == "bytes=100000-"


def _get(url: str, folder: str) -> None:
    Sources(None, Path(folder)).get("toy", RemoteFile("set.bin", (url,), f"sha256:{SHA256}"))


def test_two_processes_download_once(server: Server, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_get, args=(f"{server.url}/set.bin", str(tmp_path))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert len(server.requests) == 1
