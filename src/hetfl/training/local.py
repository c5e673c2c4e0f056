"""The engine whose clients are in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import NONE, Method, Phase, Statistics, Work, predicted_classes
from hetfl.methods.mistakes import mistaken
from hetfl.models.base import Model
from hetfl.training.client_run import ClientRun, Trainer, linked
from hetfl.training.engine import Samples, Score, Task, Update, check_groups, own_names, same_for_all
from hetfl.training.federation import Federation
from hetfl.training.state import ClientState, ClientStates
from hetfl.training.statistics import statistics_of


@dataclass(frozen=True)
class Predictions:
    """A client's predictions.

    Attributes:
        client: its number.
        predicted, true: [n] int64, classes of its samples. Predicted ones from the data set's number of classes on
            are none of them, nor is :data:`NONE`, which stands for scores that are not finite.
    """

    client: int
    predicted: Tensor
    true: Tensor


class LocalEngine:
    """Holds clients with their data and private state, and has a trainer train them; an :class:`Engine`.

    Args:
        method: that they follow.
        federation: the clients.
        trainer: how they are trained.
        name: of the engine, as settings and the record name it.

    Raises:
        MistakeError: a model has not the parameter groups that the method names.
    """

    def __init__(self, method: Method, federation: Federation, trainer: Trainer, name: str = "") -> None:
        for model in dict.fromkeys(federation.models):
            check_groups(method, model)
        self.method, self.federation, self.trainer, self.name = method, federation, trainer, name
        self._states = ClientStates()
        self._of_stored_size: dict[DeviceImages, DeviceImages] = {}

    remote = False
    counts = None

    @property
    def models(self) -> Sequence[Model]:
        """The architecture of every client."""
        return self.federation.models

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.federation.device

    def called(self, client: int) -> str:
        """See :meth:`Engine.called`."""
        return f"client {client}"

    def client_states(self) -> dict[int, ClientState]:
        """See :meth:`Engine.client_states`."""
        return self._states.all()

    def restore(self, states: Mapping[int, ClientState]) -> None:
        """See :meth:`Engine.restore`."""
        self._states = ClientStates(states)

    def close(self) -> None:
        """See :meth:`Engine.close`; there is nothing."""

    def state(self, client: int) -> ClientState:
        """A client's latest state."""
        return self._states.after(client)

    def keep(self, round: int, states: Mapping[int, ClientState]) -> None:
        """Take over what some clients have after their work in a round, beside what they had before it."""
        for client, state in states.items():
            self._states.keep(client, round, state)

    def introduce(self, clients: Sequence[int], draws: Draws) -> Iterator[Update]:
        """See :meth:`Engine.introduce`."""
        self.restore({})
        phases = self.method.phases(0)
        if not phases and self.method.statistics_source(0) == "none":
            nothing = torch.zeros((), device=self.device)
            for client in clients:
                work = Work(self.federation.clients[client], draws.at(0), {}, {}, {}, Statistics(), 0)
                yield Update(client, self.method.register(work), nothing, {}, {})
            return
        runs = (self._run(k, ClientState(self._initial(k, draws)), Message(), draws.at(0)) for k in clients)
        for run in self.trainer.train(runs, linked(phases), draws.at(0)):
            update, state = self._finish(run, draws.at(0))
            # Who only looked at its data is as it was, and is made anew when it takes part.
            if phases:
                self._states.keep(update.client, 0, state)
            yield update

    def train(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update]:
        """See :meth:`Engine.train`."""
        for run in self._trained(tasks, self.method.phases(draws.round), draws):
            update, state = self._finish(run, draws)
            self._states.keep(update.client, draws.round, state)
            yield update

    def fine_tune(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update]:
        """See :meth:`Engine.fine_tune`."""
        for run in self._trained(tasks, self.method.fine_tuning(), draws):
            self._states.keep(run.client.index, draws.round, ClientState(run.params))
            seconds = {"train": run.seconds, "statistics": 0.0}
            yield Update(run.client.index, Message(), run.loss, seconds, {})

    def test(self, tasks: Iterable[Task], draws: Draws, rule: str = "", samples: Samples = "test") -> Iterator[Score]:
        """See :meth:`Engine.test`."""
        for found in self.predictions(tasks, draws, rule, samples):
            counts = torch.stack([found.predicted == found.true, found.predicted == NONE]).sum(dim=1)
            yield Score(found.client, counts, len(found.true))

    def predictions(
        self, tasks: Iterable[Task], draws: Draws, rule: str = "", samples: Samples = "test"
    ) -> Iterator[Predictions]:
        """What clients predict for their samples, with the arguments of :meth:`Engine.test`.

        Where all clients are tested with the same parameters, every image is looked at once, whoever has it.
        """
        tasks = list(tasks)
        method = self.method.extra_predictors(draws.round)[rule] if rule else self.method
        data = [self.federation.data[task.client] for task in tasks]
        own = [(d.train_images, d.train) if samples == "train" else (d.test_images, d.test) for d in data]
        sent = all(task.downlink is not None for task in tasks)
        if not (sent and same_for_all(self.method, self.models)) or len({images for images, _ in own}) > 1:
            for task, (images, index) in zip(tasks, own, strict=True):
                params, received = self.tested_with(task, draws)
                model = self.models[task.client]
                found = predict(method, model, params, received, images, index)
                yield Predictions(task.client, found, images.labels[index])
            return
        images = own[0][0]
        indices = {id(index): index for _, index in own}
        union, places = torch.cat(list(indices.values())).unique(return_inverse=True)
        params, received = self.tested_with(tasks[0], draws)
        found = predict(method, self.models[tasks[0].client], params, received, images, union)[places]
        sizes = [len(index) for index in indices.values()]
        of_index = dict(zip(indices, found.split(sizes), strict=True))
        for task, (_, index) in zip(tasks, own, strict=True):
            yield Predictions(task.client, of_index[id(index)], images.labels[index])

    def tested_with(self, task: Task, draws: Draws) -> tuple[dict[str, Tensor], Tensors]:
        """The parameters that a client is tested with, and what it received for the test."""
        params = self._states.after(task.client).params or self._initial_own(task.client, draws)
        if task.downlink is None:
            return params, {}
        received = self.method.receive(task.downlink, {})
        return adopted(self.method, self.models[task.client], params, received), received

    def begin(self, task: Task, draws: Draws) -> ClientRun:
        """A client that has taken over what the server sent it and is ready to train in a round."""
        assert task.downlink is not None, "training begins with a downlink"
        return self._run(task.client, self._states.before(task.client, draws.round), task.downlink, draws)

    def _trained(self, tasks: Iterable[Task], phases: Sequence[Phase], draws: Draws) -> Iterator[ClientRun]:
        return self.trainer.train((self.begin(task, draws) for task in tasks), linked(phases), draws)

    def _run(self, index: int, state: ClientState, downlink: Message, draws: Draws) -> ClientRun:
        client, data = self.federation.clients[index], self.federation.data[index]
        received = self.method.receive(downlink, state.memory)
        kept = state.params or self._initial_own(index, draws)
        params = adopted(self.method, client.model, kept, received)
        slots = dict(state.optimiser)
        if self.method.resets_momentum:
            slots = {slot: t for slot, t in slots.items() if params[name := slot.split("/")[1]] is kept.get(name)}
        return ClientRun(client, data, received, params, params, slots, torch.zeros((), device=self.device))

    def _finish(self, run: ClientRun, draws: Draws) -> tuple[Update, ClientState]:
        """What a client sends and what it remembers after its training."""
        began, client, method = time.perf_counter(), run.client, self.method
        statistics = statistics_of(method, run, draws, self._stored)
        work = Work(client, draws, run.received, run.before, run.params, statistics, run.steps)
        work = replace(work, memory=method.remember(work))
        uplink = method.uplink(work) if draws.round else method.register(work)
        own = own_names(method, client.model)
        kept = {name: tensor for name, tensor in run.params.items() if name in own}
        state = ClientState(kept, run.slots, dict(work.memory))
        seconds = {"train": run.seconds, "statistics": time.perf_counter() - began}
        return Update(client.index, uplink, run.loss, seconds, method.observe(work)), state

    def _initial(self, client: int, draws: Draws) -> dict[str, Tensor]:
        return self.method.initial(self.models[client], draws.at(0), client)

    def _initial_own(self, client: int, draws: Draws) -> dict[str, Tensor]:
        """The parameters a client brings to its first round, without those that come with the downlink."""
        own = own_names(self.method, self.models[client])
        return {n: t for n, t in self._initial(client, draws).items() if n in own} if own else {}

    def _stored(self, images: DeviceImages) -> DeviceImages:
        if images not in self._of_stored_size:
            self._of_stored_size[images] = images.stored()
        return self._of_stored_size[images]


