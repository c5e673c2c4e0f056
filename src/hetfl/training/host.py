"""A host: clients that live in one process, which answers what a server asks of them, in bytes.

A question and its answer are safetensors with a JSON header. Every distinct tensor is in them once, however many
clients share it. Nothing is pickled, and what does not have the declared form is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hetfl.draws import Draws
from hetfl.errors import HetflError, one_line
from hetfl.files import write_bytes
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.mistakes import MistakeError
from hetfl.methods.registry import mistake
from hetfl.training.contract import Kind as Sent
from hetfl.training.contract import check_downlink, check_form
from hetfl.training.engine import Samples, Score, Task, Update
from hetfl.training.local import LocalEngine
from hetfl.training.state import ClientState, ResumePoints, State

Kind = Literal["introduce", "train", "fine_tune", "test", "restore"]
"""The parts of :class:`hetfl.training.engine.Engine` that a server asks for."""

SENDS: dict[Kind, Sent] = {"introduce": "registration", "train": "uplink", "fine_tune": "nothing"}
"""What clients send after each kind of work."""

LIMIT = 8 * 2**30
"""Bytes of the largest request or reply that is read."""
POINTS = ResumePoints.KEEP + 1
"""Rounds whose states a host keeps on disk: those of the server's resume points, and the one that is being played."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Question(_Strict):
    """What is asked; a reply says which question it answers.

    Attributes:
        run: the run's fingerprint, so that hosts of different runs never take part in one.
        kind: which part of the engine.
        round: of the run. Client work starts from the state that the client had when this round began.
        rule, samples: of a test, see :meth:`Engine.test`.
        states: whether replies bring the clients' private states, where they may leave their hosts.
    """

    run: str = ""
    kind: Kind
    round: int = Field(ge=0)
    rule: str = ""
    samples: Samples = "test"
    states: bool = False


@dataclass(frozen=True)
class Request:
    """What a server asks of one host.

    Attributes:
        question: the same for all clients.
        tasks: of the clients that are asked.
        states: private states to go on from, of a request to restore. It has no reply. In round 0 it replaces what
            the host's clients have; in a later round it adds what some of them have after that round.
    """

    question: Question
    tasks: Sequence[Task] = ()
    states: Mapping[int, ClientState] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The request as safetensors."""
        parts = _Parts()
        sent: dict[tuple[tuple[str, int], ...], int] = {}
        tasks = []
        for task in self.tasks:
            downlink = None
            if task.downlink is not None:
                downlink = sent.setdefault(tuple(parts.add(task.downlink).items()), len(sent))
            tasks.append((task.client, downlink))
        return parts.to_bytes(
            {
                "question": self.question.model_dump(),
                "downlinks": [dict(downlink) for downlink in sent],
                "tasks": tasks,
                "states": _states_header(self.states, parts),
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes, device: torch.device | str = "cpu", limit: int = LIMIT) -> Request:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            ValueError: it is no request, or larger than ``limit``.
        """
        head, tensors = _read(content, _RequestHead, limit)
        with _refused():
            downlinks = [Message(tensors(downlink, device)) for downlink in head.downlinks]
            tasks = [Task(client, None if at is None else downlinks[at]) for client, at in head.tasks]
            return cls(head.question, tasks, {k: state.read(tensors, device) for k, state in head.states.items()})


