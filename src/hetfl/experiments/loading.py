"""A finished run as something that classifies images: ``hetfl.load("runs/...")``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from hetfl.data.batches import Batch, DeviceImages, InputSpec
from hetfl.data.catalogue import entry
from hetfl.data.inputs import InputSettings
from hetfl.data.store import Subset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown
from hetfl.experiments.versions import declared
from hetfl.message import Tensors
from hetfl.methods import METHODS, Method, create
from hetfl.methods.base import Client, predicted_classes
from hetfl.models import Model, ModelOptions, build
from hetfl.models.registry import weights_checksum
from hetfl.schema import MODEL, RUN, Run, read_run
from hetfl.tensors import read_tensors
from hetfl.training.engine import same_for_all
from hetfl.training.federation import Federation, set_precision
from hetfl.training.local import LocalEngine
from hetfl.training.queries import queries_of
from hetfl.training.registry import Precision
from hetfl.training.scoring import scoring_tasks
from hetfl.training.sequential import Sequential
from hetfl.training.state import State

Images = np.ndarray | Tensor | Image.Image | Sequence[Any]
"""One image or several: uint8 arrays [H, W], [H, W, C] or [N, H, W, C]; tensors [C, H, W] or [N, C, H, W], uint8 or
floats in [0, 1]; PIL images; or a list of these, which may differ in size."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of n images.

    Attributes:
        names: the predicted class of each image; None where it is a class of the public data set, or where no score
            is finite.
        labels: [n] int64, the same as indices into the class names; -1 where no score is finite.
        scores: [n, C] float32, by the method's inference rule: logits, or minus the squared distances to prototypes.
            The largest wins. Methods that also learn the public data set's classes have their logits after the C.
    """

    names: list[str | None]
    labels: np.ndarray
    scores: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """The softmax of the scores, [n, C] float32."""
        found: np.ndarray = torch.from_numpy(self.scores).softmax(dim=1).numpy()
        return found


class LoadedRun:
    """A finished run's models, with the inference rule by which its accuracies were measured. See :func:`load`.

    Attributes:
        run: the record.
        class_names: one name per label.
        models: the architecture of each client, with its frozen weights.
        has_global: whether all clients are tested with the same parameters, those of the server's model.
    """

    def __init__(self, folder: Path, run: Run, weights: Path, device: torch.device) -> None:
        self.run, self.class_names = run, _class_names(run, run.dataset, folder)
        public = 0 if run.public is None else len(_class_names(run, run.public["dataset"], folder))
        classes = len(self.class_names)
        method = create(run.method, run.settings, classes, public, str(folder / RUN), seed=run.seed)
        options, query = method.model_options(), method.queries()
        inputs = InputSettings.model_validate(run.input)
        built = {
            name: build(name, classes, options, weights, inputs).to(device) for name in dict.fromkeys(run.models)
        }
        self._encoders: dict[str, Model] = {}
        if query is not None:
            # Features that samples are sorted by are in full precision, whatever the precision of the run.
            for name in built:
                self._encoders[name] = (
                    build(query.model, classes, ModelOptions(), weights)
                    if query.model
                    else build(name, classes, options, weights, inputs)
                ).to(device)
        precision: Precision = run.throughout("precision")[-1]
        set_precision(built.values(), precision, device)
        counts = torch.tensor(run.class_counts.train, dtype=torch.int64)
        clients = tuple(Client(k, built[name], counts[k]) for k, name in enumerate(run.models))
        federation = Federation(clients, (), classes, device, precision)
        tensors, metadata = read_tensors(folder / MODEL, device)
        # Copies begin where torch lets tensors begin; see ResumePoints.load.
        state = State.from_tensors(int(metadata["round"]), {name: t.clone() for name, t in tensors.items()})
        self._engine, self._state = LocalEngine(method, federation, Sequential(method)), state
        self._engine.restore(state.clients)
        self.models = federation.models
        self.has_global = same_for_all(method, self.models) and state.round <= method.settings.rounds

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self._engine.device

    @torch.inference_mode()
    def predict(self, images: Images, client: int | None = None) -> Predictions:
        """Classify images, resized and normalised as the run's test images were.

        Args:
            images: one or several, see :data:`Images`.
            client: whose model; None: the global one if the run has one, else client 0's.

        Raises:
            HetflError: there is no such client, or the images are of another form.
        """
        client = self._client(client)
        model = self.models[client]
        params, received = self.tested_with(client)
        found = [
            self.method.predict(model, params, batch, received)
            for part in _parts(images, model.spec)
            for data in [self._prepared(part, client)]
            for batch in data.batches(
                torch.arange(len(data), device=self.device), data.large_batch(model.largest_map)
            )
        ]
        classes = len(self.class_names)
        scores = torch.cat(found).float() if found else torch.empty(0, classes, device=self.device)
        labels = predicted_classes(scores).tolist()
        names = [self.class_names[label] if 0 <= label < classes else None for label in labels]
        return Predictions(names, np.array(labels, dtype=np.int64), scores.cpu().numpy())

    def _prepared(self, images: np.ndarray, client: int) -> DeviceImages:
        """Images uint8 [n, h, w, C] as a client's model takes them, with features by which a method sorts them."""
        model = self.models[client]
        subset = Subset(images, np.zeros(len(images), dtype=np.int64))
        data = DeviceImages([subset], model.spec, self.device)
        by, block = self.encoder(client)
        if by is not None:
            seen = data if by.spec == model.spec else DeviceImages([subset], by.spec, self.device)
            data.queries = queries_of(seen, by, block, None, None)
        return data

    def module(self, client: int | None = None) -> Classifier:
        """A client's model as a torch module, e.g. for ``torch.export`` or ``mlflow.pytorch``.

        Args:
            client: as for :meth:`predict`.

        Raises:
            HetflError: there is no such client.
        """
        return Classifier(self, self._client(client))

    def _client(self, client: int | None) -> int:
        if client is None:
            return 0
        if not 0 <= client < len(self.models):
            raise HetflError(f"client: is {client}, the run has clients 0 to {len(self.models) - 1}")
        return client

    @property
    def method(self) -> Method:
        """The run's method."""
        return self._engine.method

    def encoder(self, client: int) -> tuple[Model | None, int | None]:
        """The model by whose features a method sorts a client's samples, and the block that gives them; or None."""
        query = self.method.queries()
        return (None, None) if query is None else (self._encoders[self.models[client].name], query.block)

    def tested_with(self, client: int) -> tuple[Tensors, Tensors]:
        """The parameters that a client is tested with, and what it received for the test."""
        task = scoring_tasks(self._engine, self._state.server, self._state.round)[client]
        return self._engine.tested_with(task, Draws(self.run.seed).at(self._state.round))


