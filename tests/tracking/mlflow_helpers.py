"""Run records as MLflow shows them, and processes that mirror them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forked import Forked
from record_factory import make_round, write_record


def describe(experiment, row="fedhpl", split="iid", seed=0, status="complete", **changes):
    """Where a cell lies, and what its run says differently from the one that was trained."""
    return {
        "path": f"{experiment}/fedhpl/{row}/{split}-s{seed}",
        "status": status,
        "fingerprint": f"{row}-{split}-{seed}",
        "dataset": "digits",
        "models": ["digits_vit_base"] * 5,
        "settings": {
            "optimizer": {"lr": 0.05, "name": "sgd"},
            "prompts": [1, 2],
            "long": "x" * 7000,
            "no": None,
        },
        "rounds": 5,
        "inputs": {"dataset": "d1", "partition": "p1", "weights": {"digits_vit_base": "w1"}},
        "versions": {"hetfl": "0.1.0", "python": "3.11.7"},
        "commit": "abc123",
        "started": "2026-05-01T10:00:00+00:00",
        **changes,
    }


def line(number, clients=5, shift=0.0, **more):
    nothing = {"elements": 0, "bytes": 0}
    if number == 0:
        untested = {"accuracy": None, "pooled": None, "clients": {}}
        up = {"elements": 5, "bytes": 20}
        return make_round(0, up=up, down=nothing, seconds={"register": 0.1}, **untested, **more)
    return make_round(
        number,
        **{
            "participants": list(range(clients)),
            "accuracy": [0.5 + shift + (number + client) / 100 for client in range(clients)],
            "loss": [0.4, None, 0.6],
            "up": {"elements": 8800, "bytes": 35200},
            "down": nothing,
            "seconds": {"train": 0.5, "statistics": 0.1, "server": 0.0, "evaluate": 0.2},
            "peak_memory": 3 * 2**20,
            "diagnostics": {"valid classes!": 10.0, "none": None, "shrinkage": [0.1, 0.3]},
            "clients": {
                "kd_loss": [0.2, None, 0.4],
                "upload_rate": [[1.0, 0.5, None], [None, 0.25, 0.25]],
                "kd_max": [None] * clients,
            },
        }
        | more,
    )


def write_cell(root: Path, run, rounds=6, diverged=(), **kind) -> Path:
    """A cell's record; in rounds that ``diverged`` a client did."""
    lines = [line(number, **kind, **({"diverged": [0]} if number in diverged else {})) for number in range(rounds)]
    return write_record(root / "runs", lines=lines, finished="2026-05-01T10:01:00+00:00", **run)


def sync_forked(root: Path, folder: Path) -> Forked:
    """Mirror a cell in a copy of this process, which has MLflow already."""
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    from hetfl import tracking

    return Forked(root, lambda: print(tracking.sync([folder], Path())))


def sync_in_a_process(root: Path, folder: Path) -> subprocess.Popen:
    # A background job inherits that Ctrl-C is ignored.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "import sys, pathlib, hetfl.tracking as t; print(t.sync([pathlib.Path(sys.argv[1])], pathlib.Path()))"
    return subprocess.Popen(
        [sys.executable, "-c", code, folder],
        cwd=root,
        env={name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