@dataclass(frozen=True)
class Reply:
    """What a host answers, for all or some of the clients that it was asked for.

    Attributes:
        question: that it answers.
        updates: of clients that trained.
        scores: of clients that were tested.
        states: private states of clients that trained, if they were asked for.
        error: in one line, why the host cannot answer for the other clients.
    """

    question: Question
    updates: Sequence[Update] = ()
    scores: Sequence[Score] = ()
    states: Mapping[int, ClientState] = field(default_factory=dict)
    error: str | None = None

    def to_bytes(self) -> bytes:
        """The reply as safetensors."""
        parts = _Parts()
        return parts.to_bytes(
            {
                "question": self.question.model_dump(),
                "updates": [
                    {
                        "client": update.client,
                        "uplink": parts.add(update.uplink),
                        "loss": parts.put(update.loss),
                        "seconds": dict(update.seconds),
                        "observed": dict(update.observed),
                    }
                    for update in self.updates
                ],
                "scores": [
                    {"client": score.client, "counts": score.counts.tolist(), "samples": score.samples}
                    for score in self.scores
                ],
                "states": _states_header(self.states, parts),
                "error": self.error,
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes, device: torch.device | str = "cpu", limit: int = LIMIT) -> Reply:
        """Read what :meth:`to_bytes` wrote; private states stay on the CPU.

        Raises:
            ValueError: it is no reply, or larger than ``limit``.
        """
        head, tensors = _read(content, _ReplyHead, limit)
        with _refused():
            updates = [
                Update(
                    one.client,
                    Message(tensors(one.uplink, device)),
                    tensors({"loss": one.loss}, device)["loss"],
                    one.seconds,
                    one.observed,
                )
                for one in head.updates
            ]
            for one in head.scores:
                if sum(one.counts) > one.samples:
                    raise ValueError(f"{sum(one.counts)} of {one.samples} samples are right or not finite")
            scores = [Score(one.client, torch.tensor(one.counts, device=device), one.samples) for one in head.scores]
            states = {client: state.read(tensors, "cpu") for client, state in head.states.items()}
            return cls(head.question, updates, scores, states, head.error)

    @staticmethod
    def question_of(content: bytes) -> Question:
        """The question that a reply answers, without its tensors being read.

        Raises:
            ValueError: it is no reply, or larger than :data:`LIMIT`.
        """
        return _read(content, _ReplyHead, LIMIT)[0].question

    @classmethod
    def whole(cls, parts: Sequence[Reply]) -> Reply:
        """Several parts of an answer as one; there is at least one."""
        return cls(
            parts[0].question,
            [update for part in parts for update in part.updates],
            [score for part in parts for score in part.scores],
            {client: state for part in parts for client, state in part.states.items()},
            next((part.error for part in parts if part.error), None),
        )


class Host:
    """Answers a server for the clients of an engine.

    Args:
        engine: holds the clients that live here; others of the federation may be in it without data.
        draws: keyed randomness of the run.
        run: its fingerprint; requests of other runs are refused.
        folder: where the clients' states are kept from round to round, and the answers of the newest round; without
            one they are gone with the process, and a question that is asked twice is worked on twice.
        trusts: whether the server belongs to whoever has the clients. Elsewhere private states neither go to it nor
            come from it, what it asks and sends must be what its method asks and sends, and a message leaves only if
            it has the names, types and shapes that its method declares.
        clients: those that live here; None: all of the engine's.
    """

    def __init__(
        self,
        engine: LocalEngine,
        draws: Draws,
        run: str = "",
        folder: Path | None = None,
        trusts: bool = True,
        clients: Collection[int] | None = None,
    ) -> None:
        self.engine, self.draws, self.run, self.folder, self.trusts = engine, draws, run, folder, trusts
        self.clients = range(len(engine.models)) if clients is None else clients
        self._points = None if folder is None else ResumePoints(folder / "states", keep=POINTS, all=True)
        # The rounds of the states from which clients begin, and of their latest ones; None before the first request.
        self._begun: tuple[int, int] | None = None

    def answer(self, content: bytes) -> bytes:
        """The whole reply to a request; empty where a request has none.

        Asked again in the round that it was answered in, a host with a folder gives the same bytes.

        Raises:
            ValueError: it is no request.
        """
        kept = self._kept(content)
        if kept is not None and kept.exists():
            return kept.read_bytes()
        replies = list(self.parts(content))
        if not replies:
            return b""
        found = Reply.whole(replies).to_bytes()
        if kept is not None and not any(reply.error for reply in replies):
            for other in kept.parent.glob("*"):
                if other.name.split("-")[0] != kept.name.split("-")[0]:
                    other.unlink()
            write_bytes(kept, found)
        return found

    def parts(self, content: bytes) -> Iterator[Reply]:
        """The reply to a request in parts, each as soon as a client is done, and before states are on disk.

        Raises:
            ValueError: it is no request.
        """
        request = Request.from_bytes(content, self.engine.device)
        question = request.question
        try:
            if question.run != self.run:
                raise HetflError(f"the request is of the run {question.run!r}, this host takes part in {self.run!r}")
            yield from self._parts(request)
        except Exception as error:
            if not (known := error if isinstance(error, HetflError) else mistake(error)):
                raise
            yield Reply(question, error=str(known))

    def _parts(self, request: Request) -> Iterator[Reply]:
        question, engine = request.question, self.engine
        draws = self.draws.at(question.round)
        if not self.trusts:
            self._check_request(request)
        if question.kind == "restore":
            if question.round:
                engine.keep(question.round, request.states)
            else:
                engine.restore(request.states)
            return
        if question.kind == "test":
            self._go_to(question.round + 1)
            scores = engine.test(request.tasks, draws, question.rule, question.samples)
            yield Reply(question, scores=list(scores))
            return
        if question.kind == "introduce":
            if self._points:
                self._points.clear()
            updates = engine.introduce([task.client for task in request.tasks], draws)
        else:
            self._go_to(question.round)
            work = engine.train if question.kind == "train" else engine.fine_tune
            updates = work(request.tasks, draws)
        for update in updates:
            if not self.trusts:
                self._check(question.kind, update)
            states = {update.client: engine.state(update.client)} if question.states else {}
            yield Reply(question, updates=[update], states=states)
        self._keep(question.round)

    def _check_request(self, request: Request) -> None:
        """Check what a server asks that does not belong to whoever has the clients.

        Raises:
            HetflError: its method does not ask for it, or it wants what a node keeps to itself.
        """
        question, method, models = request.question, self.engine.method, self.engine.models
        last = method.settings.rounds + 1
        if others := [task.client for task in request.tasks if task.client not in self.clients]:
            raise HetflError(f"node.clients: has no client {others[0]}, which server.nodes lists at the server")
        if question.states:
            raise HetflError("this node gives no private state")
        if question.kind == "restore":
            raise HetflError("this node takes no private state")
        begins = question.kind == "introduce"
        if question.round > last or (question.kind != "test" and begins != (question.round == 0)):
            raise HetflError(f"the server asks for {question.kind} in round {question.round}, of rounds up to {last}")
        if question.rule and question.rule not in method.extra_predictors(question.round):
            raise HetflError(
                f"the server asks for the rule {question.rule[:60]!r}, which {method.title} does not have"
            )
        for task in request.tasks:
            if task.downlink is None:
                if question.kind in ("train", "fine_tune"):
                    raise HetflError(f"the server sent client {task.client} nothing to {question.kind} with")
                continue
            try:
                check_downlink(method, models[task.client], task.downlink)
            except MistakeError:
                raise
            except HetflError as error:
                raise HetflError(f"the server {error}") from error

    def _check(self, kind: Kind, update: Update) -> None:
        """Check what a client is about to send.

        Raises:
            HetflError: its method does not declare it.
        """
        engine, client = self.engine, update.client
        try:
            check_form(engine.method, engine.models[client], SENDS[kind], update.uplink)
        except MistakeError:
            raise
        except HetflError as error:
            raise HetflError(f"a message of client {client} was held back: it {error}") from error

    def _go_to(self, round: int) -> None:
        """Have the clients' states on disk, if that is where they are kept, as they were when a round began.

        What some of them have after that round stays. Rounds after it have not been: the server repeats them.

        Raises:
            HetflError: the states are not there.
        """
        if self._points is None or (self._begun and self._begun[0] < round and self._begun[1] <= round):
            return
        device = self.engine.device
        before = after = self._points.load(device, range(round + 1))
        if after is not None and after.round == round:
            before = self._points.load(device, range(round), tidy=False)
        if after is None or before is None:
            lost = f"has no states of clients from before round {round}"
            raise HetflError(f"{self.folder}: {lost}; a host that lost them cannot go on")
        self.engine.restore(before.clients)
        if after is not before:
            self.engine.keep(round, after.clients)
        self._begun = before.round, after.round

    def _keep(self, round: int) -> None:
        """Write the clients' states after their work in a round."""
        if self._begun is None or not round:
            self._begun = -1, round
        elif round > self._begun[1]:
            self._begun = self._begun[1], round
        if self._points:
            self._points.save(State(round, ServerState(), self.engine.client_states()))
            self._points.flush()

    def _kept(self, content: bytes) -> Path | None:
        """Where the answer to a request about work is kept."""
        if self.folder is None:
            return None
        question = _read(content, _RequestHead, LIMIT)[0].question
        if question.kind in ("test", "restore"):
            return None
        return (
            self.folder / "answers" / f"{question.round:06d}-{hashlib.sha256(content).hexdigest()[:32]}.safetensors"
        )


_Number = Annotated[int, Field(ge=0)]


class _StateHead(_Strict):
    params: dict[str, _Number]
    optimiser: dict[str, _Number]
    memory: dict[str, _Number]

    def read(self, tensors: _Reader, device: torch.device | str) -> ClientState:
        parts = (self.params, self.optimiser, self.memory)
        return ClientState(*(tensors(part, device) for part in parts))


class _RequestHead(_Strict):
    question: Question
    downlinks: list[dict[str, _Number]]
    tasks: list[tuple[_Number, _Number | None]]
    states: dict[_Number, _StateHead]


class _UpdateHead(_Strict):
    client: _Number
    uplink: dict[str, _Number]
    loss: _Number
    seconds: dict[str, float]
    observed: dict[str, Any]


class _ScoreHead(_Strict):
    client: _Number
    counts: tuple[_Number, _Number]
    samples: _Number


class _ReplyHead(_Strict):
    question: Question
    updates: list[_UpdateHead]
    scores: list[_ScoreHead]
    states: dict[_Number, _StateHead]
    error: str | None


def _states_header(states: Mapping[int, ClientState], parts: _Parts) -> dict[int, dict[str, dict[str, int]]]:
    return {
        client: {name: parts.add(getattr(state, name)) for name in ("params", "optimiser", "memory")}
        for client, state in states.items()
    }


def place(tensor: Tensor) -> tuple[Any, ...]:
    """What tensors have in common that share all their memory, as long as one of them is held."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device


class _Parts:
    """Tensors by number, each distinct one once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._tensors: list[Tensor] = []

    def put(self, tensor: Tensor) -> int:
        number = self._numbers.setdefault(place(tensor), len(self._tensors))
        if number == len(self._tensors):
            self._tensors.append(tensor)
        return number

    def add(self, tensors: Tensors) -> dict[str, int]:
        return {name: self.put(tensor) for name, tensor in tensors.items()}

    def to_bytes(self, head: Mapping[str, Any]) -> bytes:
        tensors: dict[str, Tensor] = {}
        storages: set[int] = set()
        for number, tensor in enumerate(self._tensors):
            value = tensor.detach().cpu().contiguous()
            # safetensors refuses tensors that share a part of their memory.
            storage = value.untyped_storage().data_ptr()
            tensors[str(number)] = value.clone() if storage in storages else value
            storages.add(storage)
        return save(tensors, {"hetfl": json.dumps(head)})


_Reader = Callable[[Mapping[str, int], "torch.device | str"], dict[str, Tensor]]
"""Gives tensors by name from their numbers, on a device."""
H = TypeVar("H", bound=_Strict)


@contextmanager
def _refused() -> Iterator[None]:
    """Report what does not have the declared form as a ValueError in one line."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"is no message of hetfl: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except torch.OutOfMemoryError:
        raise  # which is a RuntimeError, as what torch says of shapes that no tensor can have
    except (SafetensorError, LookupError, TypeError, OverflowError, RuntimeError, ValueError) as error:
        raise ValueError(f"is no message of hetfl ({one_line(error)})") from error


def _read(content: bytes, kind: type[H], limit: int) -> tuple[H, _Reader]:
    """The header of a message, and its tensors by number."""
    if len(content) > limit:
        raise ValueError(f"has {len(content)} bytes, and {limit} are the most that is read")
    with _refused():
        size = int.from_bytes(content[:8], "little")
        head = kind.model_validate_json(json.loads(content[8 : 8 + size])["__metadata__"]["hetfl"])
    found: dict[str, Tensor] = {}
    on: dict[tuple[int, str], Tensor] = {}

    def read(numbers: Mapping[str, int], device: torch.device | str) -> dict[str, Tensor]:
        if not found:
            found.update(load(content))
        for number in numbers.values():
            # Copies begin where torch lets tensors begin, as they do where they were made; in a file they begin
            # anywhere, and products of matrices that do so differ in their last bits.
            if (number, str(device)) not in on:
                on[number, str(device)] = found[str(number)].clone().to(device)
        return {name: on[number, str(device)] for name, number in numbers.items()}

    return head, read
