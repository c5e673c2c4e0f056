"""The papers' experiments on a GPU: the batched engine against an eager loop, and both against lower bounds.

    python benchmarks/gpu.py [--quick] [--seconds N] [--only CASE ...] [--json FILE] [--read FILE ...]

It takes at most eleven minutes and writes gpu-<device>.md beside this file. Where a device is lent for
less than that, some of the cases can run at a time, with --only and --json; --read then makes one report of them.

Weights and images are random, with the data sets' shapes; speed does not depend on their values. Every case is a
separate process with a time limit, and a case that fails is a row with its error. An engine runs with more and more
of the samples until it has all of them or its time is over; times with a part of the samples are extrapolated and
marked.

With --quick, or without a GPU, the cases are much smaller, which only tests the script. The lower bounds are always
those of the papers' experiments, counted from shapes.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any
from unittest.mock import patch

import torch
from floors import floor, server_steps, used
from tabulate import tabulate
from work import Rounds, Work, now, thinned

from hetfl import captured
from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Iid, Pathological, Practical
from hetfl.draws import Draws
from hetfl.experiments.plan import cells, load_params
from hetfl.experiments.record import device_name, versions
from hetfl.files import write_text
from hetfl.methods import Method
from hetfl.training.engine import same_for_all
from hetfl.training.engines import make_engine
from hetfl.training.federation import Federation
from hetfl.training.memory import peak_memory, reset_peak_memory

PAPERS = Path(__file__).parents[1] / "papers"
SECONDS = 600
"""Seconds for all cases, by default."""
FIRST = 0.03
"""The share of the samples with which every measurement begins."""
GRACE = 20
"""Grace period in seconds before a case that exceeds its time is ended."""
REFERENCE = 15
"""Seconds for each baseline."""
SETTLING = 3
"""The most rounds after the first one that are played until one records no graph. FedTGP's server records in every
round."""
SMALL = 4
"""Seconds for each variant of a small case."""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["hetfl.training.engines", "hetfl.experiments.plan", "timm"])
H200 = {"bf16": 989e12, "float32": 494e12, "bytes": 4.8e12}
"""From NVIDIA's data sheet (dense), for use without a GPU; float32 as TF32."""

EAGER, EAGER_BF16 = ("sequential", "tf32"), ("sequential", "bfloat16")
BATCHED, BATCHED_BF16 = ("batched", "tf32"), ("batched", "bfloat16")