class Classifier(nn.Module):
    """A client's model of a finished run with its inference rule, as a torch module; see :meth:`LoadedRun.module`.

    It stays on the run's device and does not train: its tensors are no parameters. ``torch.export`` makes it a
    program of its own, which ``mlflow.pytorch`` stores without pickle (``serialization_format="pt2"``).

    Attributes:
        class_names: one name per score.
    """

    def __init__(self, run: LoadedRun, client: int) -> None:
        super().__init__()
        self.class_names = run.class_names
        self._method, self._model = run.method, run.models[client]
        self._encoder, self._block = run.encoder(client)
        self._params, self._received = run.tested_with(client)
        # What a method draws only once, it draws here, so that an exported program has it as a constant.
        self(torch.zeros(1, 1, self._model.spec.size, self._model.spec.size, device=run.device))

    def forward(self, images: Tensor) -> Tensor:
        """The scores of images, as :class:`Predictions` has them: [N, classes] float32.

        Args:
            images: [N, C, h, w], uint8 or floats in [0, 1], of any size; C is 1, or the channels of the model.
        """
        pixels = images if images.is_floating_point() else images.float() / 255
        labels = torch.zeros(images.shape[0], dtype=torch.int64, device=images.device)
        queries = None
        if self._encoder is not None:
            queries = self._encoder.query(_normalised(pixels, self._encoder.spec), self._block)
        batch = Batch(_normalised(pixels, self._model.spec), labels, queries=queries)
        return self._method.predict(self._model, self._params, batch, self._received).float()


def beside_runs(folder: Path) -> Path:
    """The folder of weights of the project that a run's folder is in."""
    return (folder.resolve() / "../../../../../weights").resolve()


