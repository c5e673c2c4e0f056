"""One round of FedTGP's methods on the architectures that its tables name, in full size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from playing import play_round, start
from settings_files import PAPER_PARAMS as PARAMS

from hetfl.data.partitions import Partition
from hetfl.draws import Draws
from hetfl.experiments.plan import cells
from hetfl.methods import create
from hetfl.training.engines import make_engine
from hetfl.training.federation import build_federation

EXPERIMENTS = ["fedtgp-htfe8-cifar100-practical", "fedtgp-extractors-htfe9", "fedtgp-classifiers-htfe8-htc4"]
METHODS = ("lg-fedavg", "fedgen", "fml", "fedkd", "feddistill", "fedproto", "fedtgp")
CASES = [
    (experiment, method)
    for experiment in EXPERIMENTS
    for method in METHODS
    if method in PARAMS.experiments[experiment].rows
]


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "method"), CASES)
def test_a_round_of_every_architecture(toy_data, experiment, method):
    """Two batches of ten a client; what travels has the size of the formulas."""
    cell = next(cell for cell in cells(PARAMS, experiment) if cell.row == method)
    made = create(method, cell.settings | {"server_epochs": 1} if method == "fedtgp" else cell.settings, 3)
    clients = len(cell.models)
    parts = tuple(np.arange(20) + 4 * k for k in range(clients))
    federation = build_federation(
        made, cell.models, toy_data, Partition(parts, None), Path(), torch.device("cpu"), inputs=cell.input
    )
    engine = make_engine(made, federation, "sequential")
    state, _ = start(engine, Draws(0))
    for round in (1, 2):
        state, line = play_round(engine, state, Draws(0).at(round))
        assert all(np.isfinite(line.loss))
    sizes = {
        "lg-fedavg": 3 * 513,
        "fedgen": 3 * 513,
        "fml": federation.models[0].elements(["auxiliary"]),
        "feddistill": 3 * (3 + 1),
        "fedproto": 3 * (512 + 1),
        "fedtgp": 3 * (512 + 1),
    }
    if method != "fedkd":
        assert line.up.elements == clients * sizes[method]
