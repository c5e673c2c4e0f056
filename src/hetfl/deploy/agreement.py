"""What server and nodes have to agree on before they train together. No data is in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any

from pydantic import Field

from hetfl.config import Settings
from hetfl.data.store import Card
from hetfl.errors import HetflError
from hetfl.experiments.identity import identity
from hetfl.experiments.plan import Cell, Workspace, weights_read
from hetfl.models.registry import weights_checksum
from hetfl.schema import Inputs

Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A run's; nodes name folders after it."""

FINISHED = "finished"
"""The key by which a header is one that says that a run is finished."""


class Finished(Settings):
    """What the server tells nodes once a run's record is complete.

    Attributes:
        finished: fingerprint of the run.
    """

    finished: Fingerprint


class Agreement(Settings):
    """Goes with each request, so that a node notices a server that plays something else.

    Attributes:
        cell: path of the cell below ``runs/``.
        settings: method, settings, models, input, seed and the versions that decide numbers, by name.
        weights: checksums of the weights that models start from.
        clients: number of clients of the cell's partition.
        run: fingerprint of the run.
        classes: the data set's, in their order; of the server.
        data: checksums of the data of the node's clients, by client, where the partition's card has them; of the
            server.
        public: of the public data, see :func:`public_checksum`; empty without any, or where the card has none.
    """

    cell: str
    settings: dict[str, Any]
    weights: dict[str, str]
    clients: int = Field(ge=1)
    run: Fingerprint
    classes: tuple[str, ...] = ()
    data: dict[str, str] = {}
    public: str = ""

    def of(self, clients: Collection[int]) -> Agreement:
        """What a node with some clients is told."""
        own = {client: checksum for client, checksum in self.data.items() if int(client) in clients}
        return self.model_copy(update={"data": own})


def agreement(
    cell: Cell,
    workspace: Workspace,
    models: Collection[str],
    run: str,
    classes: Sequence[str] = (),
    data: Mapping[str, str] = {},  # noqa: B006 - never mutated
    public: str = "",
) -> Agreement:
    """What a side knows of a cell, with the weights that some of its models start from, and those of its encoder.

    Raises:
        HetflError: such weights are missing.
    """
    whole = identity(cell, Inputs(dataset="", partition="", weights={}))
    settings: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(whole)).items():
        settings |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    names = [name for name in weights_read(cell) if name in models or name not in cell.models]
    weights = {name: weights_checksum(name, workspace.weights) for name in names}
    return Agreement(
        cell=cell.path.as_posix(),
        settings=settings,
        weights=weights,
        clients=cell.partition["clients"],
        run=run,
        classes=tuple(classes),
        data=dict(data),
        public=public,
    )


def check_agreement(server: Agreement, node: Agreement, name: str, cards: Mapping[int, Card]) -> None:
    """Check that a server means the same as a node.

    Args:
        server: what it said.
        node: what the node knows.
        name: the node's.
        cards: of the data of the node's clients.

    Raises:
        HetflError: settings, the number of clients, weights or the clients' data differ.
    """
    for setting in sorted({**server.settings, **node.settings}):
        here, there = (_shown(side.settings, setting) for side in (node, server))
        if here != there:
            told = f"has {setting} {here} here and {there} at the server; use one params.yaml and one hetfl"
            raise HetflError(f"{name}: {server.cell} {told}")
    if server.clients != node.clients:
        told = f"has {node.clients} clients here and {server.clients} at the server; use one params.yaml"
        raise HetflError(f"{name}: {server.cell} {told}")
    for model, checksum in node.weights.items():
        if server.weights.get(model) != checksum:
            raise HetflError(f"{name}: the weights of {model} are not those of the server; copy its weights/")
    if server.public and server.public != node.public:
        raise HetflError(f"{name}: node.public: has other samples than the server's card says, or in another order")
    for client, card in cards.items():
        where = f"{name}: node.clients.{client}"
        if server.classes and card.class_names != server.classes:
            pairs = enumerate(zip_longest(card.class_names, server.classes, fillvalue="missing"))
            number, (own, wanted) = next((k, pair) for k, pair in pairs if pair[0] != pair[1])
            told = f"class {number} is {own[:60]!r} here and {wanted[:60]!r} at the server"
            raise HetflError(
                f"{where}: {told}; prepare it with the server's classes in their order, "
                "for data of one's own by classes in params.yaml"
            )
        if server.data.get(str(client), card.checksum) != card.checksum:
            others = [other for other, checksum in server.data.items() if checksum == card.checksum]
            whose = f"the data of client {others[0]}" if others else "other data than the server's card says"
            raise HetflError(f"{where}: has {whose}; name the client's own folder, or write the cards again")


def public_checksum(card: Card, subset: str) -> str:
    """Checksums of a public data set's images and labels, whose order methods rely on; empty if the card has none."""
    names = (f"{subset}-{array}.npy" for array in ("images", "labels"))
    return "+".join(card.files[name].sha256 for name in names if name in card.files)


def _shown(settings: Mapping[str, Any], name: str) -> str:
    """A setting as it is told."""
    return json.dumps(settings[name])[:80] if name in settings else "its default"
