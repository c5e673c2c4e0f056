"""Trained cells in one file: taken along from one machine, taken over on another.

An archive is a tar file. ``manifest.json`` comes first and lists every file with its SHA-256. Then come the runs and
evaluations of the cells, and of a run that is not finished its newest resume point. Nothing here needs DVC or MLflow.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hetfl.data.archive import Member
from hetfl.errors import HetflError
from hetfl.experiments.identity import own_differences
from hetfl.experiments.plan import Cell, Workspace
from hetfl.experiments.record import Record
from hetfl.experiments.superseded import Superseded
from hetfl.files import atomic_path, sha256_file, writing
from hetfl.schema import METRICS, RECORD, Run, read_metrics, read_run
from hetfl.training.state import newest_round, point_files

MANIFEST, MOST = "manifest.json", 64 * 2**20
"""The first file of an archive, and its size limit in bytes."""
FORMAT = 1
"""Of an archive."""

RUNS, EVALUATION, RESUME = "run", "evaluation", "resume"
"""Folders of a cell in an archive."""

Outcome = Literal["taken over", "there already", "further here", "kept as superseded", "refused"]


class Manifest(BaseModel):
    """What an archive holds. It may come from anybody, and its names become paths.

    Attributes:
        format: see :data:`FORMAT`.
        files: the SHA-256 of every file, by its name ``<cell>/<run, evaluation or resume>/<file>``.
        fingerprints: of every cell, by its path below ``runs/``.
    """

    model_config = ConfigDict(extra="forbid")

    format: int
    fingerprints: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]
    files: dict[str, str]

    @model_validator(mode="after")
    def _files_of_cells(self) -> Self:
        for name in self.files:
            cell, _, inner = name.rpartition("/")[0].rpartition("/")
            if cell not in self.fingerprints or inner not in (RUNS, EVALUATION, RESUME):
                raise ValueError(f"{name} is no file of a cell")
            if inner == RUNS and name.rpartition("/")[2] not in RECORD:
                raise ValueError(f"{name} is no file of a record")
        return self


@dataclass(frozen=True)
class Taken:
    """What became of a cell of an archive; ``why`` is empty where the outcome says it all."""

    cell: str
    outcome: Outcome
    why: str = ""


def export_cells(cells: Sequence[Cell], workspace: Workspace, path: Path) -> list[str]:
    """Write the records of some cells into an archive, finished or not.

    Cells without a record are left out, and so are those that a process trains now, whose files change.

    Returns:
        The cells in the archive, as paths below ``runs/``.

    Raises:
        HetflError: none of the cells is finished or interrupted, a record is damaged, or another file than an archive
            would be replaced; nothing was written.
    """
    if path.is_file() and not _begins_with_manifest(path):
        raise HetflError(f"{path}: is there and is no archive of cells; name another file")
    fingerprints: dict[str, str] = {}
    files: dict[str, Path] = {}
    with ExitStack() as held:
        for cell in cells:
            name, folder = cell.path.as_posix(), workspace.runs / cell.path
            run = read_run(folder)
            if run is not None and not run.complete:
                try:
                    held.enter_context(FileLock(workspace.lock(cell.path), timeout=0))
                except Timeout:
                    continue
                run = read_run(folder)
            if run is None:
                continue
            if run.complete and not Record(folder).is_complete(run.fingerprint):
                raise HetflError(
                    f"{folder}: the finished run lacks a file or a round; train it again or leave it out"
                )
            found = {f"{RUNS}/{file}": folder / file for file in RECORD}
            evaluation = workspace.evaluations / cell.path
            if read_metrics(evaluation, run) is not None:
                found |= {f"{EVALUATION}/{file.name}": file for file in sorted(evaluation.glob("[!.]*"))}
            points = point_files(workspace.resume_points(cell.path) / run.fingerprint)
            if not run.complete and not points:
                continue  # there is nothing to go on from
            found |= {f"{RESUME}/{file.name}": file for file in ([] if run.complete else points[-1:])}
            fingerprints[name] = run.fingerprint
            files |= {f"{name}/{inner}": file for inner, file in found.items() if file.exists()}
        if not fingerprints:
            none = f"none of the {len(cells)} cells is finished or interrupted"
            raise HetflError(f"{workspace.runs}: {none}; train one first")
        _pack(path, fingerprints, files)
    return [*fingerprints]


def _begins_with_manifest(path: Path) -> bool:
    try:
        with tarfile.open(path, "r:", tarinfo=Member) as archive:
            first = archive.next()
    except (tarfile.TarError, ValueError):
        return False
    return first is not None and first.name == MANIFEST


def _pack(path: Path, fingerprints: dict[str, str], files: Mapping[str, Path]) -> None:
    """Write an archive of these files, by their names in it."""
    manifest = Manifest(
        format=FORMAT, fingerprints=fingerprints, files={name: sha256_file(file) for name, file in files.items()}
    )
    with atomic_path(path) as temporary, tarfile.open(temporary, "w") as archive:
        content = json.dumps(manifest.model_dump(), indent=1).encode()
        head = tarfile.TarInfo(MANIFEST)
        head.size = len(content)
        archive.addfile(head, io.BytesIO(content))
        for name, file in files.items():
            entry = tarfile.TarInfo(name)
            with file.open("rb") as source:
                entry.size = file.stat().st_size
                archive.addfile(entry, source)


def import_cells(path: Path, every: Iterable[Cell], workspace: Workspace) -> list[Taken]:
    """Take over the cells of an archive. Doing it again changes nothing.

    A cell is taken over if its settings, and the data, partition and weights that its record names, are those of the
    cell of that path here. A finished run takes the place of one that is not, and of two that are not the one that is
    further stays. A finished record of other settings is kept among the superseded ones, where it is found when its
    settings come back, and so is one that has read other data than an unfinished run here.

    Args:
        path: the archive.
        every: the cells that there are here.
        workspace: the checkout.

    Returns:
        What became of each cell. One that is damaged or unknown does not stop the others.

    Raises:
        HetflError: the archive cannot be read; nothing was changed.
    """
    known = {cell.path.as_posix(): cell for cell in every}
    workspace.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workspace.scratch, prefix="import-") as folder:
        manifest = _unpack(path, Path(folder))
        return [
            _take(name, expected, Path(folder), known, workspace) for name, expected in manifest.fingerprints.items()
        ]


def _unpack(path: Path, folder: Path) -> Manifest:
    """Write the files that an archive's manifest names, checked against it."""
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else "there is no such file"
        raise HetflError(f"{path}: is no archive of cells ({why})")
    try:
        with tarfile.open(path, "r:", tarinfo=Member) as archive:
            first = archive.next()
            if first is None or first.name != MANIFEST or not first.isfile() or first.size > MOST:
                raise HetflError(f"{path}: does not begin with {MANIFEST}; name a file that hetfl export wrote")
            content = archive.extractfile(first)
            assert content is not None
            manifest = Manifest.model_validate_json(content.read())
            if manifest.format > FORMAT:
                newer = f"is of format {manifest.format}, and this hetfl reads {FORMAT}; use a newer hetfl"
                raise HetflError(f"{path}: {newer}")
            for member in archive:
                # Of a sparse file the archive holds less than is written.
                if member.name in manifest.files and member.isfile() and not member.issparse():
                    _extract(archive, member, folder)
    except (tarfile.TarError, ValidationError, ValueError, RecursionError) as error:
        raise HetflError(f"{path}: is no archive of cells ({str(error).splitlines()[0]})") from error
    for name, expected in manifest.files.items():
        found = folder / name
        if not found.is_file() or sha256_file(found) != expected:
            raise HetflError(f"{path}: {name} is missing or damaged; export or copy the archive again")
    return manifest


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a regular file of an archive below ``folder``; tarfile's own filters need Python 3.11.4."""
    target = folder / member.name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{member.name} leads out of its folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None
    with writing(target), content, target.open("wb") as file:
        shutil.copyfileobj(content, file)


