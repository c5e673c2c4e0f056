"""hetfl's round loop against those of other frameworks and a plain PyTorch loop, for the same task on one device.

    python benchmarks/peers.py [--rounds N] [--repeats 3] [--quick] [--only NAME ...] [--python PATH] [--json FILE]

The task is the IID CIFAR-10 benchmark of pfl-research (Granqvist et al., NeurIPS 2024): 1,000 clients with 50 images
each, 50 clients per round, one local epoch of SGD with batches of 10. All implementations get the same initial
weights, participants and batches. The other frameworks are installed from requirements-peers.txt into a separate
environment, whose interpreter is --python; the table names those that are missing. Images are those of data/cifar10
(dvc --cd papers repro download-cifar10) if it is prepared, otherwise random. The table is written beside this file.

Every implementation is a separate process. The other frameworks' interpreter also runs this file, so it imports hetfl
only in hetfl's own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAPERS = Path(__file__).parents[1] / "papers"
CLIENTS, SAMPLES, COHORT, BATCH, RATE = 1000, 50, 50, 10, 0.1
EVERY = 10
"""Rounds between central evaluations; there is also one after the last round."""
EVALUATION_BATCH = 512
CLASSES = 10
ROUNDS = {"cpu": 20, "cuda": 100}
QUICK_TESTS = 1000
"""Images of a quick central evaluation; all 10,000 take longer than a round."""
NETWORKS = {"linear": "linear, 30,730 parameters", "pfl_cnn": "CNN, 1,626,442 parameters"}
AGREE = 0.02
"""Allowed difference of final accuracies: sums in different orders round differently, and training amplifies it."""


def network(name: str) -> nn.Module:
    """The task's networks in plain PyTorch."""
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, CLASSES))
    convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(12544, 128), nn.ReLU(), nn.Linear(128, CLASSES))


