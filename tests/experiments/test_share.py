"""Cells that travel: what one workspace exports, another takes over, once and unharmed."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from record_factory import make_round, write_metrics, write_record

from hetfl.errors import HetflError
from hetfl.experiments import share
from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Cell, Workspace, cells, load_params
from hetfl.experiments.record import Record
from hetfl.experiments.share import MANIFEST, export_cells, import_cells
from hetfl.experiments.superseded import Superseded
from hetfl.schema import Inputs
from hetfl.training.state import ResumePoints, State

READS = Inputs(dataset="d", partition="p", weights={})


@pytest.fixture(scope="module")
def every() -> list[Cell]:
    return cells(load_params(Path("params.yaml")), "digits-fgpt")


@pytest.fixture
def here(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "there")


def write(workspace: Workspace, cell: Cell, status: str = "complete", rounds: int = 2, reads: Inputs = READS) -> str:
    """A record of a cell, finished with its evaluation or in progress with a resume point."""
    found = fingerprint(cell, reads)
    lines = [make_round(number) for number in range(rounds + 1)]
    of_cell = {"dataset": cell.dataset, "settings": cell.settings, "partition": cell.partition}
    write_record(workspace.runs, cell.path, lines, status, fingerprint=found, inputs=reads, **of_cell)
    if status == "complete":
        write_metrics(workspace.evaluations, cell.path, fingerprint=found)
    else:
        with ResumePoints(workspace.resume_points(cell.path) / found) as points:
            points.save(State(rounds, {"round": torch.tensor(rounds)}))
    return found


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def outcomes(path: Path, every: list[Cell], workspace: Workspace) -> dict[str, str]:
    return {taken.cell: taken.outcome for taken in import_cells(path, every, workspace)}


def test_finished_and_started_cells_arrive_as_they_were(every, here, there, tmp_path):
    done, begun, never = every[:3]
    write(here, done)
    write(here, begun, "running", rounds=5)
    path = tmp_path / "cells.tar"
    assert export_cells([done, begun, never], here, path) == [done.path.as_posix(), begun.path.as_posix()]
    assert set(outcomes(path, every, there).values()) == {"taken over"}
    for folder in ("runs", "evaluations", ".hetfl/resume"):
        assert files(here.root / folder) == files(there.root / folder)
    before = files(there.root)
    assert outcomes(path, every, there) == dict.fromkeys(
        (done.path.as_posix(), begun.path.as_posix()), "there already"
    )
    assert files(there.root) == before


def test_of_two_runs_the_one_that_is_further_stays(every, here, there, tmp_path):
    cell, path = every[0], tmp_path / "cells.tar"
    name = cell.path.as_posix()
    write(here, cell, "running", rounds=3)
    write(there, cell, "running", rounds=4)
    export_cells([cell], here, path)
    before = files(there.root)
    assert outcomes(path, every, there) == {name: "further here"}
    assert files(there.root) == before
    export_cells([cell], there, path)
    assert outcomes(path, every, here) == {name: "taken over"}
    found = write(here, cell)
    export_cells([cell], here, path)
    assert outcomes(path, every, there) == {name: "taken over"}
    assert Record(there.runs / cell.path).is_complete(found) and not there.resume_points(cell.path).exists()


def test_a_run_of_other_settings_moves_nothing_aside(every, here, there, tmp_path):
    cell, path = every[0], tmp_path / "cells.tar"
    name = cell.path.as_posix()
    other = cell.model_copy(update={"settings": {**cell.settings, "lr": 0.5}})
    own, theirs = write(there, cell), write(here, other)
    export_cells([other], here, path)
    assert outcomes(path, every, there) == {name: "kept as superseded"}
    assert Record(there.runs / cell.path).is_complete(own)
    assert Superseded(there, cell.path).restore(theirs)  # as training does when the settings come back
    write(here, other, "running")
    export_cells([other], here, path)
    assert outcomes(path, every, there) == {name: "refused"}
    export_cells([other], there, path)
    assert outcomes(path, [], there) == {name: "refused"}


def test_a_finished_run_on_other_data_moves_ours_aside(every, here, there, tmp_path):
    """Its settings are those here, so it is the cell; training says later whether the data are."""
    cell, path = every[0], tmp_path / "cells.tar"
    own = write(there, cell)
    newer = write(here, cell, reads=READS.model_copy(update={"dataset": "e"}))
    export_cells([cell], here, path)
    assert outcomes(path, every, there) == {cell.path.as_posix(): "taken over"}
    assert Record(there.runs / cell.path).is_complete(newer)
    assert [run.fingerprint for _, run in Superseded(there, cell.path).runs()] == [own]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("running", "running"), ("running", "complete"), ("complete", "running")]
)
def test_nothing_is_lost_to_a_run_on_other_data(every, here, there, tmp_path, ours, theirs):
    cell, path = every[0], tmp_path / "cells.tar"
    own = write(there, cell, ours, rounds=1)
    other = write(here, cell, theirs, rounds=5, reads=READS.model_copy(update={"dataset": "e"}))
    export_cells([cell], here, path)
    before = files(there.runs / cell.path) | files(there.resume_points(cell.path))
    outcome = "kept as superseded" if theirs == "complete" else "refused"
    assert outcomes(path, every, there) == {cell.path.as_posix(): outcome}
    assert files(there.runs / cell.path) | files(there.resume_points(cell.path)) == before
    kept = [run.fingerprint for _, run in Superseded(there, cell.path).runs()]
    assert Record(there.runs / cell.path).read().fingerprint == own and kept == [other] * (theirs == "complete")


@pytest.mark.parametrize("damage", ["cut", "flipped", "no archive", "no manifest", "newer", "absent"])
def test_a_damaged_archive_changes_nothing(every, here, there, tmp_path, damage):
    cell, path = every[0], tmp_path / "cells.tar"
    write(here, cell)
    export_cells([cell], here, path)
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        place = content.rindex(b'"accuracy"')
        path.write_bytes(content[:place] + b'"eccuracy"' + content[place + 10 :])
    elif damage == "no archive":
        path.write_bytes(b"accuracy")
    elif damage == "no manifest":
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo("x/run/run.json"), io.BytesIO())
    elif damage == "newer":
        path.write_bytes(content.replace(b'"format": 1', b'"format": 9', 1))
    else:
        path.unlink()
    with pytest.raises(HetflError) as caught:
        import_cells(path, every, there)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert not there.runs.exists() and not [*there.scratch.glob("import-*")]


def test_a_run_with_another_fingerprint_than_the_manifests_is_refused(every, here, there, tmp_path):
    cell, path = every[0], tmp_path / "cells.tar"
    found = write(here, cell)
    export_cells([cell], here, path)
    path.write_bytes(path.read_bytes().replace(found.encode(), b"0" * 64, 1))  # in the manifest, which comes first
    assert outcomes(path, every, there) == {cell.path.as_posix(): "refused"}
    assert not there.runs.exists()


def test_nothing_leaves_the_folder(every, here, there, tmp_path):
    """A file whose name leads out is refused, and what the manifest does not name is not unpacked."""
    cell, path = every[0], tmp_path / "cells.tar"
    write(here, cell)
    export_cells([cell], here, path)
    with tarfile.open(path, "a") as archive:
        for name in ("../out", f"{cell.path.as_posix()}/run/extra"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert outcomes(path, every, there) == {cell.path.as_posix(): "taken over"}
    assert not [*tmp_path.rglob("out")] and not [*tmp_path.rglob("extra")]
    path.write_bytes(path.read_bytes().replace(b"/run/run.json", b"/../../r.json"))
    with pytest.raises(HetflError, match="is no archive of cells|missing or damaged"):
        import_cells(path, every, Workspace(tmp_path / "elsewhere"))


def rewrite(path: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> None:
    """Change an archive's files and manifest, whose checksums follow."""
    with tarfile.open(path) as archive:
        content = {member.name: archive.extractfile(member).read() for member in archive}
    manifest = json.loads(content.pop(MANIFEST))
    change(content, manifest)
    manifest["files"] = {name: hashlib.sha256(file).hexdigest() for name, file in content.items()}
    with tarfile.open(path, "w") as archive:
        for name, file in {MANIFEST: json.dumps(manifest).encode(), **content}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(file)
            archive.addfile(entry, io.BytesIO(file))


