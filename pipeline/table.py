"""Stage: lay out one table with its figures, from whatever has been run."""

from pathlib import Path

from hetfl.cli import run
from hetfl.experiments.plan import Workspace
from hetfl.report.formats import render_text
from hetfl.report.make import make_table


def main(name: str) -> None:
    print(render_text(make_table(name, Workspace(Path.cwd()))))


if __name__ == "__main__":
    run(main)