def load(folder: str | Path, device: str | torch.device = "cpu", weights: str | Path | None = None) -> LoadedRun:
    """Load a finished run, ready to classify images.

    ``hetfl.load("runs/digits-homogeneous/fedavg/fedavg/iid-s0").predict(images).names``

    Data set and partition need not be there. Pre-trained weights must be, where the method has frozen ones.

    Args:
        folder: of the run's record.
        device: where the models are.
        weights: the folder with pre-trained weights; None: ``weights/`` beside ``runs/``.

    Raises:
        HetflError: there is no finished run, or its weights are missing or others than it was trained with.
    """
    folder = Path(folder)
    run = read_run(folder)
    if run is None:
        form = "runs/<experiment>/<method>/<row>/<split>-s<seed>"
        raise HetflError(f"{folder}: has no {RUN}; name the folder of a trained cell, {form}")
    if not run.complete:
        raise HetflError(f"{folder}: training is not complete; run hetfl train {run.experiment}")
    if run.method not in METHODS:
        raise unknown("method", run.method, METHODS, str(folder / RUN))
    # A cell's path below runs/ has four parts.
    beside = Path(weights) if weights is not None else beside_runs(folder)
    for name, checksum in run.inputs.weights.items():
        if weights_checksum(name, beside) != checksum:
            raise HetflError(f"{beside}: weights of {name} are not those that {folder} was trained with; fetch them")
    now = declared()
    for key, version in run.numerics.items():
        if now.get(key) != version:
            warnings.warn(f"{folder}: is of {key} {version}, the code is {now.get(key)}", UserWarning, stacklevel=2)
    return LoadedRun(folder, run, beside, torch.device(device))


def _class_names(run: Run, dataset: str, folder: Path) -> tuple[str, ...]:
    own = run.class_names.get(dataset)
    return entry(dataset, str(folder / RUN)).class_names if own is None else tuple(own)


def _parts(images: Images, spec: InputSpec) -> Iterator[np.ndarray]:
    """Images as uint8 arrays [n, h, w, C] of one size each, in order."""
    if isinstance(images, list | tuple):
        several = [part for image in images for part in _parts(image, spec)]
        if several and all(part.shape[1:] == several[0].shape[1:] for part in several):
            several = [np.concatenate(several)]
        yield from several
        return
    if isinstance(images, Image.Image):
        images = np.asarray(images.convert("L" if spec.channels == 1 else "RGB"))
    found = _of_tensor(images) if isinstance(images, Tensor) else images
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8:
        kind = found.dtype if isinstance(found, np.ndarray) else type(found).__name__
        raise HetflError(f"images: are {kind}; give uint8 arrays, PIL images, or tensors of uint8 or of [0, 1]")
    shape = found.shape
    found = found[..., None] if found.ndim == 2 else found
    found = found[None] if found.ndim == 3 else found
    if found.ndim != 4 or found.shape[3] not in (1, 3) or not all(found.shape[1:]):
        raise HetflError(
            f"images: have the shape {[*shape]}; arrays are [H, W], [H, W, C] or [N, H, W, C], tensors [C, H, W] or "
            "[N, C, H, W], with 1 or 3 channels"
        )
    if found.shape[3] > spec.channels:
        raise HetflError("images: are in colour, the model takes grey ones; convert them, e.g. to PIL's mode L")
    if len(found):
        # torch does not take arrays that are read-only, as those of images and memory maps are.
        yield np.require(found, requirements=["C", "W"])


def _of_tensor(images: Tensor) -> np.ndarray:
    """A tensor [C, H, W] or [N, C, H, W] as a uint8 array with the channels last."""
    if images.ndim not in (3, 4):
        raise HetflError(f"images: have the shape {[*images.shape]}; tensors are [C, H, W] or [N, C, H, W]")
    if images.is_floating_point():
        if images.numel() and not (images.min() >= 0 and images.max() <= 1):
            raise HetflError("images: are floats beyond [0, 1]; give them before normalisation")
        images = (images.float() * 255).round().to(torch.uint8)
    found: np.ndarray = images.detach().cpu().movedim(-3, -1).numpy()
    return found


def _normalised(pixels: Tensor, spec: InputSpec) -> Tensor:
    """Images [N, C, h, w] in [0, 1], resized and normalised as :class:`DeviceImages` does it."""
    pixels = pixels.expand(-1, spec.channels, -1, -1)
    if tuple(pixels.shape[2:]) != (spec.size, spec.size):
        pixels = F.interpolate(pixels, (spec.size, spec.size), mode=spec.interpolation, antialias=True).clamp(0, 1)
    shape = (1, spec.channels, 1, 1)
    mean, std = (torch.tensor(values, device=pixels.device).view(shape) for values in (spec.mean, spec.std))
    return (pixels - mean) / std