@dataclass
class Task:
    """The task of all implementations.

    Attributes:
        images, labels: normalised training images [N, 3, 32, 32] and their classes.
        test_images, test_labels: for the central evaluation.
        start: the initial parameters in the network's order.
        clients: [clients, samples], int64, the images of each client.
        participants: the clients of each round.
        orders: [rounds, cohort, samples], int64, the order in which each participant sees its images.
    """

    name: str
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    start: list[Tensor]
    clients: Tensor
    participants: list[list[int]]
    orders: Tensor

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.participants)

    def network(self) -> nn.Module:
        """The network with its initial parameters."""
        made = network(self.name).to(self.images.device)
        with torch.no_grad():
            for parameter, value in zip(made.parameters(), self.start, strict=True):
                parameter.copy_(value)
        return made

    def epoch(self, round: int, place: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a round's participant in the order in which it sees them; rounds start at 0."""
        rows = self.clients[self.participants[round][place]][self.orders[round, place]].to(self.images.device)
        return self.images[rows], self.labels[rows]

    def batches(self, round: int, place: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same images and labels, in batches."""
        images, labels = self.epoch(round, place)
        return zip(images.split(BATCH), labels.split(BATCH), strict=True)

    def tests(self, round: int) -> bool:
        """Whether there is a central evaluation after a round, of which the first is 0."""
        return (round + 1) % EVERY == 0 or round + 1 == self.rounds

    @torch.inference_mode()
    def accuracy(self, module: nn.Module) -> float:
        """The central evaluation."""
        batches = zip(self.test_images.split(EVALUATION_BATCH), self.test_labels.split(EVALUATION_BATCH), strict=True)
        right = sum(int((module(images).argmax(dim=1) == labels).sum()) for images, labels in batches)
        return right / len(self.test_labels)


@lru_cache(maxsize=1)
def read_task(folder: str, name: str) -> Task:
    """A task from its files."""
    plan = torch.load(Path(folder) / "plan.pt")
    data = Path(plan["data"])
    pixels, classes = (
        [np.load(data / f"{split}-{kind}.npy") for split in ("train", "test")] for kind in ("images", "labels")
    )
    images, tests = (torch.from_numpy(p).permute(0, 3, 1, 2).float().div_(127.5).sub_(1).contiguous() for p in pixels)
    labels, answers = (torch.from_numpy(values).long() for values in classes)
    plans = plan["clients"], plan["participants"], plan["orders"]
    few = slice(plan["tests"])
    tensors = [tensor.to(plan["device"]) for tensor in (images, labels, tests[few], answers[few])]
    return Task(name, *tensors, [value.to(plan["device"]) for value in plan["start"][name]], *plans)


def prepare_torch() -> None:
    """One thread, and on a GPU products of factors rounded to TF32, as hetfl has them there."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


@dataclass
class Clock:
    """Seconds of rounds, and separately of central evaluations."""

    started: float
    rounds: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    first: float = 0.0
    """From the start of the process to the end of the first round."""

    def __post_init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self, seconds: list[float]) -> None:
        """What passed since the last lap was one of these; of evaluations that did not happen, nothing."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds.append(now - self._last)
        self._last = now
        if seconds is self.rounds and len(seconds) == 1:
            self.first = time.time() - self.started

    def evaluated(self, accuracy: float) -> None:
        """A central evaluation has ended."""
        self.accuracy = accuracy
        self.lap(self.evaluations)

    def skip(self) -> None:
        """What passed since the last lap does not count."""
        self._last = time.perf_counter()


def bare(folder: str, name: str, clock: Clock) -> None:
    """A training loop without a framework."""
    task = read_task(folder, name)
    module = task.network()
    parameters = list(module.parameters())
    optimiser = torch.optim.SGD(parameters, RATE)
    server = [value.clone() for value in task.start]
    clock.skip()
    for round in range(task.rounds):
        total = [torch.zeros_like(value) for value in server]
        for place in range(COHORT):
            with torch.no_grad():
                for parameter, value in zip(parameters, server, strict=True):
                    parameter.copy_(value)
            for images, labels in task.batches(round, place):
                optimiser.zero_grad()
                F.cross_entropy(module(images), labels).backward()
                optimiser.step()
            with torch.no_grad():
                for summed, parameter in zip(total, parameters, strict=True):
                    summed += parameter
        server = [summed / COHORT for summed in total]
        clock.lap(clock.rounds)
        if task.tests(round):
            with torch.no_grad():
                for parameter, value in zip(parameters, server, strict=True):
                    parameter.copy_(value)
            clock.evaluated(task.accuracy(module))


def hetfl(folder: str, name: str, clock: Clock) -> None:
    """hetfl's own round loop, with the default engine of the device."""
    from hetfl.data.partitions import Partition
    from hetfl.data.store import Dataset, Subset
    from hetfl.draws import Draws
    from hetfl.methods import create
    from hetfl.training.engines import make_engine
    from hetfl.training.federation import build_federation
    from hetfl.training.rounds import play_round, start

    plan = torch.load(Path(folder) / "plan.pt")
    rounds, data = len(plan["participants"]), Path(plan["data"])
    splits = {
        split: Subset(*(np.load(data / f"{split}-{kind}.npy", mmap_mode="c") for kind in ("images", "labels")))
        for split in ("train", "test")
    }
    dataset = Dataset("yardstick", "yardstick", tuple(map(str, range(CLASSES))), splits, "")
    method = create("fedavg", SETTINGS | {"rounds": rounds}, CLASSES)
    # Every client is tested on one thousandth of the test images, so that together they use all.
    tests = np.array_split(np.arange(len(splits["test"]))[: plan["tests"]], CLIENTS)
    partition = Partition(tuple(plan["clients"].numpy()), tuple(tests))
    device = torch.device(plan["device"])
    federation = build_federation(method, [name], dataset, partition, Path(), device, precision="tf32")
    engine, draws = make_engine(method, federation), Draws(0)
    server, _ = start(engine, draws)
    clock.skip()
    for round in range(rounds):
        server, line = play_round(engine, server, draws.at(round + 1))
        assert line.participants == plan["participants"][round]
        clock.lap(clock.rounds)
        clock.rounds[-1] -= line.seconds["evaluate"]
        if line.pooled is not None:
            clock.evaluations.append(line.seconds["evaluate"])
            clock.accuracy = line.pooled


def pfl(folder: str, name: str, clock: Clock) -> None:
    """pfl's simulated backend in one process."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    task = read_task(folder, name)

    class Evaluation(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            clock.lap(clock.rounds)
            if task.tests(central_iteration):
                clock.evaluated(task.accuracy(model.pytorch_model))
            return False, Metrics()

    module: Any = task.network()
    module.loss = lambda images, labels: F.cross_entropy(module(images), labels)
    module.metrics = lambda images, labels: {}
    places = ((round, place) for round in range(task.rounds) for place in range(COHORT))
    users = FederatedDataset(lambda user: Dataset(list(task.epoch(*user)), user_id=str(user)), lambda: next(places))
    clock.skip()
    # pfl tests participants on their own data in the first round; this frequency prevents it in later rounds.
    FederatedAveraging().run(
        NNAlgorithmParams(task.rounds, task.rounds + 1, COHORT, 0),
        SimulatedBackend(users, users),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0)),
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        callbacks=[Evaluation()],
    )


def fedlab(folder: str, name: str, clock: Clock) -> None:
    """FedLab's standalone pipeline with its serial trainer."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline

    task = read_task(folder, name)

    class Handler(SyncServerHandler):
        def sample_clients(self) -> list[int]:
            return task.participants[self.round]

    class Shares(FedDataset):
        def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
            return task.batches(handler.round, task.participants[handler.round].index(id))

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            clock.lap(clock.rounds)
            if task.tests(handler.round - 1):
                clock.evaluated(task.accuracy(handler.model))

    where = (True, "cuda:0") if task.images.is_cuda else (False, None)
    handler = Handler(task.network(), task.rounds, COHORT / CLIENTS, *where)
    trainer = SGDSerialClientTrainer(task.network(), CLIENTS, *where)
    trainer.setup_dataset(Shares())
    trainer.setup_optim(1, BATCH, RATE)
    pipeline = Pipeline(handler, trainer)
    clock.skip()
    pipeline.main()


def blazefl(folder: str, name: str, clock: Clock) -> None:
    """BlazeFL's FedAvg with one thread for all clients."""
    from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer

    task = read_task(folder, name)

    class Selector:
        def select_model(self, model_name: str) -> nn.Module:
            return task.network()

    class Shares:
        def get_dataloader(self, type_: Any, cid: int, batch_size: int, generator: Any) -> Any:
            return task.batches(handler.round, task.participants[handler.round].index(cid))

    class Handler(FedAvgBaseServerHandler):  # type: ignore[misc]
        def sample_clients(self) -> list[int]:
            return task.participants[self.round]

    class Trainer(FedAvgThreadPoolClientTrainer):  # type: ignore[misc]
        def progress_fn(self, it: Any) -> Any:
            return it

    device = "cuda" if task.images.is_cuda else "cpu"
    common = {"model_selector": Selector(), "model_name": name, "dataset": Shares(), "device": device, "seed": 0}
    handler = Handler(
        global_round=task.rounds, num_clients=CLIENTS, sample_ratio=COHORT / CLIENTS, batch_size=BATCH, **common
    )
    handler.model.to(device)
    trainer = Trainer(num_clients=CLIENTS, epochs=1, batch_size=BATCH, lr=RATE, num_parallels=1, **common)
    clock.skip()
    while not handler.if_stop():
        trainer.local_process(handler.downlink_package(), handler.sample_clients())
        for package in trainer.uplink_package():
            handler.load(package)
        clock.lap(clock.rounds)
        if task.tests(handler.round - 1):
            clock.evaluated(task.accuracy(handler.model))


def fluke(folder: str, name: str, clock: Clock) -> None:
    """fluke's FedAvg, whose clients train one after another in the server's process."""
    from fluke import FlukeENV
    from fluke.client import Client
    from fluke.config import OptimizerConfigurator
    from fluke.server import Server

    task = read_task(folder, name)

    class Share:
        """The batches of a client in the round that is played."""

        def __init__(self, client: int) -> None:
            self.client = client

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return task.batches(played, task.participants[played].index(self.client))

        def __len__(self) -> int:
            return SAMPLES // BATCH

    FlukeENV().set_device("cuda:0" if task.images.is_cuda else "cpu")
    optimiser = OptimizerConfigurator(
        {"name": torch.optim.SGD, "lr": RATE}, {"name": "StepLR", "step_size": 1, "gamma": 1}
    )
    clients = [
        Client(k, Share(k), None, optimiser, nn.CrossEntropyLoss(), local_epochs=1, persistency=False)
        for k in range(CLIENTS)
    ]
    server = Server(task.network(), None, clients)
    for client in clients:
        client.set_channel(server.channel)
    clock.skip()
    for played in range(task.rounds):
        chosen = [clients[k] for k in task.participants[played]]
        server.broadcast_model(chosen)
        for client in chosen:
            client.local_update(played + 1)
        server.aggregate(chosen, server.receive_client_models(chosen, state_dict=False))
        clock.lap(clock.rounds)
        if task.tests(played):
            clock.evaluated(task.accuracy(server.model))


def flower(folder: str, name: str, clock: Clock) -> None:
    """Flower's simulation in Ray with one actor."""
    # Ray's actors import functions of a module by name, and then keep the module's caches.
    import peers
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    task = read_task(folder, name)
    module = task.network()

    class Strategy(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
            # The simulation's nodes connect one by one, after the strategy has started.
            while len(nodes := list(grid.get_node_ids())[:COHORT]) < COHORT:
                time.sleep(0.05)
            orders = [
                ConfigRecord({"round": server_round - 1, "place": place, "folder": folder, "task": name})
                for place in range(COHORT)
            ]
            return [
                Message(RecordDict({"arrays": arrays, "config": order}), node, "train")
                for node, order in zip(nodes, orders, strict=True)
            ]

    def evaluate(server_round: int, arrays: Any) -> Any:
        if server_round == 0:
            clock.skip()
            return None
        clock.lap(clock.rounds)
        if task.tests(server_round - 1):
            module.load_state_dict(arrays.to_torch_state_dict())
            clock.evaluated(task.accuracy(module))
        return MetricRecord({"accuracy": clock.accuracy})

    server, client = ServerApp(), ClientApp()
    client.train()(peers.flower_client)

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        strategy = Strategy(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        strategy.start(grid, ArrayRecord(module.state_dict()), task.rounds, evaluate_fn=evaluate)

    # The server's process and the actor share the GPU.
    actor = {"num_cpus": 1, "num_gpus": int(task.images.is_cuda)}
    resources = {"client_resources": actor, "init_args": {"num_cpus": 1}}
    run_simulation(server, client, CLIENTS, backend_config=resources)


def flower_client(message: Any, context: Any) -> Any:
    """A participant in Flower, in an actor."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    prepare_torch()
    config = message.content["config"]
    task = read_task(config["folder"], config["task"])
    module = task.network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), RATE)
    for images, labels in task.batches(config["round"], config["place"]):
        optimiser.zero_grad()
        F.cross_entropy(module(images), labels).backward()
        optimiser.step()
    reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(RecordDict(reply), reply_to=message)


CONTENDERS: dict[str, tuple[str, Callable[[str, str, Clock], None]]] = {
    "bare": ("bare PyTorch loop", bare),
    "hetfl": ("hetfl", hetfl),
    "pfl": ("pfl", pfl),
    "fedlab": ("FedLab", fedlab),
    "blazefl": ("BlazeFL, 1 thread", blazefl),
    "fluke": ("fluke", fluke),
    "flower": ("Flower, 1 actor beside the server's process", flower),
}
PEERS = {"pfl": "pfl", "fedlab": "fedlab", "blazefl": "blazefl", "fluke": "fluke-fl", "flower": "flwr"}
"""The package of each framework."""
SETTINGS = {
    "participation": COHORT / CLIENTS,
    "batch_size": BATCH,
    "evaluate_every": EVERY,
    "lr": RATE,
    "momentum": 0.0,
    "weight_decay": 0.0,
}


def case(contender: str, name: str, folder: str, started: float) -> dict[str, Any]:
    """Run one implementation in this process."""
    from importlib.metadata import version

    prepare_torch()
    clock = Clock(started)
    try:
        CONTENDERS[contender][1](folder, name, clock)
    except ImportError as error:
        return {"missing": str(error)}
    return {
        "rounds": clock.rounds,
        "evaluations": clock.evaluations,
        "first": clock.first,
        "accuracy": clock.accuracy,
        "versions": {package: version(package) for package in ("torch", PEERS.get(contender)) if package},
    }


def run(contender: str, name: str, folder: str, python: str) -> dict[str, Any]:
    """Run one implementation in a separate process; returns the reason if a framework fails."""
    command = [python if contender in PEERS else sys.executable, __file__, "--case", contender, name, folder]
    quiet = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    found = subprocess.run(
        [*command, str(time.time())], capture_output=True, text=True, env=os.environ | quiet, check=False
    )
    if found.returncode and contender in PEERS:
        return {"missing": found.stderr.splitlines()[-1]}
    if found.returncode:
        sys.exit(f"{contender}: {found.stderr}")
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def write_plan(folder: Path, rounds: int, device: str, tests: int | None = None) -> str:
    """Draw what all contenders have in common; returns what the images are.

    Args:
        device: where all of it is computed.
        tests: images of the central evaluation; None: all.
    """
    from hetfl.draws import Draws
    from hetfl.methods import create
    from hetfl.models import build
    from hetfl.training.sampling import participants

    data, images = PAPERS / "data" / "cifar10", "CIFAR-10"
    generator = np.random.default_rng(0)
    if not data.exists():
        data, images = folder, "Random pixels in CIFAR-10's shape"
        for split, size in (("train", 50_000), ("test", 10_000)):
            np.save(folder / f"{split}-images.npy", generator.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8))
            np.save(folder / f"{split}-labels.npy", generator.integers(0, CLASSES, size))
    draws = Draws(0)
    method = create("fedavg", SETTINGS, CLASSES)
    start = {}
    for name in NETWORKS:
        model = build(name, CLASSES, method.model_options())
        values = method.initial(model, draws, -1)
        start[name] = [values[key] for key in model.names(method.trains())]
    # hetfl's linear model goes through pixels channel by channel last, the plain one first.
    weight = start["linear"][0].view(CLASSES, 32, 32, 3)
    start["linear"][0] = weight.permute(0, 3, 1, 2).flatten(1)
    cohorts = [participants(CLIENTS, SETTINGS["participation"], draws.at(round)) for round in range(1, rounds + 1)]
    orders = [
        torch.stack(
            [
                torch.randperm(SAMPLES, generator=draws.at(round).generator("batches", client, 0, 0))
                for client in cohort
            ]
        )
        for round, cohort in enumerate(cohorts, start=1)
    ]
    shares = torch.from_numpy(generator.permutation(CLIENTS * SAMPLES)).view(CLIENTS, SAMPLES)
    plan = {
        "data": str(data),
        "device": device,
        "tests": tests,
        "start": start,
        "clients": shares,
        "participants": cohorts,
        "orders": torch.stack(orders),
    }
    torch.save(plan, folder / "plan.pt")
    return images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help=", ".join(f"{n} on {device}" for device, n in ROUNDS.items()))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=ROUNDS)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help=f"3 rounds, once, {QUICK_TESTS} test images; writes no Markdown"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument(
        "--case", nargs=4, metavar=("CONTENDER", "NETWORK", "FOLDER", "STARTED"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.case:
        contender, name, folder, started = arguments.case
        print(json.dumps(case(contender, name, folder, float(started))))
        return
    rounds, repeats = (3, 1) if arguments.quick else (arguments.rounds or ROUNDS[arguments.device], arguments.repeats)
    # The others are compared with these two.
    chosen = [key for key in CONTENDERS if key in ("bare", "hetfl", *arguments.only)]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {key: [] for key in chosen} for name in NETWORKS}
    with tempfile.TemporaryDirectory() as folder:
        images = write_plan(Path(folder), rounds, arguments.device, QUICK_TESTS if arguments.quick else None)
        for _ in range(repeats):
            for name, results in found.items():
                for contender in results:
                    results[contender].append(run(contender, name, folder, arguments.python))
    text = report(found, rounds, repeats, images, arguments.device)
    print(text)
    if not arguments.quick:
        from hetfl.files import write_text

        write_text(Path(__file__).with_name(f"peers-{arguments.device}.md"), text + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def later(result: dict[str, Any]) -> float:
    """Seconds of a round, the first round separately."""
    return median(result["rounds"][1:])


def report(
    found: dict[str, dict[str, list[dict[str, Any]]]], rounds: int, repeats: int, images: str, device: str
) -> str:
    """The tables and the targets as Markdown."""
    from tabulate import tabulate

    from hetfl.experiments.record import device_name

    tables, checks = [], []
    for name, results in found.items():
        missing = {key: one["missing"] for key, several in results.items() for one in several if "missing" in one}
        there = {key: several for key, several in results.items() if key not in missing}
        plain = there["bare"]
        figures = {
            key: {
                "round": median(map(later, several)),
                "first": median(one["first"] for one in several),
                "over": median(1000 * (later(a) - later(b)) / COHORT for a, b in zip(several, plain, strict=True)),
                "ratio": median(later(a) / later(b) for a, b in zip(several, plain, strict=True)),
                "evaluation": median(second for one in several for second in one["evaluations"]),
                "accuracy": several[0]["accuracy"],
            }
            for key, several in there.items()
        }
        rows = [
            [CONTENDERS[key][0], *(figures[key].values() if key in figures else [missing[key]])] for key in results
        ]
        headers = ["", "s a round", "first round, s", "ms a client over bare", "ratio", "evaluation, s", "accuracy"]
        table = tabulate(rows, headers, tablefmt="github", floatfmt=("", ".4f", ".2f", ".3f", ".3f", ".3f", ".4f"))
        tables += [f"## {NETWORKS[name]}", table]
        checks += targets(name, figures, device)
    versions = {
        package: number
        for results in found.values()
        for several in results.values()
        for package, number in several[0].get("versions", {}).items()
    }
    return "\n\n".join(
        [
            "# Time of a round in hetfl, in other frameworks and in a bare PyTorch loop",
            f"{device_name(torch.device(device))}, 1 thread each, "
            + ", ".join(f"{package} {number}" for package, number in versions.items())
            + f". {images}, 1,000 clients with 50 images each, 50 clients a round, 1 local epoch, batch 10, SGD with "
            f"learning rate 0.1, plain average; {rounds} rounds, central evaluation after every 10 and after the "
            f"last. The table shows medians over {repeats} interleaved runs, with a process for each contender. The "
            "time of a round is the median over all rounds but the first, without evaluation. The first round is "
            "measured from the start of the process: interpreter, imports, data, set-up, hetfl's registration of "
            "clients, Ray's start for Flower, and for pfl the test of the participants on their own data that its "
            "first round requires. All have the same initial weights, participants and batches; the other "
            "frameworks but Flower get tensors in memory instead of a DataLoader. On a GPU all round the factors of "
            "products to TF32. hetfl selects its engine by device: sequential on a CPU, batched on a GPU.",
            *tables,
            "## Targets",
            tabulate(checks, ["", "target", "seen", ""], tablefmt="github", disable_numparse=True),
        ]
    )


def targets(name: str, figures: dict[str, dict[str, float]], device: str) -> list[list[str]]:
    """The targets, the results, and whether each target is met."""
    title = NETWORKS[name].partition(",")[0]
    own, others = figures["hetfl"], {key: figures[key] for key in PEERS if key in figures}
    rows = []

    def check(what: str, target: str, seen: str, met: bool) -> None:
        rows.append([f"{title}: {what}", target, seen, "met" if met else "missed"])

    if device == "cuda":
        if "pfl" in others:
            ratio = own["round"] / others["pfl"]["round"]
            check("to pfl in one process", "at most 0.2", f"{ratio:.3f}", ratio <= 0.2)
    elif name == "linear":
        check("over the bare loop", "at most 0.1 ms a client", f"{own['over']:.3f} ms", own["over"] <= 0.1)
    else:
        check("to the bare loop", "at most 1.02", f"{own['ratio']:.3f}", own["ratio"] <= 1.02)
    for key, peer in others.items():
        ratio = own["round"] / peer["round"]
        check(f"to {CONTENDERS[key][0].partition(',')[0]}", "below 1", f"{ratio:.3f}", ratio < 1)
    if device == "cpu":
        check("first round", "below 5 s", f"{own['first']:.2f} s", own["first"] < 5)
    spread = max(abs(one["accuracy"] - figures["bare"]["accuracy"]) for one in figures.values())
    check("accuracies, furthest from bare", f"at most {AGREE}", f"{spread:.4f}", spread <= AGREE)
    return rows


if __name__ == "__main__":
    main()
