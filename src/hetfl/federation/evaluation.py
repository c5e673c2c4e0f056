"""Evaluation of a finished cell from its checkpoint alone."""

from __future__ import annotations

import csv
import io

import numpy as np
import torch

from hetfl.errors import HetflError
from hetfl.federation.cell import set_up
from hetfl.federation.plan import Cell, Workspace
from hetfl.federation.record import Record
from hetfl.federation.rounds import accuracies, evaluate
from hetfl.federation.state import State
from hetfl.files import read_json, write_json, write_text
from hetfl.metrics.accuracy import per_class, summary
from hetfl.tensors import read_tensors

SAME = 1e-9
"""Accuracies are counts over counts: on the machine that trained, the checkpoint must give the same ones."""


def evaluate_cell(cell: Cell, workspace: Workspace, device: torch.device, threads: int = 1) -> None:
    """Test a cell's checkpoint and write ``metrics.json`` and ``per_class.csv``.

    Raises:
        HetflError: the cell is not trained, or its checkpoint does not give the accuracy that the record states.
    """
    torch.set_num_threads(threads)
    folder = workspace.runs / cell.path
    run = read_json(folder / "run.json")
    if run["status"] != "complete":
        raise HetflError(f"{folder}: training is not complete; run dvc repro train@{cell.experiment}")
    setup = set_up(cell, workspace, device)
    tensors, metadata = read_tensors(folder / "model.safetensors", device)
    state = State.from_tensors(int(metadata["round"]), tensors)
    confusion = evaluate(setup.engine, state, setup.draws.at(state.round))
    recorded = Record(folder).lines()[-1]["accuracy"]
    if not np.allclose(
        accuracies(confusion), recorded, rtol=0, atol=SAME if run["device"].startswith("cpu") else 0.02
    ):
        raise HetflError(
            f"{folder}/model.safetensors: gives accuracies {accuracies(confusion)} but rounds.jsonl says {recorded}; "
            "delete the folder and run dvc repro again"
        )
    names = setup.dataset.class_names
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["client", "class", "accuracy", "samples"])
    matrices = confusion.numpy()
    for k, recalls in enumerate(per_class(matrices)):
        for c, recall in enumerate(recalls):
            writer.writerow([k, names[c], "" if np.isnan(recall) else f"{recall:.6f}", int(matrices[k, c].sum())])
    out = workspace.evaluations / cell.path
    write_json(out / "metrics.json", {"fingerprint": run["fingerprint"], **summary(matrices)})
    write_text(out / "per_class.csv", table.getvalue())
