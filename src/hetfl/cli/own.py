"""Commands that write skeletons of one's own work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import hetfl.cli.names as names
from hetfl.cli.base import OWN, app, doing

new = typer.Typer(no_args_is_help=True, help="Add a working method, data set or experiment of your own.")
app.add_typer(new, name="new", rich_help_panel=OWN)


@new.command("method")
def new_method(
    name: Annotated[str, typer.Argument(help="The method's name, e.g. fedmine.")],
    experiment: Annotated[
        str,
        typer.Option(
            help="An experiment of params.yaml that gets a row of it.", autocompletion=names.known_experiments
        ),
    ] = "digits-homogeneous",
) -> None:
    """Write a method that differs from FedAvg in one step, its test, and its row in an experiment.

    Example: hetfl new method fedmine
    """
    with doing("reading params.yaml"):
        from hetfl.new import new_method as write

        written = write(name, Path.cwd(), experiment)
    print("\n".join(written))


@new.command("dataset")
def new_dataset(
    name: Annotated[str, typer.Argument(help="The name of the data set.")],
    folder: Annotated[
        Path,
        typer.Option(
            "--from",
            help="A folder of images by class (<class>/<image>, or train/<class>/<image> and test/...), of Parquet "
            "files, or one that save_to_disk of Hugging Face's datasets wrote.",
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option(help="Pixels in which images are stored; without it 32, or less if they are smaller."),
    ] = None,
    title: Annotated[str, typer.Option(help="Its name in tables.")] = "",
    clients: Annotated[int, typer.Option(help="Clients that its partitions share it among.")] = 5,
) -> None:
    """Add a folder of images to params.yaml as a data set, with partitions and its stage of DVC; nothing is copied.

    Example: hetfl new dataset flowers --from ~/pictures/flowers --size 64
    """
    with doing(f"looking at {folder}"):
        from hetfl.new import new_dataset as write

        written = write(name, Path.cwd(), folder, size, title, clients)
    print("\n".join(written))


@new.command("experiment")
def new_experiment(
    name: Annotated[str, typer.Argument(help="The name of the experiment and of its table.")],
    dataset: Annotated[
        str, typer.Option(help="A data set with partitions in params.yaml.", autocompletion=names.datasets)
    ] = "digits",
    models: Annotated[
        str,
        typer.Option(
            help="A group of models of params.yaml; without it, small ones.", autocompletion=names.model_groups
        ),
    ] = "",
    method: Annotated[
        list[str] | None, typer.Option(help="A row of the table; may be repeated.", autocompletion=names.methods)
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="A column of the table; may be repeated.", autocompletion=names.splits)
    ] = None,
) -> None:
    """Add an experiment to params.yaml, and its table's stages; without options 3 methods x 2 splits on digits.

    Example: hetfl new experiment mine --method fedavg --method scaffold --split dir
    """
    with doing("reading params.yaml"):
        from hetfl.new import new_experiment as write

        written = write(name, Path.cwd(), dataset, models, method or (), split or ())
    print("\n".join(written))
