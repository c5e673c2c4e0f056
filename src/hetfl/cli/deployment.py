"""Commands for clients on machines that only share a network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from hetfl.cli.base import Targets, app, doing, opened
from hetfl.errors import HetflError

DEPLOY = "Real clients"

File = Annotated[Path, typer.Argument(help="The deployment's YAML file.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS and authentication, for a try on one machine.")
]


def check_flower() -> None:
    """Check that what carries messages is installed.

    Raises:
        HetflError: it is not.
    """
    if find_spec("flwr") is None:
        raise HetflError("deployments need flwr; pip install 'hetfl[flower]'")


@app.command(rich_help_panel=DEPLOY)
def serve(file: File, insecure: Insecure = False) -> None:
    """Train with clients on other machines: start the server of a deployment, until its cells are done.

    Example: hetfl serve deployment/server.yaml
    """
    check_flower()
    with doing(f"reading {file}", work=True):
        from hetfl.deploy.settings import read_server

        server = read_server(file, insecure)
        from hetfl.deploy.play import serve as play

    play(server, insecure, lambda line: print(line, flush=True))


@app.command(rich_help_panel=DEPLOY)
def join(
    file: File,
    insecure: Insecure = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Only remove the clients' state of finished runs, and list that of the others."),
    ] = False,
) -> None:
    """Take part in training: start a node, which keeps its data and its clients' state, until it is stopped.

    Example: hetfl join deployment/node-0.yaml
    """
    from hetfl.deploy.settings import read_node

    if prune:
        from rich.filesize import decimal

        from hetfl.deploy.kept import KeptRuns

        kept = KeptRuns(read_node(file, insecure).state)
        for run in kept.prune():
            print(f"removed: {run.cell}, finished")
        for run in kept.runs():
            print(f"kept: {run.cell or 'unknown'}, not finished, {decimal(run.bytes)} in {run.folder}")
        return
    check_flower()
    import logging

    from hetfl.deploy.supervisor import Supervisor

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    if status := Supervisor(file, read_node(file, insecure), insecure).run():
        raise typer.Exit(status)


@app.command(rich_help_panel=DEPLOY)
def certs(
    folder: Annotated[Path, typer.Argument(help="Where files go; those that are there stay.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address by which nodes reach the server, else localhost; may be repeated."),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="A node that gets a key; may be repeated.")] = None,
) -> None:
    """Make a test authority, a certificate for the server and keys for nodes.

    Example: hetfl certs certs --host fl.example.org --node north --node south
    """
    from hetfl.deploy.certs import make_certificates

    for path in make_certificates(folder, host or [], node or []):
        print(path)


@app.command(rich_help_panel=DEPLOY)
def rehearse(
    targets: Targets,
    to: Annotated[Path, typer.Option(help="The folder that gets the deployment; it must not exist.")] = Path(
        "deployment"
    ),
    nodes: Annotated[int | None, typer.Option(help="Number of nodes; without it, one for each client.")] = None,
    address: Annotated[str, typer.Option(help="Where the server will listen.")] = "127.0.0.1:9092",
) -> None:
    """Deal out a project's data to folders for a server and nodes, with keys, to rehearse a deployment.

    Example: hetfl rehearse digits-homogeneous/fedavg/fedavg/iid-s0
    """
    workspace, params = opened(work=True)
    with doing("dealing out data"):
        from hetfl.deploy.rehearse import write_deployment
        from hetfl.targets import cells_of

        names = write_deployment(cells_of(targets, params), targets, workspace, to, nodes, address)
    print(f"hetfl serve {quote(str(to / 'server.yaml'))}")
    for name in names:
        print(f"hetfl join {quote(str(to / f'{name}.yaml'))}")


@app.command(rich_help_panel=DEPLOY)
def card(
    folder: Annotated[Path, typer.Argument(help="A client's prepared data set.")],
    client: Annotated[int, typer.Option(help="The client's number.")],
    dataset: Annotated[str, typer.Option(help="The data set's name in params.yaml.")],
    to: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write down what a server must know of a client's data: classes, counts and checksums, and no sample.

    Example: hetfl card data/ward-0 --client 0 --dataset digits --to ward-0.json
    """
    with doing(f"reading {folder}"):
        from hetfl.deploy.cards import client_card
        from hetfl.files import write_json

        write_json(to, client_card(client, dataset, folder).model_dump(mode="json"))
    print(to)


@app.command(rich_help_panel=DEPLOY)
def cards(
    files: Annotated[list[Path], typer.Argument(help="What `hetfl card` wrote for each client.")],
    split: Annotated[str, typer.Option(help="The partition's name in params.yaml.")],
    seed: Annotated[int, typer.Option(help="The partition's seed.")] = 0,
) -> None:
    """Write the cards of data set and partition for a server whose clients' data were never in one place.

    Example: hetfl cards ward-0.json ward-1.json --split iid
    """
    workspace, params = opened()
    from hetfl.deploy.cards import write_cards

    for path in write_cards(files, split, workspace, params, seed):
        print(path)
