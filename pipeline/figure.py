"""Stage: a paper's figure of data distributions, from the cards of the partitions that are there."""

from pathlib import Path

import numpy as np

from hetfl.cli import run
from hetfl.errors import unknown
from hetfl.federation.plan import Workspace, load_params
from hetfl.files import read_json
from hetfl.papers.figures import PARTITION_FIGURES
from hetfl.report.partitions import Panel, partition_figure


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    if name not in PARTITION_FIGURES:
        raise unknown("figure", name, PARTITION_FIGURES)
    figure, params = PARTITION_FIGURES[name], load_params(workspace.params)
    panels = []
    for title, (dataset, split) in figure.panels.items():
        path = workspace.partition(dataset, split, params.partitions[dataset].seeds[0]) / "card.json"
        if not path.exists():
            print(f"{path}: does not exist; make it with dvc repro partition@{dataset}")
            panels.append(Panel(title, None))
            continue
        card = read_json(path)
        counts = sum(np.array(side) for side in card["class_counts"].values())
        panels.append(Panel(title, counts, card["class_names"]))
    for path in partition_figure(panels, figure.kind, workspace.figures / name, figure.columns):
        print(path.relative_to(workspace.root))


if __name__ == "__main__":
    run(main)
