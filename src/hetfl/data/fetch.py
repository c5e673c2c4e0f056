"""The files of data sets: taken from a mirror if they are there, otherwise downloaded; always checked."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from hetfl.errors import HetflError
from hetfl.files import sha256_file, writing

ATTEMPTS = 5
"""Attempts in a row that bring no new byte, before the next address or the error."""
WAIT = 1.0
"""Seconds before the attempt after one that brought bytes; doubled before each later one."""
LONGEST_WAIT = 60
"""The most seconds before another attempt where the server asks for some with ``Retry-After``."""
MOST = 2**33
"""Size limit in bytes of a file whose size is not known."""
TIMEOUT = (10.0, 30.0)
"""Timeouts in seconds: to connect, and between bytes."""

_CHUNK = 2**18


@dataclass(frozen=True)
class RemoteFile:
    """A file that the authors of a data set publish.

    Attributes:
        name: its file name, as published.
        urls: where it is published, tried in order.
        checksum: ``md5:``, ``sha256:`` or ``sha512:`` and the digest's first hex digits, all that are known. Empty if
            none are known; the file is then read from a mirror only.
        bytes: its size; None if unknown.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str
    bytes: int | None = None


class Sources:
    """Finds files of data sets, and records where each one came from.

    Args:
        mirror: a folder with local copies, which is searched first; or None.
        downloads: the folder for downloaded files.

    Attributes:
        used: the files used so far, each with ``name``, ``from`` and ``sha256``, for the data set's card.
    """

    def __init__(self, mirror: Path | None, downloads: Path) -> None:
        self.mirror, self.downloads = mirror, downloads
        self.used: list[dict[str, str]] = []

    def note(self, name: str, origin: str, sha256: str = "") -> None:
        """Record that a file was used, for the data set's card."""
        self.used.append({"name": name, "from": origin} | ({"sha256": sha256} if sha256 else {}))

    def get(self, dataset: str, file: RemoteFile) -> Path:
        """Find a file as its authors publish it, from the mirror or by download, and check it.

        Downloads are kept in ``<downloads>/<dataset>``. The next call continues an interrupted download. A lock makes
        processes that want the same file wait for each other.

        Raises:
            HetflError: the file cannot be obtained, or its checksum is not the published one.
        """
        path = self.downloads / dataset / file.name
        if (mirrored := self._official(dataset, file)) is not None:
            found = _digest(mirrored, file.checksum)
            if not found.startswith(file.checksum):
                raise HetflError(f"{mirrored}: its {_differ(found, file.checksum)}; copy it again")
            self.note(file.name, "mirror", sha256_file(mirrored))
            return mirrored
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{file.name}.lock")):
            if path.exists() and not _digest(path, file.checksum).startswith(file.checksum):
                path.unlink()
            if not path.exists():
                self._download(dataset, file, path)
        self.note(file.name, "official", sha256_file(path))
        return path

    def mirrored(self, dataset: str, file: RemoteFile) -> bool:
        """Whether the mirror has a file under its published name; the checksum is not checked here."""
        return self._official(dataset, file) is not None

    def copy(self, dataset: str, name: str) -> Path | None:
        """Find a file of the mirror's own format, ``<mirror>/<dataset>/<name>``; None if there is none.

        Raises:
            HetflError: its SHA-256 differs from the one in the mirror's ``SHA256SUMS``.
        """
        path = self.mirror and self.mirror / dataset / name
        if not path or not path.is_file():
            return None
        assert self.mirror is not None
        found, sums = sha256_file(path), self.mirror / "SHA256SUMS"
        if sums.is_file():
            listed = {line[66:].strip(): line[:64] for line in sums.read_text().splitlines()}
            expected = listed.get(f"{dataset}/{name}", found)
            if found != expected:
                raise HetflError(f"{path}: its {_differ(f'sha256:{found}', f'sha256:{expected}')}; copy it again")
        self.note(f"{dataset}/{name}", "mirror copy", found)
        return path

    def _official(self, dataset: str, file: RemoteFile) -> Path | None:
        path = self.mirror and self.mirror / dataset / file.name
        return path if path and path.is_file() else None

    def _download(self, dataset: str, file: RemoteFile, path: Path) -> None:
        what = f"{dataset}: {file.name}"
        remedy = f"put it into {dataset}/ of a folder that data.mirror of params.yaml or HETFL_MIRROR names"
        if not file.checksum:
            raise HetflError(f"{what} is not downloaded, since its checksum is not known; {remedy}")
        part = path.with_name(f"{file.name}.part")
        _check_space(what, file, part)
        reason = "it has no address"
        for url in file.urls:
            try:
                _fetch(url, part, file)
            except _DownloadError as error:
                reason = str(error)
            else:
                part.replace(path)
                return
        raise HetflError(f"{what} cannot be downloaded ({reason}); {remedy}")


