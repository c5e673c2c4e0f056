"""Stage: train all cells of one experiment, or those of one method; finished cells are kept."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl.cli import run
from hetfl.train import train_experiment


def main(experiment: str, method: Annotated[str | None, typer.Argument()] = None) -> None:
    train_experiment(Path.cwd(), experiment, method=method)


if __name__ == "__main__":
    run(main)
