"""What runs read: data sets, partitions and weights; whether they are here, and where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from hetfl.data.catalogue import CATALOGUE
from hetfl.data.entry import Entry
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.inputs import InputSettings
from hetfl.data.sets.five import SETS
from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell, Params, Workspace, weights_read
from hetfl.files import folder_bytes
from hetfl.models.base import ModelOptions
from hetfl.models.outline import outline
from hetfl.models.registry import missing_weights, origin_of, weights_file, weights_path

BUNDLED = "part of scikit-learn"
"""The origin of a data set that needs no download."""


@dataclass(frozen=True)
class Need:
    """One thing that runs read.

    Attributes:
        kind: what it is.
        name: of the data set, of the partition as ``<data set>/<split>-s<seed>``, or of the model.
        there: whether it is here.
        bytes: its size here; else of what is to be fetched; None if unknown.
        origin: where it comes from.
        lack: one line that says what is missing and how to get it.
    """

    kind: Literal["data set", "partition", "weights"]
    name: str
    there: bool
    bytes: int | None
    origin: str
    lack: str

    @property
    def source(self) -> str:
        """Origin and size, for a line about what is missing."""
        from rich.filesize import decimal

        size = "" if self.bytes is None else f", {decimal(self.bytes)}"
        return f"{self.origin}{size}"


def needs(cells: Sequence[Cell], params: Params, workspace: Workspace) -> list[Need]:
    """What these cells read, each thing once: data sets, then partitions, then weights."""
    public = [cell.public.dataset for cell in cells if cell.public]
    sets = dict.fromkeys([*(cell.dataset for cell in cells), *public])
    parts = dict.fromkeys((cell.dataset, cell.split, cell.seed) for cell in cells)
    models = dict.fromkeys(name for cell in one_of_each_row(cells) for name in weights_read(cell))
    return [
        *(_dataset(name, params, workspace) for name in sets),
        *(_partition(*part, workspace) for part in parts),
        *(_weights(name, params, workspace) for name in models if weights_file(name, workspace.weights)),
    ]


def check_needs(cells: Sequence[Cell], params: Params, workspace: Workspace) -> None:
    """Check that everything that cells read is here.

    Raises:
        HetflError: something is missing; one line for each thing, which for a data set stands for its partitions too.
    """
    missing = [need for need in needs(cells, params, workspace) if not need.there]
    gone = {need.name for need in missing if need.kind == "data set"}
    partitions = {need.name.partition("/")[0] for need in missing if need.kind == "partition"}
    lines = []
    for need in missing:
        if need.kind == "partition" and need.name.partition("/")[0] in gone:
            continue
        make = f"dvc repro download-{need.name}"
        both = f"{make} partition@{need.name}" if need.name in partitions else make
        lines.append(f"{need.lack.replace(make, both)} ({need.source})")
    if lines:
        raise HetflError("\n".join(lines))


def one_of_each_row(cells: Iterable[Cell]) -> list[Cell]:
    """One cell of each row."""
    return list({(cell.experiment, cell.row): cell for cell in cells}.values())


def _dataset(name: str, params: Params, workspace: Workspace) -> Need:
    folder = workspace.dataset(name)
    card = folder / "card.json"
    if card.exists():
        return Need("data set", name, True, folder_bytes(folder), str(folder.relative_to(workspace.root)), "")
    lack = f"{card}: the data set is missing; make it with dvc repro download-{name}"
    if name not in CATALOGUE:
        source = params.data.own[name].path
        if not (workspace.root / source).is_dir():
            lack = f"params.yaml: data.{name}.path: {source!r} is not a folder; name the one of the images"
        return Need("data set", name, False, None, f"read from {source}", lack)
    entry = CATALOGUE[name]
    sources = Sources(params.data.folder(), workspace.scratch / "downloads")
    parts = {name: entry.files} if entry.files else {part.name: part.files for part in _parts(name)}
    files = [(part, file) for part, some in parts.items() for file in some]
    places = dict.fromkeys(_place(sources, part, file) for part, file in files)
    sizes = [file.bytes for _, file in files]
    total = None if None in sizes or not sizes else sum(size for size in sizes if size)
    origin = ", ".join(places) or BUNDLED
    return Need("data set", name, False, total, origin, lack)


def _parts(name: str) -> tuple[Entry, ...]:
    """The sets that a composed data set is made of."""
    return SETS if name.startswith("five") else ()


def _place(sources: Sources, dataset: str, file: RemoteFile) -> str:
    """Where one published file would be taken from."""
    folder = sources.mirror and sources.mirror / dataset
    if folder and ((folder / file.name).is_file() or any(folder.glob("*.npz")) or any(folder.glob("*.tar"))):
        return "the mirror"
    return str(urlsplit(file.urls[0]).hostname) if file.urls and file.checksum else "a mirror only"


def _partition(dataset: str, split: str, seed: int, workspace: Workspace) -> Need:
    folder = workspace.partition(dataset, split, seed)
    card, make = folder / "card.json", f"dvc repro partition@{dataset}"
    there = card.exists()
    lack = "" if there else f"{card}: the partition is missing; make it with {make}"
    size = folder_bytes(folder) if there else None
    return Need("partition", f"{dataset}/{split}-s{seed}", there, size, f"drawn by {make}", lack)


def _weights(name: str, params: Params, workspace: Workspace) -> Need:
    path = weights_path(name, workspace.weights)
    if path.exists():
        size = path.stat().st_size
        return Need("weights", name, True, size, str(path.relative_to(workspace.root)), "")
    stage = any(name in settings.models for settings in params.pretrain.values())
    mirror = params.data.folder()
    if stage:
        origin = "trained here"
    elif mirror is not None and weights_path(name, mirror / "weights").is_file():
        origin = "the mirror"
    else:
        origin = origin_of(name)
    size = 4 * outline(name, 1, ModelOptions(weights="scratch"), InputSettings()).total_elements
    return Need("weights", name, False, size, origin, missing_weights(name, path))
