"""Stage: train all cells of one experiment; finished cells are kept."""

from pathlib import Path

from hetfl.cli import run
from hetfl.tracking.train import train_experiment


def main(experiment: str) -> None:
    train_experiment(Path.cwd(), experiment)


if __name__ == "__main__":
    run(main)