@dataclass(frozen=True)
class Target:
    """A target on an H200: a minimum or maximum for a figure."""

    figure: str
    least: float | None = None
    most: float | None = None

    def judge(self, row: Mapping[str, Any]) -> str:
        """Whether a row meets the target, and by which factor."""
        value = row.get(self.figure)
        if value is None:
            return f"{self.figure}: not measured"
        if self.least is not None:
            wanted, factor = f"at least {self.least:g}", value / self.least
        else:
            wanted, factor = f"at most {self.most:g}", (self.most or 0) / value
        how = "" if row["share"] == 1 else f", from {row['share']:.0%} of the samples"
        if self.figure == "cell" and not row["all rounds"]:
            how += f", projected from {row['rounds']} rounds"
        return f"{self.figure} {value:.3g}{how}; {wanted}: {'met' if factor >= 1 else 'missed'} ({factor:.3g} of it)"


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        work: the papers'.
        small: the same kind of work for a CPU.
        ways: engine and precision; the first is what the others are compared with, the last is the one with targets.
        seconds: for its process; more is only given to the last case.
        begins: the share of the samples with which the last way begins. Where its first round takes most of the time,
            there is none for a second beginning.
    """

    title: str
    work: Work
    small: Work
    ways: tuple[tuple[str, str], ...]
    seconds: float
    targets: tuple[Target, ...] = ()
    begins: float = FIRST


def paper(experiment: str, row: str, split: str, scheme: type, classes: int) -> Work:
    """The workload of a cell in params.yaml, with random weights of its backbones."""
    params = load_params(PAPERS / "params.yaml")
    cell = next(cell for cell in cells(params, experiment) if (cell.row, cell.split) == (row, split))
    models = [name.partition(".")[0] + (".random" if name.startswith("vit_") else "") for name in cell.models]
    return Work(
        cell.method, cell.settings, tuple(models), scheme(**cell.partition), classes=classes, input=cell.input
    )


def cases() -> dict[str, Case]:
    """All cases by name, in the order in which they run; the last one gets the remaining time."""
    few, plain = (200, 50), InputSettings()
    fedhpl, mixed = (
        paper(f"fedhpl-{kind}-cifar10", "fedhpl", "iid", Iid, 10) for kind in ("homogeneous", "heterogeneous")
    )
    fedproto, fedtgp = (
        paper("fedtgp-htfe8-cifar100-practical", row, "practical", Practical, 100) for row in ("fedproto", "fedtgp")
    )
    fml = replace(
        paper("fedtgp-htcnn8-fashion-mnist", "fml", "practical", Practical, 10),
        samples=(60_000, 10_000),
        shape=(28, 28, 1),
    )
    fgpt = paper("fgpt-cifar100-s10", "fgpt", "s10", Pathological, 100)
    sgd = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 10}
    fedavg = Work("fedavg", sgd | {"lr": 0.01}, ("cnn",), Iid(clients=100))
    cohort = Work("fedavg", sgd | {"participation": 0.05}, ("pfl_cnn",), Iid(clients=1000))
    tiny = {"models": ("digits_vit_base.random",), "samples": few}
    tiny_tgp = {"models": ("cnn", "resnet4"), "samples": few, "classes": 10, "partition": Practical(clients=4)}
    tiny_fgpt = {"models": ("mini_vit.random",), "samples": few, "classes": 10, "input": plain}
    alternating = ("digits_vit_small.random", "digits_vit_base.random", "digits_vit_large.random")
    return {
        "fedproto": Case(
            "FedProto, HtFE_8, 20 clients",
            fedproto,
            replace(fedproto, **tiny_tgp),
            (EAGER, BATCHED),
            100,
            (Target("round", most=2.5), Target("times faster", least=8)),
            begins=1.0,
        ),
        "fedtgp": Case(
            "FedTGP, HtFE_8, 20 clients",
            fedtgp,
            replace(fedtgp, **tiny_tgp, settings=fedtgp.settings | {"server_epochs": 10}),
            (EAGER, BATCHED),
            130,
            (Target("round", most=3.5), Target("server", most=1), Target("times faster", least=8)),
            begins=1.0,
        ),
        "fml": Case(
            "FML, HtCNN_8, 20 clients",
            fml,
            replace(fml, models=("htcnn1", "htcnn2"), samples=few, partition=Practical(clients=4)),
            (EAGER, BATCHED),
            60,
        ),
        "fedavg": Case(
            "FedAvg, 4-layer CNN, 100 clients",
            fedavg,
            replace(fedavg, samples=few, partition=Iid(clients=10)),
            (EAGER, BATCHED),
            40,
            (Target("times faster", least=20),),
        ),
        "cohort": Case(
            "FedAvg, CNN of 1.63 M, 50 of 1,000 clients",
            cohort,
            replace(cohort, samples=few, partition=Iid(clients=40)),
            (EAGER, BATCHED),
            40,
        ),
        "fgpt": Case(
            "FGPT, ViT-B/16, 5 of 100 clients",
            fgpt,
            replace(fgpt, **tiny_fgpt, partition=Pathological(clients=20, classes_per_client=2)),
            (EAGER, BATCHED_BF16),
            60,
        ),
        "mixed": Case(
            "FedHPL, ViT-S/B/L/B/S, 5 clients",
            mixed,
            replace(mixed, models=(*alternating, *alternating[1::-1]), samples=few),
            (EAGER_BF16, BATCHED_BF16),
            70,
        ),
        "fedhpl": Case(
            "FedHPL, ViT-B/16, 5 clients",
            fedhpl,
            replace(fedhpl, **tiny, settings=fedhpl.settings | {"rounds": 3}),
            (EAGER, EAGER_BF16, BATCHED_BF16),
            SECONDS,
            (Target("share of peak", least=0.45), Target("cell", most=120)),
        ),
    }


AMOUNTS = {"train": "train", "pass": "passed", "server": "server", "evaluate": "evaluate"}
"""The parts of a round, each with the attribute of :class:`Amounts` that it grows with."""


@dataclass(frozen=True)
class Amounts:
    """The parts of a round.

    Attributes:
        train: samples trained on, over all epochs.
        passed: samples that participants have.
        evaluate: test samples looked at.
        server: steps of the server's own training; 1 where it has none.
    """

    train: int
    passed: int
    evaluate: int
    server: int


def amounts(method: Method, rounds: Rounds, federation: Federation) -> Amounts:
    """Those of the last round that was played, if these were the clients."""
    settings, data = method.settings, federation.data
    chosen = [data[client] for client in rounds.line.participants]
    tests = {id(one.test): one.test for one in data}
    together = same_for_all(method, rounds.engine.models)
    return Amounts(
        settings.local_epochs * sum(used(len(one.train), settings) for one in chosen),
        sum(len(one.train) for one in chosen),
        len(torch.cat([*tests.values()]).unique()) if together else sum(len(one.test) for one in data),
        server_steps(settings, [len(one.train_images.labels[one.train].unique()) for one in chosen]),
    )


def measure(
    work: Work,
    way: tuple[str, str],
    seconds: float,
    deadline: float,
    device: torch.device,
    all_rounds: bool,
    share: float = FIRST,
) -> Iterator[dict[str, Any]]:
    """Play rounds of one engine, with a share of the samples first and with more as long as there is time.

    Args:
        work: what is computed.
        way: the engine's name and the precision of frozen blocks.
        seconds: for the rounds; the last one may take more.
        deadline: seconds since the epoch; there are no rounds after it.
        device: where.
        all_rounds: whether a whole run is wanted in the end.
        share: to begin with.

    Yields:
        Figures of a round with all samples, each time from more of them.
    """
    engine_name, precision = way
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    reset_peak_memory(device)
    method = work.create()
    federation = work.federation(method, device, precision)
    end = min(time.time() + seconds, deadline)
    smaller: dict[str, Measured] = {}
    while share <= 1:
        started = now(device)
        settings = dict(work.settings)
        if "server_epochs" in settings:
            settings["server_epochs"] = max(1, round(share * settings["server_epochs"]))
        reduced = replace(work, settings=settings).create()
        part = thinned(federation, share, reduced.settings.batch_size)
        rounds = Rounds(make_engine(reduced, part, engine_name), Draws(0))
        with recordings() as made:
            first = rounds.play()["round"]  # records graphs, fills caches
            for _ in range(SETTLING):
                before, one = len(made), rounds.play()
                if len(made) == before:
                    break
        played = [one]
        found = parts(rounds, played)
        yield {"share": share, **figures(rounds, first, played, found, smaller, method, federation)}
        level, pair = now(device) - started, 2 * played[0]["round"]
        if share == 1:
            while len(played) < (method.settings.rounds - 1 if all_rounds else 3):
                if time.time() + played[-1]["round"] > end:
                    break
                played.append(rounds.play())
            found = parts(rounds, played)
            yield {"share": share, **figures(rounds, first, played, found, smaller, method, federation)}
            return
        smaller = found
        # What does not grow with the samples: capturing graphs, making parameters.
        fixed = level - pair
        growth = (0.9 * (end - time.time()) - fixed) / pair
        if growth < 2:
            return
        share = min(1.0, growth * share)


@contextmanager
def recordings() -> Iterator[list[None]]:
    """An item for each step that is recorded as a CUDA graph meanwhile."""
    made: list[None] = []
    record = captured.record

    def counted(*given: Any) -> Any:
        made.append(None)
        return record(*given)

    with patch("hetfl.captured.record", counted):
        yield made


@dataclass(frozen=True)
class Measured:
    """One part of a round, as it was measured.

    Attributes:
        amount: of its samples or steps, see :class:`Amounts`.
        seconds: median over rounds.
    """

    amount: int
    seconds: float

    def grown(self, amount: int, smaller: Measured | None) -> float:
        """Seconds of a larger amount.

        Args:
            amount: the larger one.
            smaller: measured before with less, which shows how much of the time does not grow with the amount, such
                as replaying a step with few samples in it. Without it, all of the time does.
        """
        slope = self.seconds / self.amount
        if smaller and smaller.amount < self.amount:
            slope = min(slope, max(0.0, (self.seconds - smaller.seconds) / (self.amount - smaller.amount)))
        return self.seconds + slope * (amount - self.amount)


def sweeps(method: Method) -> bool:
    """Whether participants pass over their samples after training."""
    return method.statistics_source(1) in ("own", "before", "stored")


def parts(rounds: Rounds, played: Sequence[dict[str, float]]) -> dict[str, Measured]:
    """The parts of the rounds that were played, by name."""
    method, federation = rounds.engine.method, rounds.engine.federation
    spent = {name: median(one[name] for one in played) for name in played[0]}
    spent["pass"] = min(rounds.passes(), spent["clients"]) if sweeps(method) else 0.0
    spent["train"] = spent["clients"] - spent["pass"]
    had = amounts(method, rounds, federation)
    return {name: Measured(getattr(had, kind), spent[name]) for name, kind in AMOUNTS.items()}


def figures(
    rounds: Rounds,
    first: float,
    played: Sequence[dict[str, float]],
    found: Mapping[str, Measured],
    smaller: Mapping[str, Measured],
    method: Method,
    federation: Federation,
) -> dict[str, Any]:
    """Extrapolate the time of a round with all samples from rounds with a part of them.

    Args:
        rounds: the rounds that were played, with a part of the samples.
        first: seconds of the first one.
        played: seconds of the others, by part.
        found: their parts, from :func:`parts`.
        smaller: the same of earlier rounds with fewer samples; empty where there were none.
        method: the method with all steps of its server.
        federation: the clients with all samples.
    """
    engine, device = rounds.engine, rounds.device
    whole = amounts(method, rounds, federation)
    scaled = {name: part.grown(getattr(whole, AMOUNTS[name]), smaller.get(name)) for name, part in found.items()}
    total = sum(scaled.values())
    passed = whole.evaluate + (whole.passed if sweeps(method) else 0)
    left = method.settings.rounds - 1 - len(played)
    growth = total / median(one["round"] for one in played)
    return {
        **scaled,
        "round": total,
        "first": first,
        # Unknown if the pass alone was measured while the machine was busy, and seems to take all the clients' time.
        "train rate": whole.train / scaled["train"] if scaled["train"] else None,
        "pass rate": passed / (scaled["pass"] + scaled["evaluate"]),
        "cell": growth * (rounds.opening + first + sum(one["round"] for one in played)) + left * total,
        "rounds": 1 + len(played),
        "all rounds": left == 0 and engine.federation is federation,
        "memory": peak_memory(device),
        "predicted memory": getattr(engine.trainer, "predicted_memory", None),
    }


def typical(function: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Seconds per call in a series of calls: the median of five timings after an uncounted one."""
    timings = []
    for _ in range(6):
        began = now(device)
        for _ in range(repeats):
            function()
        timings.append((now(device) - began) / repeats)
    return median(timings[1:])


