"""Readers of files and messages that anybody may have written: any bytes give a value or one line, in little memory.

What fails is written to ``seeds/<kind of file>/`` beside this file, as small as hypothesis can make it, and belongs
into the repository: every seed is tried first.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import resource
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fault_table import QUICK, Tries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_factory import make_round, write_record
from scipy.io import savemat

from hetfl.data.archive import members
from hetfl.data.partitions import Iid, make_partition, read_partition, write_partition
from hetfl.data.readers import arrays, idx, matlab
from hetfl.data.store import Dataset, Subset, read_dataset, write_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.cell import Record
from hetfl.experiments.share import _unpack
from hetfl.files import sha256_file
from hetfl.message import Message, ServerState
from hetfl.schema import last_round, read_rounds, read_run, sound_rounds
from hetfl.tensors import read_metadata, read_tensors, write_tensors
from hetfl.training.engine import Task, Update
from hetfl.training.host import Question, Reply, Request
from hetfl.training.state import ClientState, ResumePoints, State

pytestmark = [pytest.mark.faults, pytest.mark.slow]

EXAMPLES = 60 if QUICK else 1500
SEEDS = Path(__file__).with_name("seeds")
ROOM = 512 * 2**20
"""Bytes of address space that a reader may take beyond those of the process."""

NUMBERS = (0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
WORDS = (
    b"NaN",
    b"null",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"[[[[[[[[",
    b"{}",
    b"\0",
    b"\xff\xfe",
    b"../../x",
)


@st.composite
def changes(draw: Any) -> Callable[[bytes], bytes]:
    """A function that damages bytes at a few places."""
    steps = draw(
        st.lists(
            st.tuples(
                st.floats(0, 1),
                st.sampled_from(["flip", "cut", "drop", "repeat", "number", "word", "zero"]),
                st.integers(0, 255),
            ),
            min_size=1,
            max_size=4,
        )
    )

    def damage(content: bytes) -> bytes:
        for place, kind, value in steps:
            at = int(place * max(0, len(content) - 1))
            span = 1 + value % 40
            if kind == "flip" and content:
                content = content[:at] + bytes([content[at] ^ (value or 1)]) + content[at + 1 :]
            elif kind == "cut":
                content = content[:at]
            elif kind == "drop":
                content = content[:at] + content[at + span :]
            elif kind == "repeat":
                content = content[:at] + content[at : at + span] * 2 + content[at + span :]
            elif kind == "number":
                written = NUMBERS[value % len(NUMBERS)].to_bytes(8, "little")[: 1 << value % 4]
                content = content[:at] + written + content[at + len(written) :]
            elif kind == "word":
                content = content[:at] + WORDS[value % len(WORDS)] + content[at:]
            else:
                content = content[:at] + bytes(span) + content[at + span :]
        return content

    return damage


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """An allocation beyond :data:`ROOM` is a MemoryError, which is no answer."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good file of every kind."""
    root = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)

    def subset(samples: int) -> Subset:
        return Subset(rng.integers(0, 256, (samples, 4, 4, 1)).astype(np.uint8), np.arange(samples) % 3)

    write_dataset(
        root / "data",
        name="toy",
        title="Toy",
        origin="here",
        licence="none",
        source=[],
        settings={},
        class_names=("a", "b", "c"),
        subsets={"train": subset(30), "test": subset(9)},
    )
    dataset: Dataset = read_dataset(root / "data")
    scheme = Iid(clients=3)
    write_partition(root / "partition", make_partition(scheme, dataset, Draws(0)), scheme, dataset, 0)
    write_record(root / "record", "e/m/r/s-s0", [make_round(number) for number in range(4)])
    write_tensors(root / "model.safetensors", {"a": torch.arange(6.0), "b": torch.ones(2, 3)}, {"round": "3"})
    np.savez_compressed(root / "arrays.npz", a=np.arange(40), b=np.ones((2, 2), np.uint8))
    (root / "images.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 9]) + bytes(9)))
    savemat(root / "lists.mat", {"x": np.arange(12).reshape(3, 4)}, do_compression=True)
    with zipfile.ZipFile(root / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/1.bin", bytes(600))
        archive.writestr("a/2.bin", rng.bytes(90))
    for kind in ("", "gz", "xz"):
        with tarfile.open(root / f"set.tar{kind}", f"w:{kind}") as tar:
            for name in ("a/1.bin", "a/2.bin"):
                member = tarfile.TarInfo(name)
                member.size = 700
                tar.addfile(member, io.BytesIO(bytes(700)))
    with tarfile.open(root / "cells.tar", "w") as tar:
        files = {"e/m/r/s-s0/run/rounds.jsonl": (root / "record").rglob("rounds.jsonl").__next__()}
        manifest = {
            "format": 1,
            "fingerprints": {"e/m/r/s-s0": "f"},
            "files": {name: sha256_file(path) for name, path in files.items()},
        }
        content = json.dumps(manifest).encode()
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
        for name, path in files.items():
            tar.add(path, name)
    return root


def fuzz(
    tries: Tries,
    name: str,
    kind: str,
    read: Callable[[Callable[[bytes], bytes]], object],
    *right: type[Exception],
) -> None:
    """Try seeds and damages. Every one must give a value or one of the right errors, in one line.

    Args:
        tries: counts them.
        name: of the reader.
        kind: the folder of its seeds.
        read: damages a good file with the function that it is given, and reads it.
        right: the errors that say what is wrong; :class:`HetflError` if none are given.
    """
    right = right or (HetflError,)
    last, count = b"", 0

    def attempt(damage: Callable[[bytes], bytes]) -> None:
        nonlocal last

        def remembered(content: bytes) -> bytes:
            nonlocal last
            last = damage(content)
            return last

        try:
            read(remembered)
        except right as error:
            assert "\n" not in str(error).strip()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(changes())
    def any_damage(damage: Callable[[bytes], bytes]) -> None:
        nonlocal count
        count += 1
        attempt(damage)

    for seed in sorted((SEEDS / kind).glob("*")):
        with tries.one(f"fuzz: {name}"):
            attempt(lambda content, seed=seed: seed.read_bytes())
    with tries.one(f"fuzz: {name}"):
        try:
            any_damage()
        except Exception:
            (SEEDS / kind).mkdir(parents=True, exist_ok=True)
            (SEEDS / kind / hashlib.sha256(last).hexdigest()[:8]).write_bytes(last)
            raise
    tries.more(f"fuzz: {name}", count - 1)


def damaged(source: Path, folder: Path, damage: Callable[[bytes], bytes]) -> Path:
    path = folder / source.name
    path.write_bytes(damage(source.read_bytes()))
    return path


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("file", ["card.json", "indices.npz"])
def test_partition(made: Path, tmp_path: Path, tries: Tries, file: str, checked: bool) -> None:
    """``checked``: the card says the checksum of the damaged indices."""
    folder = tmp_path / "partition"

    def read(damage: Callable[[bytes], bytes]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made / "partition", folder)
        damaged(made / "partition" / file, folder, damage)
        if checked and file == "indices.npz":
            card = json.loads((folder / "card.json").read_text())
            card["sha256"] = sha256_file(folder / file)
            (folder / "card.json").write_text(json.dumps(card))
        read_partition(folder)

    fuzz(tries, "partition", file, read)


@pytest.mark.parametrize("file", ["run.json", "rounds.jsonl"])
def test_record(made: Path, tmp_path: Path, tries: Tries, file: str) -> None:
    (source,) = (made / "record").rglob("run.json")
    folder = tmp_path / "record"

    def read(damage: Callable[[bytes], bytes]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source.parent, folder)
        damaged(source.parent / file, folder, damage)
        run = None
        try:
            run = read_run(folder)
        finally:
            sound_rounds(folder)
            last_round(folder)
        if run is not None:
            Record(folder).is_complete(run.fingerprint)
        read_rounds(folder, finished=True)

    fuzz(tries, "record", file, read)


def test_checkpoint(made: Path, tmp_path: Path, tries: Tries) -> None:
    def read(damage: Callable[[bytes], bytes]) -> None:
        path = damaged(made / "model.safetensors", tmp_path, damage)
        read_metadata(path)
        read_tensors(path)

    fuzz(tries, "checkpoint", "model.safetensors", read)


def test_resume_point(tmp_path: Path, tries: Tries) -> None:
    """A file whose name says its checksum, and that is still none of ours."""
    state = State(2, ServerState({"a": torch.ones(3)}), {1: ClientState({"w": torch.ones(2)})})
    with ResumePoints(tmp_path / "good") as points:
        points.save(state)
    (good,) = (tmp_path / "good").iterdir()

    def read(damage: Callable[[bytes], bytes]) -> None:
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "content"
        path.write_bytes(damage(good.read_bytes()))
        path.rename(folder / f"round-000002-{sha256_file(path)[:16]}.safetensors")
        with ResumePoints(folder) as points:
            points.load(torch.device("cpu"), None)

    fuzz(tries, "resume point", "resume.safetensors", read)


@pytest.mark.parametrize("name", ["set.zip", "set.tar", "set.targz", "set.tarxz"])
def test_archive(made: Path, tmp_path: Path, tries: Tries, name: str) -> None:
    fuzz(tries, "archive", name, lambda damage: list(members(damaged(made / name, tmp_path, damage))))


def test_archive_of_cells(made: Path, tmp_path: Path, tries: Tries) -> None:
    def read(damage: Callable[[bytes], bytes]) -> None:
        folder = tmp_path / "unpacked"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = damaged(made / "cells.tar", tmp_path, damage)
        try:
            _unpack(path, folder)
        finally:
            assert {found.name for found in tmp_path.iterdir()} == {"cells.tar", "unpacked"}

    fuzz(tries, "archive of cells", "cells.tar", read)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("arrays.npz", lambda path: arrays(path, "a", "b")),
        ("images.gz", idx),
        ("lists.mat", lambda path: matlab(path, "x")),
    ],
)
def test_published_format(
    made: Path, tmp_path: Path, tries: Tries, name: str, read: Callable[[Path], object]
) -> None:
    fuzz(tries, "file of a data set", name, lambda damage: read(damaged(made / name, tmp_path, damage)))


QUESTION = Question(kind="train", round=3)
UPLINK = Message({"a": torch.arange(4.0), "b": torch.ones(2, 2)})
MESSAGES = {
    "request": (Request(QUESTION, [Task(0, UPLINK), Task(1, UPLINK)]).to_bytes(), Request.from_bytes),
    "reply": (Reply(QUESTION, [Update(0, UPLINK, torch.tensor(0.5), {}, {})]).to_bytes(), Reply.from_bytes),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_message(tries: Tries, kind: str) -> None:
    good, read = MESSAGES[kind]
    fuzz(tries, "message", kind, lambda damage: read(damage(good)), ValueError)
