"""Run records without a training, and processes that mirror them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hetfl.files import write_text


def make_run(experiment, row="fedhpl", split="iid", seed=0, status="complete", **changes):
    run = {
        "status": status,
        "fingerprint": f"{row}-{split}-{seed}",
        "experiment": experiment,
        "row": row,
        "title": "FedHPL",
        "paper": "fedhpl",
        "table": experiment,
        "method": "fedhpl",
        "dataset": "digits",
        "split": split,
        "seed": seed,
        "models": ["digits_vit_base"] * 5,
        "settings": {
            "optimizer": {"lr": 0.05, "name": "sgd"},
            "prompts": [1, 2],
            "long": "x" * 7000,
            "no": None,
        },
        "rounds": 5,
        "clients": 5,
        "inputs": {"dataset": "d1", "partition": "p1", "weights": {"digits_vit_base": "w1"}},
        "parameters": {"trainable": [1634] * 5, "total": [20000] * 5},
        "versions": {"hetfl": "0.1.0", "python": "3.11.7"},
        "device": "cpu: test",
        "engine": "sequential",
        "precision": "float32",
        "commit": "abc123",
        "started": "2026-05-01T10:00:00Z",
        **changes,
    }
    if status == "complete":
        run["finished"] = "2026-05-01T10:01:00Z"
    return run


def make_line(number, clients=5, shift=0.0):
    line = {"round": number, "participants": list(range(clients)), "down": {"elements": 0, "bytes": 0}}
    if number == 0:
        return line | {"up": {"elements": 5, "bytes": 20}, "seconds": {"register": 0.1}}
    return line | {
        "accuracy": [0.5 + shift + (number + client) / 100 for client in range(clients)],
        "loss": [0.4, None, 0.6],
        "up": {"elements": 8800, "bytes": 35200},
        "seconds": {"train": 0.5, "statistics": 0.1, "server": 0.0, "evaluate": 0.2},
        "peak_memory": 3 * 2**20,
        "diagnostics": {"valid classes!": 10.0, "text": "no", "shrinkage": [0.1, 0.3]},
        "clients": {
            "kd_loss": [0.2, None, 0.4],
            "upload_rate": [[1.0, 0.5, None], [None, 0.25, 0.25]],
            "kd_max": [None] * clients,
        },
    }


def write_cell(root: Path, run, rounds=6, **kind) -> Path:
    folder = root / "runs" / run["experiment"] / run["method"] / run["row"] / f"{run['split']}-s{run['seed']}"
    folder.mkdir(parents=True, exist_ok=True)
    # As a record is written: no reader ever sees a part.
    write_text(
        folder / "rounds.jsonl", "".join(json.dumps(make_line(number, **kind)) + "\n" for number in range(rounds))
    )
    if run["status"] == "complete":
        (folder / "model.safetensors").write_bytes(b"weights")
    temporary = folder / "run.json.new"
    temporary.write_text(json.dumps(run))
    temporary.replace(folder / "run.json")
    return folder


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