def test_names_that_an_archive_makes_up_become_no_paths(every, here, there, tmp_path):
    cell, path = every[0], tmp_path / "cells.tar"
    name = cell.path.as_posix()
    outside = "../" * 20 + f"{tmp_path}/out".lstrip("/")

    def leads_out(files, manifest):
        files[f"{name}/run/run.json"] = json.dumps(
            json.loads(files[f"{name}/run/run.json"]) | {"fingerprint": outside}
        ).encode()
        manifest["fingerprints"][name] = outside

    changes = [leads_out]
    changes += [
        lambda files, manifest, extra=extra: files.update({extra: b"print(1)"})
        for extra in (f"{name}/run/mine.py", f"{name}/mine/run.json", "mine/run/run.json", "mine")
    ]
    for change in changes:
        write(here, cell)
        export_cells([cell], here, path)
        rewrite(path, change)
        with pytest.raises(HetflError, match="is no archive of cells"):
            import_cells(path, every, there)
        assert not there.runs.exists() and not (tmp_path / "out").exists()


def test_a_finished_run_that_is_not_whole_replaces_nothing(every, here, there, tmp_path):
    cell, path = every[0], tmp_path / "cells.tar"
    name = cell.path.as_posix()
    write(here, cell)
    export_cells([cell], here, path)
    rewrite(path, lambda files, manifest: files.pop(f"{name}/run/model.safetensors"))
    write(there, cell, "running", rounds=9)
    before = files(there.root)
    (taken,) = import_cells(path, every, there)
    assert (taken.outcome, taken.why) == ("refused", "its finished run lacks a file or a round")
    assert files(there.root) == before
    (here.runs / cell.path / "model.safetensors").unlink()
    with pytest.raises(
        HetflError, match=f"{name}: the finished run lacks a file or a round; train it again or leave"
    ):
        export_cells([cell], here, path)


