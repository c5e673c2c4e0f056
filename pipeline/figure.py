"""Stage: a paper's figure, from the partitions or the runs that are there."""

from pathlib import Path

import numpy as np

from hetfl.cli import run
from hetfl.errors import unknown
from hetfl.federation.plan import Params, Workspace, load_params
from hetfl.files import read_json
from hetfl.papers.figures import PARTITION_FIGURES, RESULT_FIGURES
from hetfl.papers.panels import TheoremFigure
from hetfl.report.partitions import Panel, partition_figure
from hetfl.report.results import Results, result_figure
from hetfl.report.terms import theorem_figure


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    if name not in PARTITION_FIGURES and name not in RESULT_FIGURES:
        raise unknown("figure", name, [*PARTITION_FIGURES, *RESULT_FIGURES])
    params = load_params(workspace.params)
    draw = draw_partitions if name in PARTITION_FIGURES else draw_results
    for path in draw(name, params, workspace):
        print(path.relative_to(workspace.root))


def draw_partitions(name: str, params: Params, workspace: Workspace) -> list[Path]:
    figure, panels = PARTITION_FIGURES[name], []
    for title, (dataset, split) in figure.panels.items():
        path = workspace.partition(dataset, split, params.partitions[dataset].seeds[0]) / "card.json"
        if not path.exists():
            print(f"{path}: does not exist; make it with dvc repro partition@{dataset}")
            panels.append(Panel(title, None))
            continue
        card = read_json(path)
        counts = sum(np.array(side) for side in card["class_counts"].values())
        panels.append(Panel(title, counts, card["class_names"]))
    return partition_figure(panels, figure.kind, workspace.figures / name, figure.columns)


def draw_results(name: str, params: Params, workspace: Workspace) -> list[Path]:
    figure = RESULT_FIGURES[name](params)
    results = Results(workspace.runs, workspace.evaluations)
    there, wanted = results.count(figure.entries)
    print(f"{name}: {there} of {wanted} cells are there")
    if isinstance(figure, TheoremFigure):
        return theorem_figure(figure, results, workspace.figures / name)
    return result_figure(figure, results, workspace.figures / name)


if __name__ == "__main__":
    run(main)