def ceilings(device: torch.device) -> dict[str, float]:
    """Measure the machine's limits: matrix products, copies (bytes read and written), seconds of an empty launch."""
    cuda = device.type == "cuda"
    side, room = (8192, 2**30) if cuda else (512, 2**24)
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    found = {}
    torch.backends.cuda.matmul.allow_tf32 = True  # as runs have it with the precision auto
    for name, dtype in (("bf16", torch.bfloat16), ("float32", torch.float32)):
        x, y = a.to(dtype), b.to(dtype)
        found[name] = 2 * side**3 / typical(lambda x=x, y=y: x @ y, device, 20)  # type: ignore[misc]
    source = torch.empty(room, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found["bytes"] = 2 * room / typical(lambda: target.copy_(source), device, 20)
    tiny = torch.zeros(1, device=device)
    found["eager launch"] = typical(lambda: tiny.add_(1), device, 1000)
    if cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(1000):
                tiny.add_(1)
        found["launch"] = typical(graph.replay, device, 1) / 1000
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small work in place of the papers'; writes no Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help="for all cases (%(default)s)")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="some of the cases; writes no Markdown")
    parser.add_argument("--read", nargs="+", type=Path, metavar="FILE", help="only report what --json wrote")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    small = arguments.quick or device.type != "cuda"
    everything = cases()
    chosen = {name: everything[name] for name in arguments.only or everything}
    if arguments.read:
        found = joined([json.loads(file.read_text()) for file in arguments.read], list(everything))
    else:
        began = time.monotonic()
        found = gathered(run_all(chosen, device, small, arguments.seconds), device)
        found |= {"small": small, "seconds": time.monotonic() - began}
    text = report(found, everything)
    print(text)
    if arguments.json:
        write_text(arguments.json, json.dumps(found, indent=1) + "\n")
    if arguments.read or not (arguments.quick or arguments.only):
        _, _, name = found["device"].partition(": ")
        place = "-".join(name.lower().split()) if found["device"].startswith("cuda") else "cpu"
        write_text(Path(__file__).with_name(f"gpu-{place}.md"), text + "\n")


def joined(parts: Sequence[dict[str, Any]], order: Sequence[str]) -> dict[str, Any]:
    """What several runs on one device found: of each case what the last of them did, as of the machine's limits.

    Raises:
        ValueError: they are from different devices or versions, or not all of the papers' experiments.
    """
    last, place = parts[-1], {name: number for number, name in enumerate(order)}
    for name in ("device", "versions", "small"):
        if any(part[name] != last[name] for part in parts):
            raise ValueError(f"{name}: {last[name]} and others")
    floors: dict[str, Any] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        floors |= part["floors"]
        rows |= {name: list(of_case) for name, of_case in groupby(part["rows"], key=lambda row: row["part"])}
    return {
        **last,
        "seconds": sum(part["seconds"] for part in parts),
        "floors": {name: floors[name] for name in sorted(floors, key=place.__getitem__)},
        "rows": list(chain(*(rows[name] for name in sorted(rows, key=lambda name: place.get(name, -1))))),
    }


class Part:
    """A part of the benchmark in a separate process.

    Args:
        name: of the case, or what else it is.
        deadline: seconds since the epoch.
        function: gives what it finds one by one.
        given: its arguments.
    """

    def __init__(self, name: str, deadline: float, function: Callable[..., Iterator[dict]], *given: Any) -> None:
        self.name, self.deadline = name, deadline
        self._folder = tempfile.TemporaryDirectory()
        self._out = Path(self._folder.name) / "lines"
        self._process = PROCESSES.Process(target=write_lines, args=(self._out, function, *given))
        self._refused: str | None = None
        try:
            self._process.start()
        except (OSError, EOFError) as error:  # the others go on
            self._refused = one_line(error)

    def lines(self) -> list[dict[str, Any]]:
        """Yield its findings, and at the end the reason if it ended early."""
        if self._refused:
            return [{"part": self.name, "error": self._refused}]
        self._process.join(max(self.deadline - time.time(), 0) + GRACE)
        error = None
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            error = "ended, it took too long"
        elif self._process.exitcode:
            error = f"ended with {self._process.exitcode}"
        written = self._out.read_text().splitlines() if self._out.exists() else []
        lines = [{"part": self.name, **json.loads(line)} for line in written if line.endswith("}")]
        self._folder.cleanup()
        return [*lines, {"part": self.name, "error": error}] if error else lines


def write_lines(out: Path, function: Callable[..., Iterator[dict]], *given: Any) -> None:
    """Write a function's findings as lines of JSON, each as soon as it exists."""
    with out.open("w") as file:
        try:
            for line in function(*given):
                print(json.dumps(line), file=file, flush=True)
        except Exception as error:
            print(json.dumps({"error": one_line(error)}), file=file)


def run_all(chosen: Mapping[str, Case], device: torch.device, small: bool, seconds: float) -> list[dict[str, Any]]:
    """The findings of all parts. The lower bounds, which need no device, are counted in parallel."""
    end = time.time() + seconds
    floors = Part("floors", end, run_floors, chosen, small)
    lines = Part("machine", time.time() + 60, run_ceilings, device).lines()
    for name, case in chosen.items():
        deadline = min(time.time() + case.seconds, end)
        lines += Part(name, deadline, run_case, case, deadline, device, small).lines()
    return lines + floors.lines()


def run_ceilings(device: torch.device) -> Iterator[dict[str, Any]]:
    """The machine's limits."""
    yield {"machine": ceilings(device)}


def run_floors(chosen: Mapping[str, Case], small: bool) -> Iterator[dict[str, Any]]:
    """The lower bounds of all cases, and of the small cases if these run."""
    torch.set_num_threads(1)
    for name, case in chosen.items():
        precision = case.ways[-1][1]
        try:
            # The share of the peak needs the operations of the measured case.
            ran = {"ran": floor(case.small, precision)} if small else {}
            yield {"part": name, "floor": floor(case.work, precision), **ran}
        except Exception as error:  # the other floors stand
            yield {"error": f"{name}: {one_line(error)}"}


def run_case(case: Case, deadline: float, device: torch.device, small: bool) -> Iterator[dict[str, Any]]:
    """Measure the variants of a case, one after another."""
    if device.type == "cpu":
        torch.set_num_threads(1)
    for way in case.ways:
        last = way == case.ways[-1]
        seconds = SMALL if small else deadline - time.time() if last else REFERENCE
        all_rounds = last and any(target.figure == "cell" for target in case.targets)
        label = {"engine": way[0], "precision": way[1]}
        try:
            with eager() if way[0] == "sequential" else nullcontext():
                work, share = (case.small, 1.0) if small else (case.work, case.begins if last else FIRST)
                for row in measure(work, way, seconds, deadline, device, all_rounds, share):
                    yield label | row
        except Exception as error:  # the other ways go on
            yield label | {"error": one_line(error)}


@contextmanager
def eager() -> Iterator[None]:
    """The baseline launches every kernel separately, as torch has them, also on the server."""
    with patch("hetfl.captured.EAGER_CALLS", math.inf), patch("hetfl.fused.compilable", lambda given: False):
        yield


def one_line(error: Exception) -> str:
    """An error's message, for a cell of a table."""
    return shorten(f"{type(error).__name__}: {error}".partition("\n")[0], 120)


def gathered(lines: Sequence[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """Combine all findings: the last figures of every variant, and ratios between them."""
    machine: dict[str, float] = {}
    floors: dict[str, Any] = {}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        if "machine" in line:
            machine = line["machine"]
        elif "floor" in line:
            floors[line["part"]] = line
        else:
            rows.setdefault((line["part"], line.get("engine"), line.get("precision")), {}).update(line)
    references: dict[str, float] = {}
    for row in rows.values():
        if "round" not in row:
            continue
        row["times faster"] = references.setdefault(row["part"], row["round"]) / row["round"]
        if machine and row["train rate"] and (line := floors.get(row["part"])):
            counted = line.get("ran", line["floor"])
            row["share of peak"] = row["train rate"] * counted["train"] / counted["trained"] / machine["bf16"]
    return {
        "device": device_name(device),
        "versions": versions(),
        "machine": machine,
        "floors": {name: line["floor"] for name, line in floors.items()},
        "rows": list(rows.values()),
    }


FIGURES = {
    "round": ("round (s)", 1),
    "train": ("training", 1),
    "pass": ("upload pass", 1),
    "server": ("server", 1),
    "evaluate": ("test", 1),
    "train rate": ("trained images/s", 1),
    "pass rate": ("passed images/s", 1),
    "share of peak": ("of bf16 peak", 1),
    "memory": ("memory (MiB)", 2**20),
    "predicted memory": ("predicted", 2**20),
    "times faster": ("times faster", 1),
    "first": ("first round (s)", 1),
    "share": ("of samples", 1),
    "error": ("", 1),
}
FLOORS = {
    "trained": ("trained images", 1),
    "steps": ("steps", 1),
    "train": ("training (TFLOP)", 1e12),
    "pass": ("upload pass", 1e12),
    "evaluate": ("test", 1e12),
    "server": ("server", 1e12),
    "bytes": ("GB moved", 1e9),
    "operations": ("operations a step", 1),
    "launches": ("launches", 1),
    "matrix": ("matrix (s)", 1),
    "memory": ("memory (s)", 1),
    "launching": ("launches (s)", 1),
    "run": ("all rounds (PFLOP)", 1e15),
}
"""Columns: heading and unit."""


def report(found: dict[str, Any], known: Mapping[str, Case]) -> str:
    """Everything as Markdown."""
    said, machine = found["versions"], found["machine"]
    cuda = found["device"].startswith("cuda")
    about = f"{found['device']}, torch {said['torch']}, timm {said['timm']}; {found['seconds']:.0f} s in all."
    if not cuda:
        about += " **This machine has no GPU: GPU figures are missing**, and no target can be judged."
    if found["small"]:
        about += " The rows show small experiments of the same kind, not the papers'; they test the script."
    rows, targets = [], []
    for row in found["rows"]:
        case = known.get(row["part"])
        rows.append(
            [case.title if case else row["part"], row.get("engine"), row.get("precision"), *shown(row, FIGURES)]
        )
        if case and not found["small"] and "round" in row and (row["engine"], row["precision"]) == case.ways[-1]:
            targets += [f"- {case.title}: {target.judge(row)}" for target in case.targets]
    rates = {**H200, **machine} if cuda else H200
    floors = []
    for name, counted in found["floors"].items():
        case = known[name]
        work = sum(counted[part] for part in ("train", "pass", "evaluate", "server"))
        counted = counted | {
            "matrix": work / rates["bf16" if case.ways[-1][1] == "bfloat16" else "float32"],
            "memory": counted["bytes"] / rates["bytes"],
            "launching": counted["launches"] * rates["launch"] if "launch" in rates else None,
            "run": work * case.work.create().settings.rounds,
        }
        floors.append([case.title, *shown(counted, FLOORS)])
    parts = [
        "# The papers' experiments on a GPU",
        about,
        table(rows, ["", "engine", "precision", *(heading for heading, _ in FIGURES.values())]),
        "Times of a round and of its parts are medians over the rounds after the first one. If a row used a part of "
        "the samples, its times are extrapolated to all samples: along a line through the last two measurements, or "
        "in proportion where there is one. The upload pass is the participants' pass over their samples after "
        "training; passed images are those of this pass and of the test. Speed-ups are relative to the case's first "
        "row.",
        *(["Targets for the last row of each case, on an H200:", "\n".join(targets)] if targets else []),
        "## Lower bounds of a round of the papers' experiments",
        table(floors, ["", *(heading for heading, _ in FLOORS.values())]),
        "Counted from shapes; a multiplication and an addition are two operations. Operations per step are those "
        "that make a tensor in one step of each architecture, forward and backward, without the optimiser. Launches "
        "are their number in a round if clients of one architecture take their steps together; fused kernels need "
        "fewer. Bytes are those of parameters, of gradients, and of activations that the backward pass needs, "
        "without attention scores. Seconds are operations or bytes divided by "
        f"{'the rates below' if cuda else 'the rates in the data sheet of an H200'}.",
    ]
    if machine:
        launches = f"a launch {1e6 * machine['eager launch']:.1f} µs"
        if "launch" in machine:
            launches += f", {1e6 * machine['launch']:.2f} µs in a graph"
        parts.append(
            f"Measured on this machine: products of large matrices {machine['bf16'] / 1e12:.4g} TFLOP/s in bf16 and "
            f"{machine['float32'] / 1e12:.4g} TFLOP/s in float32 (in TF32 if the device has it), copies "
            f"{machine['bytes'] / 1e9:.4g} GB/s, {launches}."
        )
    return "\n\n".join(parts)


def shown(figures: Mapping[str, Any], columns: Mapping[str, tuple[str, float]]) -> list[str]:
    """The cells of these columns, numbers with three digits; empty for missing values."""

    def text(value: Any, unit: float) -> str:
        if not isinstance(value, int | float):
            return value or ""
        return f"{value / unit:,.0f}" if abs(value / unit) >= 100 else f"{value / unit:.3g}"

    return [text(figures.get(name), unit) for name, (_, unit) in columns.items()]


def table(rows: list[list[Any]], headers: list[str]) -> str:
    """Markdown."""
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    main()
