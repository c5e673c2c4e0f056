"""The run record: one folder per cell, the source of truth about a run."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

import hetfl
from hetfl.errors import one_line
from hetfl.experiments.events import Callback, Event
from hetfl.experiments.plan import around, parts_of
from hetfl.files import append_text, clear_leftovers, write_json, write_text
from hetfl.schema import MODEL, RECORD, ROUNDS, RUN, Round, Run, last_round, read_run, sound_rounds, troubles
from hetfl.tensors import read_metadata, write_tensors
from hetfl.training.state import State

CORE = (
    "config.py",
    "draws.py",
    "schema.py",
    "message.py",
    "optimisers.py",
    "captured.py",
    "torch_private.py",
    "data/batches.py",
    "data/inputs.py",
    "data/store.py",
    "models",
    "methods",
    "training",
)
"""The parts of the package that a run goes through, whose digest its record keeps."""
COMMIT = "HETFL_COMMIT"
"""The environment variable that names the commit of a copy without git, such as one in a container."""


class Record:
    """``run.json``, ``rounds.jsonl`` and ``model.safetensors`` of one run.

    Args:
        folder: ``runs/<experiment>/<method>/<row>/<split>-s<seed>``.
        callback: is told of what is written. One that raises is told no more; the run goes on.
    """

    def __init__(self, folder: Path, callback: Callback | None = None) -> None:
        self.folder = folder
        self._rounds = folder / ROUNDS
        self._callback = callback

    def is_complete(self, fingerprint: str) -> bool:
        """Whether the folder holds the finished run of this identity, and its files are whole.

        All lines of the rounds must be there, up to the one that the checkpoint is of, and all of the checkpoint.
        """
        if not all((self.folder / name).exists() for name in RECORD):
            return False
        run = self.read()
        if run is None or not run.complete or run.fingerprint != fingerprint:
            return False
        last, metadata = last_round(self.folder), read_metadata(self.folder / MODEL)
        return last is not None and metadata is not None and metadata.get("round") == str(last)

    @property
    def finished(self) -> bool:
        """Whether the folder holds a finished run, of whatever identity."""
        run = self.read()
        return run is not None and run.complete

    def read(self) -> Run | None:
        """The content of ``run.json``; None where there is none."""
        return read_run(self.folder)

    def begin(self, run: Run, completed: int) -> None:
        """Start or continue: keep the lines up to round ``completed``, drop what a killed process wrote after.

        A run that goes on under other conditions says so, see :meth:`hetfl.schema.Run.going_on`.
        """
        kept = [line for line in self.lines() if line.round <= completed] if completed else []
        before = self.read() if kept else None
        if before is not None and before.fingerprint == run.fingerprint:
            run = before.going_on(run, completed + 1)
        self.run = run
        clear_leftovers(self.folder)
        # In this order no reader ever sees lines of an older run under the new run's description.
        (self.folder / MODEL).unlink(missing_ok=True)
        write_text(self._rounds, "".join(map(_line, kept)))
        write_json(self.folder / RUN, run.as_json())
        self.tell(run, kept)

    def append(self, line: Round) -> None:
        """Add one round; on disk before the call returns."""
        append_text(self._rounds, _line(line))
        self.tell(rounds=[line])

    def lines(self) -> list[Round]:
        """The lines of ``rounds.jsonl``, up to the first that is damaged: what comes after it is played again."""
        return sound_rounds(self.folder)

    def finish(self, state: State) -> None:
        """Write the final state of server and clients, then mark the run complete.

        The run says in which round first something went wrong, see :func:`hetfl.schema.troubles`.
        """
        tensors = {
            name: tensor
            for name, tensor in state.tensors().items()
            if "/optimiser/" not in name and "/memory/" not in name
        }
        write_tensors(self.folder / MODEL, tensors, {"round": str(state.round)})
        told = {"status": "complete", "finished": now(), **troubles(self.lines())}
        finished = self.run.model_copy(update=told)
        write_json(self.folder / RUN, finished.as_json())
        self.tell(finished)

    def tell(self, run: Run | None = None, rounds: Sequence[Round] = ()) -> None:
        """Call back with an :class:`Event`; an error is one line on stderr."""
        if self._callback is None:
            return
        try:
            self._callback(Event(self.folder, run, rounds))
        except Exception as error:
            self._callback = None
            print(f"hetfl: {self.folder}: its progress is no longer shown ({one_line(error)})", file=sys.stderr)


def _line(line: Round) -> str:
    return json.dumps(line.as_json(), allow_nan=False) + "\n"


@cache
def source_digest() -> str:
    """SHA-256 over the source that a run goes through, in hex."""
    root = Path(hetfl.__file__).parent
    parts = [root / part for part in CORE]
    files = sorted(path for part in parts for path in ([part] if part.is_file() else part.rglob("*.py")))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def method_source(cls: type) -> str:
    """SHA-256 over the code of the file that has a method, in hex; comments, docstrings and layout do not count."""
    tree = ast.parse(Path(inspect.getfile(cls)).read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            node.body = body[1:]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def commit(root: Path) -> str:
    """The checkout's commit, marked ``+changes`` where code or settings differ from it.

    Outside git it is what :data:`COMMIT` says, or ``unknown``.
    """
    try:
        top, head = _git(root, "rev-parse", "--show-toplevel", "--short=12", "HEAD").splitlines()
        changed = _git(root, "status", "--porcelain", "--", *_watched(root, Path(top)))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return os.environ.get(COMMIT) or "unknown"
    return head + ("+changes" if changed else "")


def _watched(root: Path, top: Path) -> list[str]:
    """The code and settings of a project within a repository, itself at ``top``, as git knows them.

    A project in a folder of another one links to its code, and git does not follow links. It shares its settings.
    """
    files = ("params.yaml", "dvc.yaml")
    outer = around(root)
    paths = [
        *(root / name for name in ("src", "pipeline", *files)),
        *(part for name in files for part in parts_of(root, name)),
        *([outer / "params.yaml"] if outer else []),
    ]
    real = dict.fromkeys(path.resolve() for path in paths)
    return [str(path) for path in real if path.is_relative_to(top.resolve())]


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def libraries(versions: dict[str, str]) -> dict[str, str]:
    """The versions in a record that may change last bits; numerics' versions tell what changes in hetfl itself."""
    return {name: version for name, version in versions.items() if name != "hetfl"}


@cache
def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    packages = ("torch", "torchvision", "timm", "numpy", "scikit-learn")
    return {
        "hetfl": hetfl.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


@cache
def device_name(device: torch.device) -> str:
    """The kind of device and its model; of a processor with family and model number, as clouds hide its name."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        told = {
            name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())
        }
        return f"{device.type}: {told['model name']} ({told['cpu family']}/{told['model']})"
    except (OSError, KeyError):
        return f"{device.type}: {platform.processor() or platform.machine()}"


def now() -> str:
    """The time as a record tells it: UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