def _take(name: str, expected: str, folder: Path, known: Mapping[str, Cell], workspace: Workspace) -> Taken:
    """Take one cell over from the folder that its files were unpacked into."""
    if name not in known:
        return Taken(name, "refused", "there is no such cell here")
    cell, source = known[name], folder / name
    try:
        run = read_run(source / RUNS)
    except HetflError as error:
        return Taken(name, "refused", str(error).replace(f"{folder}/", ""))
    if run is None or run.fingerprint != expected:
        return Taken(name, "refused", "its run.json is not of the fingerprint that the archive states")
    if run.complete and not Record(source / RUNS).is_complete(run.fingerprint):
        return Taken(name, "refused", "its finished run lacks a file or a round")
    try:
        with FileLock(workspace.lock(cell.path), timeout=0):
            return _take_locked(cell, run, source, workspace)
    except Timeout:
        return Taken(name, "refused", "it is being trained here; import it again when that has ended")


def _take_locked(cell: Cell, run: Run, source: Path, workspace: Workspace) -> Taken:
    """Take over a cell that nobody trains meanwhile."""
    name, record, earlier = cell.path.as_posix(), Record(workspace.runs / cell.path), Superseded(workspace, cell.path)
    if why := _other(cell, run, record.read(), workspace):
        if not run.complete:
            return Taken(name, "refused", f"{why}, and it is not finished")
        if (earlier.folder / run.fingerprint).exists():
            return Taken(name, "there already", f"as superseded: {why}")
        _move(source / RUNS, earlier.folder / run.fingerprint)
        return Taken(name, "kept as superseded", why)
    if record.is_complete(run.fingerprint):
        return Taken(name, "there already")
    points = workspace.resume_points(cell.path) / run.fingerprint
    if not run.complete:
        theirs, ours = (_newest(place) for place in (source / RESUME, points))
        if theirs <= ours:
            return Taken(name, "further here" if theirs < ours else "there already", f"round {ours}")
    return _place(cell, run, source, record, earlier, points, workspace)


