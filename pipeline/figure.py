"""Stage: a paper's figure, from the partitions, the runs or the data sets that are there."""

from pathlib import Path

from hetfl.cli import run
from hetfl.experiments.plan import Workspace, load_params
from hetfl.figures.catalogue import figure
from hetfl.figures.sources import Sources


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    drawn, sources = figure(name, params), Sources(workspace, params)
    if entries := [*drawn.entries]:
        there, wanted = sources.count(entries)
        print(f"{name}: {there} of {wanted} cells are there")
    paths = drawn.write(sources, workspace.figure(name))
    for line in (*sources.notes, *(path.relative_to(workspace.root) for path in paths)):
        print(line)


if __name__ == "__main__":
    run(main)
