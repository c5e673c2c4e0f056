"""Stage: train all cells of one experiment, or those of one method; finished cells are kept."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl.cli import run


def main(experiment: str, method: Annotated[str | None, typer.Argument()] = None) -> None:
    from hetfl.train import train_experiment  # imports torch for seconds, where Ctrl-C is one line in here

    train_experiment(Path.cwd(), experiment, method=method)


if __name__ == "__main__":
    run(main)
