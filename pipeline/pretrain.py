"""Stage: pre-train backbones on one subset of a data set."""

from pathlib import Path

import torch

from hetfl.cli import run
from hetfl.data.store import read_dataset
from hetfl.errors import unknown
from hetfl.experiments.plan import Workspace, load_params
from hetfl.experiments.schedule import pick_device
from hetfl.models import check_name
from hetfl.training.pretrain import pretrain


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    if name not in params.pretrain:
        raise unknown("protocol", name, params.pretrain, "params.yaml: pretrain")
    settings = params.pretrain[name]
    for model in settings.models:
        check_name(model, f"params.yaml: pretrain.{name}.models")
    torch.set_num_threads(params.compute.threads)
    dataset = read_dataset(workspace.dataset(settings.dataset))
    device = pick_device(params.compute.device)
    for model in settings.models:
        accuracy = pretrain(model, settings, dataset, workspace.weights, device)
        print(f"{model}: {100 * accuracy:.1f} % of {settings.subset} right in the last epoch")


if __name__ == "__main__":
    run(main)
