"""What figures are drawn from: runs and their evaluations, partitions, data sets and backbones."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hetfl.errors import HetflError, one_line
from hetfl.experiments.plan import Params, Workspace
from hetfl.files import read_json
from hetfl.schema import PER_CLASS
from hetfl.tables.records import Record, Records
from hetfl.tables.spec import Entry
from hetfl.tensors import read_tensors

if TYPE_CHECKING:
    import torch

    from hetfl.data.store import Dataset
    from hetfl.models import Model


class Holdings(NamedTuple):
    """Who holds how much of which class.

    Attributes:
        counts: training and test samples together, int64 [clients, classes].
        class_names: one for each class.
    """

    counts: np.ndarray
    class_names: list[str]


class Sources:
    """Reads what figures show from a checkout.

    Attributes:
        notes: of each partition, data set or backbone that was asked for and is missing, the line that says what to
            do about it.
    """

    def __init__(self, workspace: Workspace, params: Params) -> None:
        self.workspace, self.params, self.notes = workspace, params, list[str]()
        self._records = Records(workspace, params)

    def records(self, entry: Entry, whole: bool = False) -> list[Record]:
        """The records of a cell's seeds that are there; if ``whole``, those with all files of their evaluation."""
        found = (self._records.get(entry, seed) for seed in entry.seeds)
        return [record for record in found if record is not None and (record.whole or not whole)]

    def one(self, entry: Entry) -> Record | None:
        """The record of the first seed whose run did not diverge; if all did, that of the first seed.

        Seeds after one that is not there are not looked at. None: there is none, or it lacks files of its evaluation.
        """
        there = [*takewhile(bool, (self._records.get(entry, seed) for seed in entry.seeds))]
        chosen = next((record for record in there if record and record.diverged is None), next(iter(there), None))
        return chosen if chosen and chosen.whole else None

    def percents(self, entry: Entry, figure: str) -> list[float]:
        """A figure of the evaluation of each seed that is there, a fraction in the record, in percent.

        Raises:
            HetflError: an evaluation has none.
        """
        return [100 * record.measured(figure, entry.reading) for record in self.records(entry)]

    def count(self, entries: Iterable[Entry]) -> tuple[int, int]:
        """How many of some cells are there, and how many there could be; each seed is one."""
        wanted = {entry.path(seed): (entry, seed) for entry in entries for seed in entry.seeds}
        found = [self._records.get(entry, seed) for entry, seed in wanted.values()]
        return sum(record is not None for record in found), len(wanted)

    def by_class(self, record: Record) -> tuple[list[str], np.ndarray]:
        """The classes' names, and the accuracy of each in percent, averaged over clients that have test samples.

        Raises:
            HetflError: the evaluation lacks the file, or it is no table with classes and accuracies.
        """
        import pandas as pd  # commands that list figures start without it

        path = self._evaluation(record) / PER_CLASS
        again = f"run hetfl evaluate {record.path} --again"
        types = {"class": str, "accuracy": float}
        try:
            lines = pd.read_csv(
                path, usecols=[*types], dtype=types, keep_default_na=False, na_values={"accuracy": [""]}
            )
        except FileNotFoundError as error:
            raise HetflError(f"{path}: does not exist; {again}") from error
        except ValueError as error:
            wanted = "a table with the columns class and accuracy, a number in each line of the latter"
            raise HetflError(f"{path}: is not {wanted} ({one_line(error)}); {again}") from error
        means = 100 * lines.groupby("class", sort=False).accuracy.mean()
        return list(means.index), means.to_numpy()

    def stored(self, record: Record, what: Literal["prototypes", "groups"]) -> dict[str, np.ndarray]:
        """Arrays of the record's evaluation.

        Args:
            record: of the run.
            what: prototypes and features, see :func:`hetfl.experiments.evaluation.representations`; how the method
                sorts training samples, see :func:`hetfl.experiments.evaluation.groups`.

        Raises:
            HetflError: the evaluation stored none.
        """
        tensors, _ = read_tensors(self._evaluation(record) / f"{what}.safetensors")
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def partition(self, dataset: str, split: str, seed: int | None = None) -> Holdings | None:
        """A partition, by default of the data set's first seed; None and a note while it is not there."""
        seed = self.params.partitions[dataset].seeds[0] if seed is None else seed
        path = self.workspace.partition(dataset, split, seed) / "card.json"
        if not path.exists():
            self._note(f"{path}: does not exist; make it with dvc repro partition@{dataset}")
            return None
        card = read_json(path)
        # Clients may have no test samples of their own.
        return Holdings(np.sum([*card["class_counts"].values()], axis=0), card["class_names"])

    def dataset(self, name: str) -> Dataset | None:
        """A prepared data set; None and a note while it is not there."""
        from hetfl.data.store import read_dataset

        folder = self.workspace.dataset(name)
        if (folder / "card.json").exists():
            return read_dataset(folder)
        self._note(f"{folder}: does not exist; make it with dvc repro download-{name}")
        return None

    def backbone(self, experiment: str) -> tuple[Dataset, Model, torch.device] | None:
        """An experiment's data set, its first model and the device; None and notes while one is missing.

        Raises:
            HetflError: the weights are damaged or of another model.
        """
        import torch

        from hetfl.experiments.schedule import pick_device
        from hetfl.models import ModelOptions, build
        from hetfl.models.registry import missing_weights, weights_file

        settings, compute = self.params.experiments[experiment], self.params.compute
        dataset, model = self.dataset(settings.dataset), self.params.models[settings.models][0]
        path = weights_file(model, self.workspace.weights)
        if path is not None and not path.exists():
            self._note(missing_weights(model, path))
            return None
        if dataset is None:
            return None
        torch.set_num_threads(compute.threads)
        options, device = ModelOptions(prompts="inserted"), pick_device(compute.device)
        built = build(model, dataset.num_classes, options, self.workspace.weights, settings.input)
        return dataset, built.to(device, torch.float32), device

    def _evaluation(self, record: Record) -> Path:
        return self.workspace.evaluations / Path(record.path).relative_to(self.workspace.runs.name)

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)