def _other(cell: Cell, run: Run, ours: Run | None, workspace: Workspace) -> str:
    """Why a run cannot take the cell's place, although it may be right some day; empty if it can."""
    if why := own_differences(run, cell, workspace):
        return f"its settings or versions are not those here ({'; '.join(why)})"
    if ours is None or ours.fingerprint == run.fingerprint or own_differences(ours, cell, workspace):
        return ""
    # What is finished here is kept when it moves aside, and what is not would be lost.
    return "" if ours.complete and run.complete else "the run here has read other data"


def _place(
    cell: Cell, run: Run, source: Path, record: Record, earlier: Superseded, points: Path, workspace: Workspace
) -> Taken:
    """Put a cell's files where training and evaluation would have put them; each folder appears whole."""
    earlier.make_way(run.fingerprint)
    shutil.rmtree(points, ignore_errors=True)
    # Only the points say how far a cell is here, so they come last: a second import then mends what a kill leaves.
    _move(source / RUNS, record.folder)
    if not run.complete:
        _move(source / RESUME, points)
    earlier.trim()
    if (source / EVALUATION / METRICS).exists():
        _move(source / EVALUATION, workspace.evaluations / cell.path)
    return Taken(cell.path.as_posix(), "taken over", "" if run.complete else f"round {_newest(points)}, not finished")


def _move(source: Path, target: Path) -> None:
    """Rename a folder to where one may be already, which goes."""
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def _newest(points: Path) -> int:
    """The round of the newest resume point in a folder; -1 where there is none."""
    found = newest_round(points)
    return -1 if found is None else found
