"""What server and nodes have to agree on before they train together. No data is in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from hetfl.config import Settings
from hetfl.errors import HetflError
from hetfl.experiments.identity import identity
from hetfl.experiments.plan import Cell, Workspace, weights_read
from hetfl.files import sha256_json
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
        settings: checksum of method, settings, models, input, seed and the versions that decide numbers.
        weights: checksums of the weights that models start from.
        clients: number of clients of the cell's partition.
        run: fingerprint of the run.
    """

    cell: str
    settings: str
    weights: dict[str, str]
    clients: int = Field(ge=1)
    run: Fingerprint


def agreement(cell: Cell, workspace: Workspace, models: Collection[str], run: str) -> Agreement:
    """What a side knows of a cell, with the weights that some of its models start from, and those of its encoder.

    Raises:
        HetflError: such weights are missing.
    """
    without = identity(cell, Inputs(dataset="", partition="", weights={}))
    names = [name for name in weights_read(cell) if name in models or name not in cell.models]
    weights = {name: weights_checksum(name, workspace.weights) for name in names}
    return Agreement(
        cell=cell.path.as_posix(),
        settings=sha256_json(without),
        weights=weights,
        clients=cell.partition["clients"],
        run=run,
    )


def check_agreement(server: Agreement, node: Agreement, name: str) -> None:
    """Check that a server means the same as a node.

    Raises:
        HetflError: settings, the number of clients or weights differ.
    """
    if server.settings != node.settings:
        raise HetflError(f"{name}: {server.cell} has other settings here than at the server; use one params.yaml")
    if server.clients != node.clients:
        told = f"has {node.clients} clients here and {server.clients} at the server; use one params.yaml"
        raise HetflError(f"{name}: {server.cell} {told}")
    for model, checksum in node.weights.items():
        if server.weights.get(model) != checksum:
            raise HetflError(f"{name}: the weights of {model} are not those of the server; copy its weights/")
