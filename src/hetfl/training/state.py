"""Everything that changes from round to round, as mappings of tensors, and its resume points."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from hetfl.errors import HetflError
from hetfl.files import sha256_file
from hetfl.message import ServerState, Tensors, flatten, group
from hetfl.tensors import read_tensors, write_tensors

_POINT = re.compile(r"round-\d+-\w+\.safetensors")
_OF_CLIENT = re.compile(r"(\d{1,9})/(params|optimiser|memory)/(.+)", re.ASCII | re.DOTALL)
"""Number, field of :class:`ClientState` and name of a client's tensor in a file."""


@dataclass
class ClientState:
    """What one client remembers between rounds.

    Attributes:
        params: its own parameters; empty before its first round and where all come with the downlink.
        optimiser: tensors by ``<optimiser>/<parameter>/<slot>``; see :attr:`Phase.name`.
        memory: see :meth:`Method.remember`.
    """

    params: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.params or self.optimiser or self.memory)


class ClientStates:
    """The states of an engine's clients: as they were when the current round began, and as they are.

    So a round that failed can be played again, and a client that is asked twice gives the same answer.
    """

    def __init__(self, states: Mapping[int, ClientState] | None = None) -> None:
        self._before = dict(states or {})
        self._after: dict[int, ClientState] = {}
        self._round: int | None = None

    def before(self, client: int, round: int) -> ClientState:
        """A client's state when a round began; empty if it has nothing to remember.

        Raises:
            ValueError: a later round has begun, so that the state is gone.
        """
        self._begin(round)
        return self._before.get(client, ClientState())

    def after(self, client: int) -> ClientState:
        """A client's latest state."""
        return self._after.get(client, self._before.get(client, ClientState()))

    def keep(self, client: int, round: int, state: ClientState) -> None:
        """Remember a client's state after its work in a round."""
        self._begin(round)
        self._after[client] = state

    def all(self) -> dict[int, ClientState]:
        """The latest states of the clients that have something to remember."""
        return {client: state for client, state in (self._before | self._after).items() if not state.empty}

    @property
    def round(self) -> int | None:
        """The current round; None before the first."""
        return self._round

    def halves(self) -> tuple[dict[int, ClientState], dict[int, ClientState]]:
        """The states from when the current round began, and those of clients that have done their work in it."""
        return self._before, self._after

    def _begin(self, round: int) -> None:
        if self._round is not None and round < self._round:
            raise ValueError(
                f"round {self._round} has begun; restore the clients' states to play round {round} again"
            )
        if round != self._round:
            self._before, self._after, self._round = self.all(), {}, round


@dataclass
class State:
    """A run after some round, as resume points and checkpoints hold it.

    Attributes:
        round: the last completed round; 0 before the first, one more than the method's rounds after fine-tuning.
        server: the method's server state.
        clients: the clients that have something to remember.
    """

    round: int
    server: ServerState
    clients: dict[int, ClientState] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """The state as one flat mapping."""
        flat = flatten({"server": self.server})
        for index, client in self.clients.items():
            flat |= {f"client/{index}/params/{name}": tensor for name, tensor in client.params.items()}
            flat |= {f"client/{index}/optimiser/{name}": tensor for name, tensor in client.optimiser.items()}
            flat |= {f"client/{index}/memory/{name}": tensor for name, tensor in client.memory.items()}
        return flat

    @classmethod
    def from_tensors(cls, round: int, flat: Tensors) -> State:
        """The state that :meth:`tensors` flattened.

        Raises:
            HetflError: a client's tensor has a name that is none of those.
        """
        state = cls(round, ServerState(group(flat, "server")))
        for key, tensor in group(flat, "client").items():
            if not (found := _OF_CLIENT.fullmatch(key)):
                raise HetflError(f"client/{key}: is no name of a client's tensor in a checkpoint or resume point")
            index, part, name = found.groups()
            getattr(state.clients.setdefault(int(index), ClientState()), part)[name] = tensor
        return state


