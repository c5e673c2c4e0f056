"""The engine: all that the server loop knows of clients. Tasks go out, updates and scores come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message
from hetfl.methods.base import Method
from hetfl.methods.mistakes import mistaken
from hetfl.models.base import Model
from hetfl.schema import ClassCounts
from hetfl.training.state import ClientState

Samples = Literal["test", "train"]
"""Which of its samples a client is tested on."""


@dataclass(frozen=True)
class Task:
    """What the server asks of one client.

    Attributes:
        client: its number.
        downlink: what the server sends; None where it sends nothing and the client works with what it has.
    """

    client: int
    downlink: Message | None


@dataclass(frozen=True)
class Update:
    """What a client gives back after training.

    Attributes:
        client: its number.
        uplink: what it sends; the rest is for the record.
        loss: [] mean of the objective over the samples of the last epoch, on the device.
        seconds: by ``train`` and ``statistics``; empty where it did neither.
        observed: figures by name, see :meth:`Method.observe`.
    """

    client: int
    uplink: Message
    loss: Tensor
    seconds: Mapping[str, float]
    observed: Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """What is there instead of an update of a client that did not answer, or whose answer is not valid.

    Attributes:
        client: its number.
        reason: in words that follow "client 3 ", such as ``did not answer within 60 s``, for the record.
    """

    client: int
    reason: str


@dataclass(frozen=True)
class Score:
    """A client's test.

    Attributes:
        client: its number.
        counts: [2] int64, on the device: samples that are predicted right, and samples whose scores are not finite.
        samples: that it was tested on; 0 where it could not be.
        failed: why it could not be, as in :class:`Failure`.
    """

    client: int
    counts: Tensor
    samples: int
    failed: str = ""


SHOWN = 3
"""How many failures a line names."""


def told(engine: Engine, failed: Mapping[int, str]) -> str:
    """Why clients failed, in words: the first ones with their reasons, and how many more there are."""
    shown = [f"{engine.called(client)} {reason}" for client, reason in sorted(failed.items())]
    return "; ".join(shown[:SHOWN]) + (f"; and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")


class Engine(Protocol):
    """Runs the clients of a federation, wherever they are.

    What a client keeps from round to round (:class:`ClientState`) stays behind the engine. Client work in round r
    starts from the state that the client had when round r began, so that a round that failed can be played again with
    the same numbers.
    """

    @property
    def name(self) -> str:
        """As settings and the record name it."""
        ...

    @property
    def remote(self) -> bool:
        """Whether clients belong to others than whoever runs the server, so that they can fail and may send anything.

        The server goes on without such clients, and without messages that break the method's contract, see
        :mod:`hetfl.training.contract`. Where they belong to the run, a message that breaks it is a mistake in the
        method and ends the run, and values that are not finite are what the method gives: a client whose training
        diverged sends them, and the record tells of it in ``diverged``. So runs that diverge have the same numbers in
        all engines whose clients belong to the run, while a remote client that diverges is left out of the round.
        """
        ...

    @property
    def method(self) -> Method:
        """The method that clients and server follow."""
        ...

    @property
    def models(self) -> Sequence[Model]:
        """The architecture of every client."""
        ...

    @property
    def device(self) -> torch.device:
        """Where uplinks arrive and the server computes."""
        ...

    @property
    def counts(self) -> ClassCounts | None:
        """What the server knows of the samples of remote clients; None: only what they say themselves."""
        ...

    def called(self, client: int) -> str:
        """A client as messages call it, with its node where it lives on one: ``client 3``, ``client 3 of north``."""
        ...

    def introduce(self, clients: Sequence[int], draws: Draws) -> Iterator[Update | Failure]:
        """Round 0: what clients do before they meet the server; uplinks are their registrations.

        Whatever clients had before is forgotten.
        """
        ...

    def train(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update | Failure]:
        """A round's local training of some clients: an update or a failure for each task.

        They come in any order, each as soon as its client is done.

        Args:
            tasks: each with a downlink; taken when there is room for another client.
            draws: keyed randomness of the round.
        """
        ...

    def fine_tune(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update | Failure]:
        """Local training after the last round; from then on clients keep all parameters. Uplinks are empty."""
        ...

    def test(self, tasks: Iterable[Task], draws: Draws, rule: str = "", samples: Samples = "test") -> Iterator[Score]:
        """The tests of some clients with their latest state, in the order of the tasks.

        Args:
            tasks: without a downlink where a client is tested with its own parameters.
            draws: keyed randomness of the round that was played.
            rule: of inference, one of :meth:`Method.extra_predictors`; empty: the method's own.
            samples: those that a client is tested on.
        """
        ...

    def client_states(self) -> dict[int, ClientState]:
        """The latest state of each client that has something to remember, for resume points and the final record.

        Tensors are never changed in place afterwards.
        """
        ...

    def restore(self, states: Mapping[int, ClientState]) -> None:
        """Go on from what :meth:`client_states` gave."""
        ...

    def close(self) -> None:
        """Give back what is held outside this process."""
        ...


def own_names(method: Method, model: Model) -> set[str]:
    """The parameters that a client keeps to itself."""
    # Running statistics of batch normalisation stay with their client in every method.
    return set(model.names([*method.keeps(), "buffers"]))


def check_groups(method: Method, model: Model) -> None:
    """Check that a model has the parameter groups that a method names.

    Raises:
        MistakeError: it has not.
    """
    phases = [*method.phases(0), *method.phases(1), *method.fine_tuning()]
    named = [(f"phase {phase.name!r} trains", phase.trains) for phase in phases]  # several may share a name
    for where, groups in (*named, ("keeps returned", method.keeps())):
        try:
            model.names(groups)
        except HetflError as error:
            raise mistaken(method, f"{where} {', '.join(groups)}: {error}") from error


def same_for_all(method: Method, models: Sequence[Model]) -> bool:
    """Whether all clients have the same model and parameters once they took over what the server sends."""
    alike = len(dict.fromkeys(models)) == 1 and not own_names(method, models[0])
    return alike and method.evaluates == "global" and not method.personal
