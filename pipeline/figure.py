"""Stage: a paper's figure, from the partitions, the runs or the data sets that are there."""

from pathlib import Path

import numpy as np
import torch

from hetfl.cli import run
from hetfl.data.store import Dataset, read_dataset
from hetfl.errors import unknown
from hetfl.experiments.plan import Params, Workspace, load_params
from hetfl.experiments.schedule import pick_device
from hetfl.files import read_json
from hetfl.models import ModelOptions, build
from hetfl.models.registry import missing_weights, weights_file
from hetfl.papers.figures import DATA_FIGURES, PARTITION_FIGURES, RESULT_FIGURES
from hetfl.papers.panels import FeatureFigure, ImageFigure, SelectionFigure, TheoremFigure
from hetfl.report.groups import selection_figure
from hetfl.report.images import Features, feature_figure, image_figure, read_features
from hetfl.report.partitions import Panel, partition_figure
from hetfl.report.results import Results, result_figure
from hetfl.report.terms import theorem_figure


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    kinds = {draw_partitions: PARTITION_FIGURES, draw_results: RESULT_FIGURES, draw_data: DATA_FIGURES}
    draw = next((draw for draw, figures in kinds.items() if name in figures), None)
    if draw is None:
        raise unknown("figure", name, [name for figures in kinds.values() for name in figures])
    for path in draw(name, load_params(workspace.params), workspace):
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
        if figure.clients:
            panels += [Panel(f"{title}, client {k}", counts[[k]], card["class_names"]) for k in figure.clients]
        else:
            panels.append(Panel(title, counts, card["class_names"]))
    return partition_figure(panels, figure.kind, workspace.figure(name), figure.columns)


def draw_results(name: str, params: Params, workspace: Workspace) -> list[Path]:
    figure = RESULT_FIGURES[name](params)
    results = Results(workspace.runs, workspace.evaluations)
    there, wanted = results.count(figure.entries)
    print(f"{name}: {there} of {wanted} cells are there")
    if isinstance(figure, TheoremFigure):
        return theorem_figure(figure, results, workspace.figure(name))
    if isinstance(figure, SelectionFigure):
        return selection_figure(figure, results, workspace.figure(name))
    return result_figure(figure, results, workspace.figure(name))


def draw_data(name: str, params: Params, workspace: Workspace) -> list[Path]:
    figure = DATA_FIGURES[name]
    if isinstance(figure, ImageFigure):
        return image_figure(figure, prepared(figure.dataset, workspace), workspace.figure(name))
    return feature_figure(figure, features(figure, params, workspace), workspace.figure(name))


def features(figure: FeatureFigure, params: Params, workspace: Workspace) -> Features | None:
    experiment = params.experiments[figure.experiment]
    dataset, model = prepared(experiment.dataset, workspace), params.models[experiment.models][0]
    path = weights_file(model, workspace.weights)
    if path is not None and not path.exists():
        print(missing_weights(model, path))
        return None
    if dataset is None:
        return None
    torch.set_num_threads(params.compute.threads)
    options, device = ModelOptions(prompts="inserted"), pick_device(params.compute.device)
    built = build(model, dataset.num_classes, options, workspace.weights, experiment.input)
    return read_features(figure, dataset, built.to(device, torch.float32), device)


def prepared(name: str, workspace: Workspace) -> Dataset | None:
    folder = workspace.dataset(name)
    if (folder / "card.json").exists():
        return read_dataset(folder)
    print(f"{folder}: does not exist; make it with dvc repro download-{name}")
    return None


if __name__ == "__main__":
    run(main)