class ResumePoints:
    """The last two states of a run on disk, outside DVC's outputs.

    A thread writes them while the next round trains. A state that takes long to write is not written in every round,
    so that a run waits little for its disk. Used as a context, which ends when the last state is on disk, whatever
    ends it; only a kill loses what was not written.

    Args:
        folder: named after the run's fingerprint, so that other settings never meet them.
        keep: how many.
        all: whether every state is written, however long it takes.
    """

    KEEP = 2
    QUICK = 0.5
    """Seconds that a state may take to be written in every round."""
    SHARE = 0.1
    """The most of a run's time that longer ones may take."""

    def __init__(self, folder: Path, keep: int = KEEP, all: bool = False) -> None:
        self.folder, self._keep, self._all = folder, keep, all
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None
        self._unwritten: State | None = None
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._unwritten is not None:
                self._begin(self._unwritten)
        finally:
            self._writer.shutdown(wait=True)
        self.flush()

    def save(self, state: State) -> None:
        """Have a state written atomically, its checksum in the file's name, and the oldest dropped.

        Of a round that was saved before, the new state stays. Returns once the state before it is on disk, so that
        never more than one waits in memory.

        Args:
            state: its tensors may not change any more.

        Raises:
            OSError: the state before it could not be written.
        """
        self.flush()
        if self._all or time.monotonic() >= self._next:
            self._begin(state)
        else:
            self._unwritten = state

    def _begin(self, state: State) -> None:
        began = time.monotonic()
        tensors = {name: tensor.cpu() for name, tensor in state.tensors().items()}
        self._unwritten = None
        self._pending = self._writer.submit(self._write, state.round, tensors, began)

    def _write(self, round: int, tensors: Tensors, began: float) -> None:
        temporary = self.folder / "writing.safetensors"
        write_tensors(temporary, tensors, {"order": json.dumps([*tensors])})  # safetensors sorts them
        checksum = sha256_file(temporary)[:16]
        written = self.folder / f"round-{round:06d}-{checksum}.safetensors"
        temporary.replace(written)
        for same in self.folder.glob(f"round-{round:06d}-*.safetensors"):
            if same != written:
                same.unlink()
        for old in self._files()[: -self._keep]:
            old.unlink()
        took = time.monotonic() - began
        self._next = began + took / self.SHARE if took > self.QUICK else began

    def flush(self) -> None:
        """Wait for the state that is being written, and raise what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def load(self, device: torch.device, recorded: Collection[int] | None = None, tidy: bool = True) -> State | None:
        """The newest state whose content is what was written; None where there is none.

        Args:
            device: where its tensors are loaded.
            recorded: the rounds that the record has, all before them included; None: any.
            tidy: whether to remove newer ones.
        """
        for path in reversed(self._files()):
            round, checksum = path.stem.split("-")[1:]
            known = recorded is None or int(round) in recorded
            try:
                if known and sha256_file(path).startswith(checksum):
                    # Copies begin where torch lets tensors begin. In the file they begin anywhere, and products of
                    # matrices that do so differ in their last bits.
                    tensors, told = read_tensors(path, device)
                    names = json.loads(told["order"]) if "order" in told else [*tensors]  # older ones lack it
                    if {*names} == tensors.keys():
                        return State.from_tensors(int(round), {name: tensors[name].clone() for name in names})
            except (HetflError, ValueError, TypeError):
                pass  # it is none of ours
            if tidy:
                path.unlink(missing_ok=True)
        return None

    def clear(self) -> None:
        """Remove everything, once nothing is being written."""
        self._unwritten = None
        self.flush()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self) -> list[Path]:
        return point_files(self.folder)


def point_files(folder: Path) -> list[Path]:
    """The resume points in a folder, the oldest first."""
    return sorted(path for path in folder.glob("round-*.safetensors") if _POINT.fullmatch(path.name))


def newest_round(folder: Path) -> int | None:
    """The round of the newest resume point in a folder; None where there is none."""
    files = point_files(folder)
    return int(files[-1].stem.split("-")[1]) if files else None
