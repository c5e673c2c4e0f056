import errno
import hashlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Server, serve

from hetfl.data import fetch
from hetfl.data.catalogue import prepare_dataset
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.sets.digits import DigitsSettings
from hetfl.data.store import read_card, verify_dataset
from hetfl.errors import HetflError, one_line

SIZE = 200_000
CONTENT = np.random.default_rng(0).bytes(SIZE)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REMEDY = "put it into toy/ of a folder that data.mirror of params.yaml or HETFL_MIRROR names"


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(CONTENT) as found:
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WAIT", 0.0)
    monkeypatch.setattr(fetch, "TIMEOUT", (10.0, 10.0))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", (10.0, 0.2))
    monkeypatch.setattr(fetch, "ATTEMPTS", 3)


def published(server: Server, checksum: str = f"sha256:{SHA256}", bytes: int | None = SIZE) -> RemoteFile:
    return RemoteFile("set.bin", (f"{server.url}/set.bin",), checksum, bytes)


def left(folder: Path) -> dict[str, int]:
    """Sizes of the files below a folder, without locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path.name: path.stat().st_size for path in files}


def failure(sources: Sources, file: RemoteFile) -> str:
    with pytest.raises((HetflError, OSError)) as caught:
        sources.get("toy", file)
    message = one_line(caught.value)
    assert "\n" not in message
    assert sources.used == []
    return message


def is_had(server: Server, folder: Path, file: RemoteFile | None = None) -> None:
    """The next run succeeds and leaves the file alone."""
    assert Sources(None, folder).get("toy", file or published(server)).read_bytes() == CONTENT
    assert left(folder) == {"set.bin": SIZE}


def test_download_is_kept_checked_and_noted(server: Server, tmp_path: Path) -> None:
    sources = Sources(None, tmp_path)
    path = sources.get("toy", published(server))
    assert path == tmp_path / "toy" / "set.bin"
    assert sources.used == [{"name": "set.bin", "from": "official", "sha256": SHA256}]
    is_had(server, tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("fault", ["drop", "drop-unsized", "drop-chunked"])
def test_broken_download_goes_on_where_it_broke(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = [fault, fault]
    is_had(server, tmp_path)
    assert [asked for _, asked in server.requests] == ["", "bytes=100000-", "bytes=150000-"]
    assert server.sent == SIZE


@pytest.mark.usefixtures("short_timeout")
def test_stalled_download_goes_on_where_it_stalled(server: Server, tmp_path: Path) -> None:
    server.faults = ["stall"]
    is_had(server, tmp_path)
    assert [asked for _, asked in server.requests] == ["", "bytes=100000-"]


def test_early_end_is_found_out_where_neither_server_nor_catalogue_knows_the_size(
    server: Server, tmp_path: Path
) -> None:
    server.faults = ["drop-unsized"]
    is_had(server, tmp_path, published(server, bytes=None))
    assert len(server.requests) == 2


def test_published_size_that_is_too_large_does_no_harm(server: Server, tmp_path: Path) -> None:
    is_had(server, tmp_path, published(server, bytes=SIZE + 1))


@pytest.mark.parametrize("fault", ["", "drop-unsized"])
def test_download_stops_beyond_the_published_size(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = [fault]
    message = failure(Sources(None, tmp_path), published(server, bytes=SIZE // 4))
    assert f"{server.url}/set.bin: sends more than {SIZE // 4} bytes" in message
    assert len(server.requests) == 1 and left(tmp_path) == {}


def test_download_of_unknown_size_stops_too(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MOST", SIZE // 4)
    message = failure(Sources(None, tmp_path), published(server, bytes=None))
    assert f"sends more than {SIZE // 4} bytes" in message


def test_a_connection_that_breaks_often_but_brings_bytes_is_not_given_up(server: Server, tmp_path: Path) -> None:
    server.faults = ["drop"] * 12
    is_had(server, tmp_path)
    assert len(server.requests) == 13 and server.sent == SIZE


@pytest.mark.parametrize("fault", ["500", "503", "429", "408", "wrong", "redirect", "drop-early"])
def test_what_passes_is_tried_again(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = [fault]
    is_had(server, tmp_path)
    assert len(server.requests) == 2


@pytest.mark.parametrize(("asked", "waits"), [("7", 7.0), ("999", fetch.LONGEST_WAIT), ("", 0.0), ("soon", 0.0)])
def test_a_server_may_say_when_to_come_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, waits: float
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(fetch.time, "sleep", waited.append)
    server.faults, server.retry_after = ["503"], asked
    is_had(server, tmp_path)
    assert waited == [waits]


@pytest.mark.parametrize("fault", ["gzip", "badlength"])
def test_headers_that_mislead_do_no_harm(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = [fault]
    is_had(server, tmp_path)


@pytest.mark.parametrize(("fault", "requests"), [("whole", 2), ("shifted", 3), ("416", 3)])
def test_server_that_cannot_continue_starts_anew(server: Server, tmp_path: Path, fault: str, requests: int) -> None:
    server.faults = ["drop", fault]
    is_had(server, tmp_path)
    assert len(server.requests) == requests


OTHER = hashlib.sha256(bytes(SIZE)).hexdigest()[:12]


@pytest.mark.parametrize(
    ("fault", "requests", "reason", "stays"),
    [
        ("404", 1, "HTTP 404 Not Found", {}),
        ("403", 1, "HTTP 403 Forbidden", {}),
        ("416", 1, "HTTP 416 .*", {}),
        ("500", 5, "HTTP 500 Internal Server Error", {}),
        ("loop", 31, "is redirected without end", {}),
        ("drop-early", 5, "cannot be reached", {}),
        ("drop", 22, "the connection broke", {"set.bin.part": 199_999}),
        ("drop-chunked", 22, "the connection broke", {"set.bin.part": 199_999}),
        ("drop-unsized", 22, "ended after 199999 of 200000 bytes", {"set.bin.part": 199_999}),
        ("wrong", 2, f"its SHA-256 is {OTHER}, published is {SHA256[:12]}", {}),
    ],
)
def test_what_does_not_pass_is_one_line(
    server: Server, tmp_path: Path, fault: str, requests: int, reason: str, stays: dict[str, int]
) -> None:
    server.faults = [fault] * 999
    message = failure(Sources(None, tmp_path), published(server))
    assert re.fullmatch(
        rf"toy: set.bin cannot be downloaded \({server.url}/set.bin: {reason}\); {re.escape(REMEDY)}", message
    )
    assert len(server.requests) == requests
    assert left(tmp_path) == stays
    server.faults = []
    is_had(server, tmp_path)


@pytest.mark.usefixtures("short_timeout")
def test_stalls_without_end_are_one_line(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "toy" / "set.bin.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT[:-1])  # of which a server that stalls in the middle sends nothing
    server.faults = ["stall"] * 9
    assert f"({server.url}/set.bin: timed out); {REMEDY}" in failure(Sources(None, tmp_path), published(server))
    assert len(server.requests) == 3
    assert left(tmp_path) == {"set.bin.part": SIZE - 1}
    server.faults = []
    is_had(server, tmp_path)


def test_nobody_there_is_one_line(server: Server, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/set.bin"
        message = failure(Sources(None, tmp_path), replace(published(server), urls=(url,)))
    assert message == f"toy: set.bin cannot be downloaded ({url}: cannot be reached); {REMEDY}"
    assert left(tmp_path) == {}


@pytest.mark.parametrize("fault", ["404", "drop"])
def test_second_address_goes_on_where_the_first_ends(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    server.faults = [fault]
    is_had(server, tmp_path, replace(published(server), urls=(f"{server.url}/one", f"{server.url}/two")))
    assert server.requests == [("/one", ""), ("/two", "bytes=100000-" if fault == "drop" else "")]


def test_no_address_is_one_line(server: Server, tmp_path: Path) -> None:
    message = failure(Sources(None, tmp_path), replace(published(server), urls=()))
    assert message == f"toy: set.bin cannot be downloaded (it has no address); {REMEDY}"


@pytest.mark.parametrize("part", [b"of another file" * 9, bytes(SIZE), CONTENT + b"and more", CONTENT, b""])
def test_whatever_a_part_is_of_the_file_is_had(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "set.bin.part").write_bytes(part)
    is_had(server, tmp_path)


def test_damaged_download_is_fetched_again(server: Server, tmp_path: Path) -> None:
    path = Sources(None, tmp_path).get("toy", published(server))
    path.write_bytes(CONTENT[:-1] + b"?")
    is_had(server, tmp_path)
    assert len(server.requests) == 2


@pytest.mark.parametrize("algorithm", ["md5", "sha256", "sha512"])
def test_first_digits_of_a_checksum_are_enough(server: Server, tmp_path: Path, algorithm: str) -> None:
    digits = hashlib.new(algorithm, CONTENT).hexdigest()[:20]
    is_had(server, tmp_path / "right", published(server, f"{algorithm}:{digits}"))
    other = digits[:-1] + ("1" if digits[-1] == "0" else "0")
    message = failure(Sources(None, tmp_path / "wrong"), published(server, f"{algorithm}:{other}"))
    assert f"is {digits[:12]}, published is {digits[:12]}" in message
    assert left(tmp_path / "wrong") == {}


def test_unknown_checksum_is_read_from_a_mirror_only(server: Server, tmp_path: Path) -> None:
    message = failure(Sources(None, tmp_path / "downloads"), published(server, ""))
    assert message == f"toy: set.bin is not downloaded, since its checksum is not known; {REMEDY}"
    assert server.requests == []
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "set.bin").write_bytes(CONTENT)
    sources = Sources(tmp_path, tmp_path / "downloads")
    assert sources.get("toy", published(server, "")) == tmp_path / "toy" / "set.bin"
    assert sources.used == [{"name": "set.bin", "from": "mirror", "sha256": SHA256}]


def test_mirror_comes_first(server: Server, tmp_path: Path) -> None:
    mirrored = tmp_path / "mirror" / "toy" / "set.bin"
    mirrored.parent.mkdir(parents=True)
    mirrored.write_bytes(CONTENT)
    sources = Sources(tmp_path / "mirror", tmp_path / "downloads")
    assert sources.mirrored("toy", published(server))
    assert sources.get("toy", published(server)) == mirrored
    assert sources.used == [{"name": "set.bin", "from": "mirror", "sha256": SHA256}]
    mirrored.write_bytes(bytes(SIZE))
    message = failure(Sources(tmp_path / "mirror", tmp_path / "downloads"), published(server))
    assert message == f"{mirrored}: its SHA-256 is {OTHER}, published is {SHA256[:12]}; copy it again"
    assert mirrored.read_bytes() == bytes(SIZE)
    assert server.requests == []
    assert left(tmp_path / "downloads") == {}


def test_what_a_mirror_lacks_is_downloaded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mirror" / "toy").mkdir(parents=True)
    sources = Sources(tmp_path / "mirror", tmp_path / "downloads")
    assert not sources.mirrored("toy", published(server))
    assert sources.get("toy", published(server)) == tmp_path / "downloads" / "toy" / "set.bin"
    assert left(tmp_path / "mirror") == {}


def test_mirrors_own_copies_are_checked_against_its_list(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "train.npz"
    sources = Sources(tmp_path, tmp_path / "downloads")
    assert sources.copy("toy", "train.npz") is None
    assert Sources(None, tmp_path).copy("toy", "train.npz") is None
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert sources.copy("toy", "train.npz") == path
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  other/train.npz\n\n{SHA256} *toy/train.npz\n")
    assert sources.copy("toy", "train.npz") == path
    assert sources.used == [{"name": "toy/train.npz", "from": "mirror copy", "sha256": SHA256}] * 2
    path.write_bytes(bytes(SIZE))
    with pytest.raises(HetflError) as caught:
        sources.copy("toy", "train.npz")
    assert str(caught.value) == f"{path}: its SHA-256 is {OTHER}, published is {SHA256[:12]}; copy it again"
    assert len(sources.used) == 2


def test_full_disk_is_told_before_anything_is_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 50_000, 50_000))
    (tmp_path / "toy").mkdir()
    part = tmp_path / "toy" / "set.bin.part"
    part.write_bytes(CONTENT[:100_000])
    message = failure(Sources(None, tmp_path), published(server))
    assert (
        message
        == f"toy: set.bin needs 100.0 kB, {tmp_path / 'toy'} has 50.0 kB free; free disk space and run it again"
    )
    assert server.requests == []
    part.write_bytes(CONTENT[:150_000])
    is_had(server, tmp_path)
    assert server.requests == [("/set.bin", "bytes=150000-")]


class FullDisk(io.FileIO):
    """A file on a disk that has room for the first 70,000 bytes."""

    def write(self, data: Any) -> int:
        room = 70_000 - self.tell()
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(bytes(data)[:room])


def fill_disk_for(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    opened: Callable[..., Any] = Path.open

    def full(self: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if self.suffix == suffix and mode in ("ab", "wb"):
            return io.BufferedWriter(FullDisk(self, mode))
        return opened(self, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", full)


def test_download_on_a_disk_that_fills_goes_on_when_there_is_room(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fill_disk_for(patch, ".part")
        message = failure(Sources(None, tmp_path), published(server))
    part = tmp_path / "toy" / "set.bin.part"
    assert message == f"{part}: the disk is full; make room, then run the same command again"
    assert len(server.requests) == 1
    assert left(tmp_path) == {"set.bin.part": 70_000}
    is_had(server, tmp_path)
    assert server.requests[1:] == [("/set.bin", "bytes=70000-")]


def test_unusable_downloads_folder_is_one_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "downloads").write_text("a file")
    message = failure(Sources(None, tmp_path / "downloads"), published(server))
    place = tmp_path / "downloads"
    remedy = "move it away, then run the same command again"
    assert message == f"{place / 'toy'}: {place} is a file where a folder is needed; {remedy}"


@pytest.mark.parametrize("number", [errno.ENOSPC, None])
def test_disk_that_fills_while_a_data_set_is_written_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    def prepare(seed: int) -> None:
        prepare_dataset("digits", DigitsSettings(seed=seed), tmp_path / "digits", Sources(None, tmp_path))

    prepare(0)
    before, saved = read_card(tmp_path / "digits"), np.save

    def save(file: Path, array: np.ndarray, **named: Any) -> None:
        if file.name.startswith("train"):
            file.write_bytes(b"the first of its bytes")
            # Numpy tells a short write in words only.
            raise OSError(number, os.strerror(number)) if number else OSError("64000 requested and 22 written")
        saved(file, array, **named)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", save)
        with pytest.raises(OSError) as caught:
            prepare(1)
    place = tmp_path / "digits"
    assert one_line(caught.value) == f"{place}: the disk is full; make room, then run the same command again"
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]
    verify_dataset(tmp_path / "digits")
    assert read_card(tmp_path / "digits") == before
    prepare(1)
    assert read_card(tmp_path / "digits").settings["seed"] == 1


def run(server: Server, folder: Path) -> subprocess.Popen[str]:
    """Another process that downloads; it writes a line when it starts to."""
    script = """
