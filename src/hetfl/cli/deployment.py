"""Commands for clients on machines that only share a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetfl.cli.base import Targets, app, doing, opened

DEPLOY = "Real clients"

File = Annotated[Path, typer.Argument(help="The deployment's YAML file.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS and authentication, for a try on one machine.")
]


@app.command(rich_help_panel=DEPLOY)
def serve(file: File, insecure: Insecure = False) -> None:
    """Train with clients on other machines: start the server of a deployment, until its cells are done.

    Example: hetfl serve deployment/server.yaml
    """
    with doing(f"reading {file}", work=True):
        from hetfl.deploy.settings import read_server

        server = read_server(file, insecure)
        from hetfl.deploy.play import serve as play

    play(server, insecure, lambda line: print(line, flush=True))


@app.command(rich_help_panel=DEPLOY)
def join(file: File, insecure: Insecure = False) -> None:
    """Take part in training: start a node, which keeps its data and its clients' state, until it is stopped.

    Example: hetfl join deployment/node-0.yaml
    """
    import logging

    from hetfl.deploy.settings import read_node
    from hetfl.deploy.supervisor import Supervisor

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    Supervisor(file, read_node(file, insecure), insecure).run()


@app.command(rich_help_panel=DEPLOY)
def certs(
    folder: Annotated[Path, typer.Argument(help="Where files go; those that are there stay.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address by which nodes reach the server; may be repeated."),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="A node that gets a key; may be repeated.")] = None,
) -> None:
    """Make a test authority, a certificate for the server and keys for nodes.

    Example: hetfl certs certs --host fl.example.org --node north --node south
    """
    from hetfl.deploy.certs import make_certificates

    for path in make_certificates(folder, host or ["localhost", "127.0.0.1"], node or []):
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
    print(f"hetfl serve {to}/server.yaml")
    for name in names:
        print(f"hetfl join {to}/{name}.yaml")
