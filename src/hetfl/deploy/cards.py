"""What a server has to know of data that were never in one place: classes, counts and checksums, and no sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from hetfl.config import Settings, validate
from hetfl.data.store import Card, read_card, read_dataset
from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Cell, Params, Workspace
from hetfl.files import read_json, sha256_json, write_json
from hetfl.schema import ClassCounts

CHECKSUMS = "checksums"
"""The key of a partition's card with the checksums of the clients' data. It is no part of a run's identity."""
_ALIKE = {
    "dataset": "the same --dataset",
    "class_names": "data with the same classes, for data of one's own those of classes in params.yaml",
    "image_shape": "images of the same size and channels",
}
"""What clients' cards must agree in, and what gives it."""
WRITES = "hetfl rehearse and hetfl cards write it"


class ClientCard(Settings):
    """A client's data in numbers: all that its node's operator gives away, by hand.

    Attributes:
        client: its number.
        dataset: name of the data set in params.yaml.
        title, class_names, image_shape: as in the card of its prepared data set, see :class:`Card`.
        train, test: samples of each class.
        checksum: of the prepared data set.
    """

    client: int = Field(ge=0)
    dataset: str = Field(min_length=1)
    title: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: list[Annotated[int, Field(ge=0)]]
    test: list[Annotated[int, Field(ge=0)]]
    checksum: str


def client_card(client: int, dataset: str, folder: Path) -> ClientCard:
    """A client's card, from its prepared data set.

    Raises:
        HetflError: the folder is no data set with the subsets ``train`` and ``test``.
    """
    found, card = read_dataset(folder), read_card(folder)
    counts = {name: found.subset(name).class_counts(found.num_classes).tolist() for name in ("train", "test")}
    shape = card.image_shape
    told = {"client": client, "dataset": dataset, "title": card.title, "class_names": card.class_names}
    return validate(ClientCard, {**told, "image_shape": shape, "checksum": card.checksum, **counts}, "hetfl card")


def write_cards(paths: Sequence[Path], split: str, workspace: Workspace, params: Params, seed: int = 0) -> list[Path]:
    """Write the cards of data set and partition that a server's project needs, from its clients' cards.

    Args:
        paths: files with the clients' cards, as JSON.
        split: the partition's name in params.yaml, whose ``clients`` is the number of cards.
        workspace: the server's project.
        params: its settings.
        seed: the trial's, and the partition's where its split has none of its own.

    Returns:
        The files that were written.

    Raises:
        HetflError: cards do not fit together or to params.yaml, or the project has data of its own.
    """
    cards = sorted((validate(ClientCard, read_json(path), str(path)) for path in paths), key=lambda one: one.client)
    first = cards[0]
    for card in cards:
        for name, remedy in _ALIKE.items():
            if getattr(card, name) != getattr(first, name):
                told = f"{name} differs from that of client {first.client}"
                raise HetflError(f"client {card.client}: {told}; write both cards with {remedy}")
        for side, counts in (("train", card.train), ("test", card.test)):
            if len(counts) != len(card.class_names):
                classes = f"{len(counts)} classes are counted and {len(card.class_names)} named"
                raise HetflError(f"client {card.client}: {side}: {classes}; let hetfl card write it again")
    if first.dataset not in params.partitions:
        raise unknown("data set", first.dataset, params.partitions, "params.yaml: partitions")
    splits = params.partitions[first.dataset].splits
    if split not in splits:
        raise unknown("split", split, splits, f"params.yaml: partitions.{first.dataset}.splits")
    scheme = splits[split]
    if [card.client for card in cards] != [*range(scheme.clients)]:
        shown = ", ".join(str(card.client) for card in cards)
        where = f"params.yaml: partitions.{first.dataset}.splits.{split}.clients"
        raise HetflError(
            f"{where}: {scheme.clients}, and there are cards of clients {shown}; give one of each from 0 on"
        )
    checksums = {str(card.client): card.checksum for card in cards}
    sizes = {"train": [sum(card.train) for card in cards], "test": [sum(card.test) for card in cards]}
    whole = Card(
        name=first.dataset,
        title=first.title,
        origin="clients' own, never in one place",
        licence="clients' own",
        source=[],
        settings={},
        class_names=first.class_names,
        attributes={},
        image_shape=first.image_shape,
        split_sizes={side: sum(of) for side, of in sizes.items()},
        files={},
        checksum=sha256_json(checksums),
    )
    partition = {
        "settings": scheme.model_dump(include={"scheme"}) | scheme.model_dump(mode="json", exclude_defaults=True),
        "seed": seed if scheme.seed is None else scheme.seed,
        "dataset": first.dataset,
        "dataset_checksum": whole.checksum,
        "splits": {"train": ["train"], "test": ["test"]},
        "clients": scheme.clients,
        "sizes": sizes,
        "class_names": first.class_names,
        "class_counts": {"train": [card.train for card in cards], "test": [card.test for card in cards]},
        "sha256": sha256_json([checksums, sizes]),
        CHECKSUMS: checksums,
    }
    written = [
        workspace.dataset(first.dataset) / "card.json",
        workspace.partition(first.dataset, split, seed) / "card.json",
    ]
    for path in written:
        if {*path.parent.glob("*")} - {path}:
            raise HetflError(f"{path.parent}: holds prepared data, which the card would belie; use a server project")
    for path, content in zip(written, (whole.model_dump(mode="json", by_alias=True), partition), strict=True):
        write_json(path, content)
    return written


def class_counts(cell: Cell, workspace: Workspace) -> ClassCounts:
    """Samples per client and class, from the card of a partition: the server has no data.

    Raises:
        HetflError: the card has none, or not those of the cell's clients. That of a partition whose clients share the
            test subset has no counts of it.
    """
    path = _partition_card(cell, workspace)
    try:
        counts = ClassCounts.model_validate(read_json(path)["class_counts"])
    except (LookupError, TypeError, ValidationError) as error:
        raise HetflError(f"{path}: class_counts: has not those of each client; {WRITES}") from error
    clients, classes = cell.partition["clients"], len(read_card(workspace.dataset(cell.dataset)).class_names)
    for side, rows in (("train", counts.train), ("test", counts.test)):
        if len(rows) != clients:
            raise HetflError(f"{path}: class_counts.{side}: has {len(rows)} clients, {clients} are needed; {WRITES}")
        for client, row in enumerate(rows):
            if len(row) != classes or min(row, default=0) < 0:
                raise HetflError(
                    f"{path}: class_counts.{side}.{client}: are not counts of {classes} classes; {WRITES}"
                )
    return counts


def client_checksums(cell: Cell, workspace: Workspace) -> dict[str, str]:
    """Checksums of the clients' data by client, from the card of a partition; none where it does not have them."""
    found = read_json(_partition_card(cell, workspace)).get(CHECKSUMS, {})
    return {str(client): str(checksum) for client, checksum in found.items()} if isinstance(found, dict) else {}


def _partition_card(cell: Cell, workspace: Workspace) -> Path:
    return workspace.partition(cell.dataset, cell.split, cell.seed) / "card.json"
