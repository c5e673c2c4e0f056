"""The YAML file of a deployment: what the server's machine and a node's machine do."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from hetfl.config import Settings, one_of, read_yaml, validate
from hetfl.deploy.keys import check_private_key, public_key
from hetfl.errors import HetflError
from hetfl.training.registry import Precision, choices

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})")


def host_of(address: str) -> str:
    """The host of ``host:port``.

    Raises:
        ValueError: it is no address, in words that follow it.
    """
    found = _ADDRESS.fullmatch(address)
    if not found or not 1 <= int(found[2]) <= 65535:
        raise ValueError("is no address; write host:port, e.g. fl.example.org:9092")
    return found[1]


def _address(text: str) -> str:
    host_of(text)
    return text


def _below(path: Path, info: ValidationInfo) -> Path:
    return Path(info.context or ".") / path.expanduser()


Address = Annotated[str, AfterValidator(_address)]
"""``host:port``."""

Place = Annotated[Path, AfterValidator(_below)]
"""A path; a relative one begins at the YAML file's folder."""

NODE_NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"
NodeName = Annotated[str, Field(pattern=NODE_NAME)]
"""Name of a node: small letters, digits and hyphens."""

Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]


class Member(Settings):
    """A node as the server knows it.

    Attributes:
        key: file with its public key; None where the deployment is insecure.
        clients: numbers of the clients that live there.
    """

    key: Place | None = None
    clients: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)


class Server(Settings):
    """The server's part.

    Attributes:
        address: where it listens.
        project: folder with params.yaml, the cards of data sets and partitions, and weights; records go there.
        run: what is trained: experiments, tables, or cells as paths below ``runs/``.
        folder: for Flower's own files and logs.
        certificate, key, authority: files of the server's certificate, its key and the authority's certificate.
        nodes: those that may take part.
        deadline: seconds that a node has for an answer.
        missing: what happens when a node has not answered by then: the server waits for it and asks again, or goes on
            without it.
        poll: seconds between two looks for answers.
    """

    address: Address
    project: Place
    run: tuple[str, ...] = Field(min_length=1)
    folder: Place
    certificate: Place | None = None
    key: Place | None = None
    authority: Place | None = None
    nodes: dict[NodeName, Member] = Field(min_length=1)
    deadline: Seconds = 600
    missing: Literal["wait", "go-on"] = "wait"
    poll: Seconds = 0.1

    @model_validator(mode="after")
    def _each_client_is_at_one_node(self) -> Server:
        clients = sorted(client for member in self.nodes.values() for client in member.clients)
        if clients != [*range(len(clients))]:
            raise ValueError(f"nodes have the clients {clients}; each from 0 on must be at exactly one node")
        return self


class Node(Settings):
    """A node's part: all that it tells nobody.

    Attributes:
        name: as the server knows it.
        server: the server's address.
        authority: file with the certificate of the authority that signed the server's.
        key: file with its private key.
        project: folder with params.yaml, which has to say the same as the server's, and weights.
        clients: the folder of each client's prepared data set, by the client's number.
        public: the folder of the prepared public data set, for methods that have one.
        folder: for Flower's own files, logs, the socket and the clients' private state.
        device: as in ``compute`` of params.yaml; so are ``threads``, ``engine`` and ``precision``.
        poll: the longest time between two questions to the server whether there is work, in seconds. Flower's own
            value is 3.
        keep: of how many finished runs the clients' last state is kept, their own models among it.
    """

    name: NodeName
    server: Address
    authority: Place | None = None
    key: Place | None = None
    project: Place
    clients: dict[Annotated[int, Field(ge=0)], Place] = Field(min_length=1)
    public: Place | None = None
    folder: Place
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")
    threads: int = Field(default=1, ge=1, le=1024)
    engine: Annotated[str, one_of(partial(choices, own_processes=False))] = "auto"
    precision: Literal["auto", Precision] = "auto"
    poll: Seconds = 1.0
    keep: int = Field(default=10, ge=0)

    @property
    def state(self) -> Path:
        """Where clients' private state is, by run."""
        return self.folder / "state"

    @property
    def socket(self) -> Path:
        """Where the worker listens."""
        return self.folder / "worker.sock"


class Deployment(Settings):
    """A deployment's file; a machine reads its own part."""

    server: Server | None = None
    node: Node | None = None


def read_server(path: Path, insecure: bool = False) -> Server:
    """The server's part of a file.

    Raises:
        HetflError: it is missing or wrong, or a file that it names is.
    """
    part = _read(path).server
    if part is None:
        raise HetflError(f"{path}: has no server part; hetfl join starts a node")
    files = {"certificate": part.certificate, "key": part.key, "authority": part.authority}
    files |= {f"nodes.{name}.key": member.key for name, member in part.nodes.items()}
    _check_part(f"{path}: server", part, files, insecure)
    if not insecure:
        _check_public(f"{path}: server.nodes", {name: one.key for name, one in part.nodes.items() if one.key})
    return part


def read_node(path: Path, insecure: bool = False) -> Node:
    """A node's part of a file.

    Raises:
        HetflError: it is missing or wrong, or a file that it names is.
    """
    part = _read(path).node
    if part is None:
        raise HetflError(f"{path}: has no node part; hetfl serve starts the server")
    _check_part(f"{path}: node", part, {"authority": part.authority, "key": part.key}, insecure)
    if not insecure and part.key:
        check_private_key(f"{path}: node.key", part.key)
    folders = {f"clients.{client}": folder for client, folder in part.clients.items()}
    for key, folder in {**folders, **({"public": part.public} if part.public else {})}.items():
        if not (folder / "card.json").is_file():
            raise HetflError(f"{path}: node.{key}: {folder} is no prepared data set, since it has no card.json")
    if len(os.fsencode(part.socket)) > 100:
        raise HetflError(f"{path}: node.folder: {part.folder} is too long for a socket; use at most 88 bytes")
    return part


def _read(path: Path) -> Deployment:
    if not path.exists():
        raise HetflError(f"{path}: does not exist; name a deployment's file, such as hetfl rehearse writes")
    raw = read_yaml(path)
    return validate(Deployment, raw, str(path), (path,), path.absolute().parent)


def _check_part(where: str, part: Server | Node, files: dict[str, Path | None], insecure: bool) -> None:
    _check_files(where, files, insecure)
    if not insecure and part.key:
        _check_private(f"{where}.key", part.key)
    _check_project(f"{where}.project", part.project)


def _check_files(where: str, files: dict[str, Path | None], insecure: bool) -> None:
    for key, file in files.items():
        if insecure:
            if file is not None and key != "authority":
                raise HetflError(f"{where}.{key}: is given, and --insecure does without; remove one of the two")
        elif file is None:
            raise HetflError(f"{where}.{key}: is missing; hetfl certs makes one, --insecure does without")
        elif not file.is_file():
            raise HetflError(f"{where}.{key}: {file} does not exist; hetfl certs makes one")


def _check_private(where: str, file: Path) -> None:
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise HetflError(f"{where}: others may read {file}; chmod 600 it")


def _check_public(where: str, files: Mapping[str, Path]) -> None:
    owners: dict[Any, str] = {}
    for name, file in files.items():
        first = owners.setdefault(public_key(f"{where}.{name}.key", file).public_numbers(), name)
        if first != name:
            told = f"{file} is the key of {first}, too; hetfl certs makes one for each node"
            raise HetflError(f"{where}.{name}.key: {told}")


def _check_project(where: str, folder: Path) -> None:
    if not (folder / "params.yaml").is_file():
        raise HetflError(f"{where}: {folder} is no project, since it has no params.yaml")
