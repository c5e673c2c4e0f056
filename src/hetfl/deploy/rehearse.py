"""A deployment on one machine: a project's data dealt out to folders for a server and its nodes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hetfl.data.partitions import Partition, read_partition
from hetfl.data.store import Dataset, Subset, read_card, read_dataset, write_dataset
from hetfl.deploy.cards import CHECKSUMS
from hetfl.deploy.certs import make_certificates
from hetfl.deploy.settings import host_of
from hetfl.errors import HetflError
from hetfl.experiments.identity import inputs
from hetfl.experiments.plan import Cell, Workspace, parts_of, weights_read
from hetfl.files import atomic_folder, write_json, write_text
from hetfl.models.registry import weights_file


def write_deployment(
    cells: Sequence[Cell], run: Sequence[str], workspace: Workspace, folder: Path, nodes: int | None, address: str
) -> list[str]:
    """Write the files with which ``hetfl serve`` and ``hetfl join`` train cells as if the clients were elsewhere.

    The server's folder has the cards of data set and partition, without a sample; a node's has its own clients'
    samples and the weights of their models.

    Args:
        cells: of one data set, split and seed.
        run: names of the cells, for the server's file.
        workspace: the project that has data, partitions and weights.
        folder: what to write; must not exist.
        nodes: how many; None: one for each client.
        address: where the server will listen.

    Returns:
        The names of the nodes.

    Raises:
        HetflError: the cells are of several data sets, splits or seeds, an input is missing, the folder exists, or
            the address is none.
    """
    if folder.exists():
        raise HetflError(f"{folder}: exists already; name another folder, or remove it")
    try:
        host = host_of(address)
    except ValueError as error:
        raise HetflError(f"--address: {address!r} {error}") from error
    if len({(cell.dataset, cell.split, cell.seed) for cell in cells}) != 1 or len(_publics(cells)) > 1:
        raise HetflError(f"{', '.join(run)}: is of several data sets, splits or seeds; name cells of one of each")
    for cell in cells:
        inputs(cell, workspace)
    first = cells[0]
    dataset = read_dataset(workspace.dataset(first.dataset))
    partition, card = read_partition(workspace.partition(first.dataset, first.split, first.seed))
    count = partition.clients if nodes is None else nodes
    if not 1 <= count <= partition.clients:
        raise HetflError(f"--nodes: {count}, {first.split} of {first.dataset} has {partition.clients} clients")
    names = [f"node-{number}" for number in range(count)]
    homes = {name: [*range(number, partition.clients, count)] for number, name in enumerate(names)}
    with atomic_folder(folder) as out:
        make_certificates(out / "certs", [*dict.fromkeys([host, "localhost", "127.0.0.1"])], names)
        members = {name: {"key": f"certs/{name}.pub", "clients": clients} for name, clients in homes.items()}
        server = {"address": address, "project": "server", "run": [*run], "folder": "server/flower"}
        server |= {"certificate": "certs/server.crt", "key": "certs/server.key", "authority": "certs/authority.crt"}
        _write_yaml(out / "server.yaml", {"server": {**server, "nodes": members}})
        for name, clients in homes.items():
            _write_node(out / name, cells, workspace, partition, dataset, clients)
            node: dict[str, Any] = {"name": name, "server": address, "authority": "certs/authority.crt"}
            node |= {"key": f"certs/{name}.key", "project": name, "folder": f"{name}/flower"}
            node |= {"clients": {client: f"{name}/data/client-{client}" for client in clients}}
            if _publics(cells):
                node["public"] = f"{name}/data/public"
            _write_yaml(out / f"{name}.yaml", {"node": node})
        folders = {k: out / name / "data" / f"client-{k}" for name, clients in homes.items() for k in clients}
        card[CHECKSUMS] = {str(client): read_card(folders[client]).checksum for client in sorted(folders)}
        _write_server(out / "server", cells, workspace, partition, card, dataset)
    return names


def _write_server(
    out: Path,
    cells: Sequence[Cell],
    workspace: Workspace,
    partition: Partition,
    card: dict[str, Any],
    dataset: Dataset,
) -> None:
    target, first = Workspace(out), cells[0]
    _copy_project(cells, [model for cell in cells for model in cell.models], workspace, target)
    for name in {first.dataset, *(dataset for dataset, _ in _publics(cells))}:
        target.dataset(name).mkdir(parents=True)
        shutil.copyfile(workspace.dataset(name) / "card.json", target.dataset(name) / "card.json")
    if partition.test is None:
        # Each client is tested on the whole subset; the server has no other way to know its classes.
        whole = np.bincount(dataset.labels(partition.test_from), minlength=dataset.num_classes).tolist()
        card = {**card, "class_counts": {**card["class_counts"], "test": [whole] * partition.clients}}
    write_json(target.partition(first.dataset, first.split, first.seed) / "card.json", card)


def _write_node(
    out: Path,
    cells: Sequence[Cell],
    workspace: Workspace,
    partition: Partition,
    dataset: Dataset,
    clients: Sequence[int],
) -> None:
    models = [cell.models[client % len(cell.models)] for cell in cells for client in clients]
    _copy_project(cells, models, workspace, Workspace(out))
    source = read_card(workspace.dataset(dataset.name))
    for client in clients:
        subsets = {
            "train": _taken(dataset, partition.train_from, partition.train[client]),
            "test": _taken(dataset, partition.test_from, None if partition.test is None else partition.test[client]),
        }
        _write_data(out / "data" / f"client-{client}", source.name, dataset, subsets, f"client {client}")
    for name, subset in _publics(cells):
        shared = read_dataset(workspace.dataset(name))
        kept = shared.subset(subset)
        public = {subset: Subset(kept.images, kept.labels)}
        _write_data(out / "data" / "public", shared.name, shared, public, "the public data set")


def _publics(cells: Sequence[Cell]) -> set[tuple[str, str]]:
    """The public data sets of some cells, and their subsets."""
    return {(cell.public.dataset, cell.public.subset) for cell in cells if cell.public}


def _taken(dataset: Dataset, names: Sequence[str], index: np.ndarray | None) -> Subset:
    """The samples at places of concatenated subsets, in this order; None: all."""
    images = np.concatenate([dataset.subset(name).images for name in names])
    labels = dataset.labels(names)
    return Subset(images, labels) if index is None else Subset(images[index], labels[index])


def _write_data(out: Path, name: str, dataset: Dataset, subsets: dict[str, Subset], whose: str) -> None:
    write_dataset(
        out,
        name=name,
        title=f"{dataset.title}, {whose}",
        origin="dealt out by hetfl rehearse",
        licence="as the whole data set's",
        source=[{"name": name, "from": "a prepared data set"}],
        settings={},
        class_names=dataset.class_names,
        subsets=subsets,
    )


def _copy_project(cells: Sequence[Cell], models: Sequence[str], workspace: Workspace, target: Workspace) -> None:
    """The settings, and the weights that some models and their encoders start from."""
    for path in [workspace.params, *parts_of(workspace.root, workspace.params.name)]:
        place = target.root / path.relative_to(workspace.root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    for cell in cells:
        for name in weights_read(cell):
            source = weights_file(name, workspace.weights)
            if source is not None and (name in models or name not in cell.models):
                place = target.weights / source.relative_to(workspace.weights)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    write_text(path, yaml.safe_dump(content, sort_keys=False))
