"""Seconds from the start of a process to its first result: the command line's help, imports, first optimiser steps.

    python benchmarks/start.py [--quick] [--json FILE]

It needs the embedded default's digits (dvc repro partition@digits pretrain-digits) and writes a table beside this
file. Each time is that of a separate process, from before its start to the event. An uncounted first run of each
process puts files into the page cache and compiles modules. First steps are those of ``hetfl train`` in a temporary
folder, until the end of the first optimiser step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tabulate import tabulate

ROOT = Path(__file__).parents[1]

STEP = """
import os, time
from hetfl.optimisers import Optimiser
usual = Optimiser.step
def step(self):
    usual(self)
    print("FIRST STEP", time.time(), flush=True)
    os._exit(0)
Optimiser.step = step
from hetfl.cli import main
main()
"""

HELP, TRAIN = 1.0, 5.0
"""Targets in seconds."""

CELLS = {
    "first step, CNN": "digits-fedtgp --row fedtgp --split practical-8",
    "first step, ResNet": "digits-homogeneous --row fedavg --split iid",
    "first step, prompted ViT": "digits-homogeneous --row fedhpl --split iid",
}
"""Arguments of ``hetfl train``."""

IMPORTS = {
    "Python alone": "",
    "torch": "import torch",
    "torch, hetfl": "import hetfl.train",
    "torch, hetfl, parts of timm": "import hetfl.train, hetfl.models.parts as p\n"
    "p.part('timm.models.vision_transformer')",
    "torch, all of timm": "import timm",
    "torch, its compiler": "import torch._dynamo",
    "MLflow": "from mlflow.tracking import MlflowClient",
}


def seconds(program: str, *arguments: str, folder: Path, environment: dict[str, str]) -> float:
    """Until a process ends, or until it says that its first step is over."""
    command = [sys.executable, "-c", program, *arguments]
    began = time.time()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    ended = time.time()
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments) or program}: {done.stderr[-2000:]}")
    said = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("FIRST STEP")]
    if program is STEP and not said:
        raise SystemExit(f"{' '.join(arguments)}: took no step; {done.stdout[-2000:]}")
    return (float(said[0]) if said else ended) - began


def case(name: str, byte_code: str) -> float:
    """One process of one row; its compiled modules lie in a folder, whatever the environment says."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        for part in ("data", "partitions", "weights", "params.yaml"):
            (run / part).symlink_to((ROOT / part).resolve())
        if name in CELLS:
            return seconds(STEP, "train", *CELLS[name].split(), "--seed", "0", folder=run, environment=environment)
        if name in IMPORTS:
            return seconds(IMPORTS[name], folder=run, environment=environment)
        return seconds("from hetfl.cli import main; main()", "--help", folder=run, environment=environment)


def rows(found: dict[str, list[float]]) -> list[list[object]]:
    """One row per case: median and range, target, and the ratio to the target."""
    targets = {"hetfl --help": HELP, **dict.fromkeys(CELLS, TRAIN)}
    lines: list[list[object]] = []
    for name, times in found.items():
        middle, target = median(times), targets.get(name)
        verdict = "" if target is None else f"{'met' if middle < target else 'missed'} ({middle / target:.2f})"
        label = name if name in targets else f"import: {name}"
        lines.append([label, middle, min(times), max(times), f"< {target:g} s" if target else "", verdict])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two processes a row instead of seven")
    parser.add_argument("--json", type=Path, help="write all times there, too")
    arguments = parser.parse_args()
    for needed in ("data/digits", "partitions/digits", "weights/digits_vit_base.safetensors"):
        if not (ROOT / needed).exists():
            raise SystemExit(f"{needed}: is missing; run dvc repro partition@digits pretrain-digits")
    names = ["hetfl --help", *CELLS, *IMPORTS]
    repeats = 2 if arguments.quick else 7
    found: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as byte_code:
        for repeat in range(repeats + 1):  # interleaved; the first fills the caches
            for name in names:
                taken = case(name, byte_code)
                if repeat:
                    found[name].append(taken)
    report(found, repeats, arguments.json)


def report(found: dict[str, list[float]], repeats: int, path: Path | None) -> None:
    """Print the table, write it beside this file, and all times where they are wanted."""
    import torch

    from hetfl.experiments.record import device_name, versions
    from hetfl.files import write_json, write_text

    machine = f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores"
    known = versions()
    used = ", ".join(f"{name} {known[name]}" for name in ("python", "torch", "timm") if name in known)
    head = f"{machine}; {used}. The table shows medians over {repeats} interleaved processes, each with one thread."
    table = tabulate(
        rows(found),
        headers=["", "seconds", "least", "most", "target", "ratio to it"],
        tablefmt="github",
        floatfmt=".2f",
    )
    text = f"# Time from the start of a process\n\n{head}\n\n{table}"
    print(text)
    write_text(Path(__file__).with_name("start-cpu.md"), text + "\n")
    if path is not None:
        write_json(path, {"machine": machine, "versions": known, "seconds": found})


if __name__ == "__main__":
    main()