def test_a_cell_that_is_being_trained_is_left_out(every, here, there, tmp_path):
    """Its files change while they are copied, and one that differs from its checksum spoils the archive."""
    done, running = every[:2]
    path = tmp_path / "cells.tar"
    write(here, done)
    write(here, running, "running")
    lock = here.lock(running.path)
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        assert export_cells([done, running], here, path) == [done.path.as_posix()]
        with pytest.raises(HetflError, match="none of the 1 cells is finished or interrupted"):
            export_cells([running], here, path)
    assert outcomes(path, every, there) == {done.path.as_posix(): "taken over"}
    assert export_cells([done, running], here, path) == [done.path.as_posix(), running.path.as_posix()]


def test_a_cell_that_is_being_trained_is_not_waited_for(every, here, there, tmp_path):
    cell, path = every[0], tmp_path / "cells.tar"
    write(here, cell)
    export_cells([cell], here, path)
    there.lock(cell.path).parent.mkdir(parents=True)
    with FileLock(there.lock(cell.path)):
        assert outcomes(path, every, there) == {cell.path.as_posix(): "refused"}
    assert outcomes(path, every, there) == {cell.path.as_posix(): "taken over"}


def test_an_import_that_was_ended_is_made_up_for(every, here, there, tmp_path, monkeypatch):
    """Between its two folders; only with both of them a cell goes on from where it was."""
    cell, path = every[0], tmp_path / "cells.tar"
    write(here, cell, "running", rounds=5)
    export_cells([cell], here, path)
    move, moved = share._move, []

    def once(source: Path, target: Path) -> None:
        if moved:
            raise KeyboardInterrupt
        moved.append(move(source, target))

    monkeypatch.setattr(share, "_move", once)
    with pytest.raises(KeyboardInterrupt):
        import_cells(path, every, there)
    monkeypatch.setattr(share, "_move", move)
    assert outcomes(path, every, there) == {cell.path.as_posix(): "taken over"}
    assert files(there.runs) == files(here.runs)
    assert files(there.resume_points(cell.path)) == files(here.resume_points(cell.path))


def test_a_run_on_another_partition_is_not_taken_for_the_cells(every, here, there, tmp_path):
    cell, path = every[0], tmp_path / "cells.tar"
    write(here, cell.model_copy(update={"partition": {**cell.partition, "clients": 99}}))
    export_cells([cell], here, path)
    assert outcomes(path, every, there) == {cell.path.as_posix(): "kept as superseded"}


def test_only_an_archive_is_replaced(every, here, tmp_path):
    write(here, every[0])
    other, archive = tmp_path / "params.yaml", tmp_path / "cells.tar"
    for content in ("compute: {}", ""):
        other.write_text(content)
        with pytest.raises(HetflError, match="params.yaml: is there and is no archive of cells; name another file"):
            export_cells(every[:1], here, other)
        assert other.read_text() == content
    for _ in range(2):
        assert export_cells(every[:1], here, archive) == [every[0].path.as_posix()]
    with pytest.raises(HetflError, match="it is a folder"):
        import_cells(tmp_path, every, here)


def test_nothing_to_export_is_said(every, here, tmp_path):
    with pytest.raises(HetflError, match="none of the 2 cells is finished or interrupted"):
        export_cells(every[:2], here, tmp_path / "cells.tar")
    assert not (tmp_path / "cells.tar").exists()


@pytest.mark.parametrize(("size", "times"), [(2**32, 1), (0, 2000)])
def test_headers_without_end_are_refused(every, there, tmp_path, size, times):
    """Python reads the headers of a tar whole, and each within the one before."""
    path = tmp_path / "cells.tar"
    head = tarfile.TarInfo("manifest.json")
    head.type, head.size = tarfile.XHDTYPE, size
    path.write_bytes(times * head.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(HetflError, match="is no archive of cells") as caught:
        import_cells(path, every, there)
    assert "\n" not in str(caught.value)