def adopted(method: Method, model: Model, kept: Tensors, received: Tensors) -> dict[str, Tensor]:
    """A client's parameters after it took over what it received.

    Raises:
        MistakeError: one of them has another shape than the client's model.
    """
    params = method.adopt(kept, received)
    if wrong := model.misfit(params):
        raise mistaken(method, f"after the client took over what the server sent, {wrong}")
    return params


@torch.inference_mode()
def predict(
    method: Method, model: Model, params: Tensors, received: Tensors, images: DeviceImages, index: Tensor
) -> Tensor:
    """The classes [n] int64 that a method's inference rule predicts for the images at ``index`` [n].

    See :class:`Predictions` for what is no class.

    Raises:
        MistakeError: the rule gives something else than a score per image and class.
    """
    parts = []
    for batch in images.batches(index, images.large_batch(model.largest_map)):
        scores, classes = method.predict(model, params, batch, received), method.num_classes
        if len(scores) != len(batch.labels) or scores.shape[1] < classes:
            wanted = f"a row for each image with a score for each class, [{len(batch.labels)}, {classes}]"
            raise mistaken(method, f"predict returned scores {list(scores.shape)}; it should return {wanted}")
        parts.append(predicted_classes(scores))
    return torch.cat(parts) if parts else index.new_empty(0)