class _DownloadError(Exception):
    """A failed download; ``passing`` says whether another attempt may succeed, after ``wait`` seconds at least."""

    def __init__(self, reason: str, passing: bool, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.passing, self.wait = passing, wait


def _fetch(url: str, part: Path, file: RemoteFile) -> None:
    """Download ``part`` until its checksum is right.

    It gives up after :data:`ATTEMPTS` without a new byte, and when it has received the same wrong file twice.
    """
    most, failed, wrong = _size(part), 0, set[str]()
    while True:
        try:
            _continue(url, part, file)
            found = _digest(part, file.checksum)
            if found.startswith(file.checksum):
                return
            part.unlink()
            again = found in wrong
            wrong.add(found)
            raise _DownloadError(f"{url}: its {_differ(found, file.checksum)}", passing=not again)
        except _DownloadError as error:
            failed = 1 if (have := _size(part)) > most else failed + 1
            most = max(most, have)
            if not error.passing or failed == ATTEMPTS:
                raise
            wait = max(WAIT * 2 ** (failed - 1), error.wait)
        time.sleep(wait)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _continue(url: str, part: Path, file: RemoteFile) -> None:
    """Download the rest of ``part``, or all of it if the server cannot continue a download."""
    import requests
    from urllib3 import Retry
    from urllib3.exceptions import HTTPError, TimeoutError

    have = _size(part)
    # With compression, the length and the range would not be those of the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == 416 and have:
                return  # the part is complete, or of another file; the checksum decides
            if not response.ok:
                passing = response.status_code >= 500 or response.status_code in (408, 429)
                wait = Retry(retry_after_max=LONGEST_WAIT).get_retry_after(response.raw) or 0.0
                raise _DownloadError(f"{url}: HTTP {response.status_code} {response.reason}", passing, wait)
            continues = response.status_code == 206
            have = have if continues else 0
            length = response.raw.length_remaining
            total = file.bytes if length is None else have + length
            mode = "ab" if continues else "wb"
            with writing(part), part.open(mode) as out, _bar(file.name, have, total) as advance:
                # read1 returns what has arrived without waiting for more, so a broken connection loses nothing.
                while chunk := response.raw.read1(_CHUNK):
                    have += len(chunk)
                    if have > (file.bytes or MOST):
                        part.unlink()
                        reason = f"{url}: sends more than {file.bytes or MOST} bytes"
                        raise _DownloadError(reason, passing=continues)  # the part may be of something else
                    out.write(chunk)
                    advance(len(chunk))
    except requests.TooManyRedirects as error:
        raise _DownloadError(f"{url}: is redirected without end", passing=False) from error
    except (requests.RequestException, HTTPError) as error:
        if isinstance(error, requests.Timeout | TimeoutError):
            reason = "timed out"
        else:
            reason = "cannot be reached" if isinstance(error, requests.RequestException) else "the connection broke"
        raise _DownloadError(f"{url}: {reason}", passing=True) from error
    # A server that does not send the length may stop early without an error.
    if file.bytes is not None and (size := part.stat().st_size) < file.bytes:
        raise _DownloadError(f"{url}: ended after {size} of {file.bytes} bytes", passing=True)


@contextmanager
def _bar(name: str, have: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal; yields what is called with the bytes that arrive."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(name, total=total, completed=have)
        yield lambda count: progress.advance(bar, count)


def _check_space(what: str, file: RemoteFile, part: Path) -> None:
    """Check the disk before an hour of download, not after it."""
    from rich.filesize import decimal

    have = _size(part)
    free = shutil.disk_usage(part.parent).free
    if file.bytes is not None and (need := file.bytes - have) > free:
        needed = f"needs {decimal(need)}, {part.parent} has {decimal(free)} free"
        raise HetflError(f"{what} {needed}; free disk space and run it again")


def _digest(path: Path, checksum: str) -> str:
    """The file's digest by the checksum's algorithm, as ``<algorithm>:<hex>``."""
    algorithm = checksum.partition(":")[0] or "sha256"
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _differ(found: str, expected: str) -> str:
    algorithm, _, digest = found.partition(":")
    name = {"md5": "MD5", "sha256": "SHA-256", "sha512": "SHA-512"}[algorithm]
    return f"{name} is {digest[:12]}, published is {expected.partition(':')[2][:12]}"