import sys
from pathlib import Path
from hetfl.data.fetch import RemoteFile, Sources
url, sha256, folder = sys.argv[1:]
print("ready", flush=True)
Sources(None, Path(folder)).get("toy", RemoteFile("set.bin", (url,), f"sha256:{sha256}"))
"""
    command = [sys.executable, "-c", script, f"{server.url}/set.bin", SHA256, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_killed_download_goes_on_in_the_next_run(server: Server, tmp_path: Path) -> None:
    server.faults = ["stall"]
    part = tmp_path / "toy" / "set.bin.part"
    with run(server, tmp_path) as process:
        wait_for(lambda: part.exists() and part.stat().st_size > 50_000)
        process.kill()
    assert process.returncode < 0
    have = part.stat().st_size
    assert left(tmp_path) == {"set.bin.part": have}
    is_had(server, tmp_path)
    assert server.requests == [("/set.bin", ""), ("/set.bin", f"bytes={have}-")]


def test_two_processes_download_once(server: Server, tmp_path: Path) -> None:
    server.faults = ["stall"]
    with run(server, tmp_path) as one, run(server, tmp_path) as other:
        assert one.stdout and one.stdout.readline() and other.stdout and other.stdout.readline()
        wait_for(lambda: server.requests)
        time.sleep(0.3)  # the other would have asked by now
        server.go.set()
        assert (one.wait(60), other.wait(60)) == (0, 0)
    assert len(server.requests) == 1
    assert left(tmp_path) == {"set.bin": SIZE}
