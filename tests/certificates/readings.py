"""Where hetfl holds what a vector expects: one small reading for each method, names and units only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from vector import Vector, parameter

from hetfl.message import Message, Tensors
from hetfl.methods import METHODS, Method, fedtgp
from hetfl.methods.base import Work
from hetfl.methods.fedkd import restore
from hetfl.methods.sgpt import PICKS


@dataclass
class Seen:
    """What a recorder saw of one client, or of the server, in a round."""

    losses: list[Tensor] = field(default_factory=list)
    work: Work | None = None
    message: Message | None = None
    params: Tensors = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)
    scores: Tensor | None = None
    features: Tensor | None = None
    predictions: Tensor | None = None
    server: Tensors = field(default_factory=dict)


Log = dict[tuple[int, int], Seen]
"""By round and client, -1 being the server."""


WIDTHS = "FedHPL's Table 7 counts it; FedTGP's experiments set the code's"


class Reading:
    """How a method's vector is read.

    Attributes:
        also: settings that match beside those which vectors.json names.
        spoilt: a setting and a value with which the comparison must fail.
        loss_of: the class whose objective the losses are; None: the method's own.
        server_prefix: of the server's parameters in its state.
        first_prefix: of the server's first parameters among a model's.
        why: a remark for the page.
        reasons: why hetfl's default is not what the example has, for settings that choose among readings.
    """

    also: ClassVar[Mapping[str, Any]] = {}
    spoilt: ClassVar[Mapping[str, Any]] = {"lr": 0.0501}
    loss_of: ClassVar[type[Method] | None] = None
    server_prefix: ClassVar[str] = ""
    first_prefix: ClassVar[str] = ""
    why: ClassVar[str] = ""
    reasons: ClassVar[Mapping[str, str]] = {}

    def method(self, vector: Vector) -> str:
        """The registered method's name."""
        return vector.entry["hetfl"]["method"]

    def settings(self, vector: Vector) -> dict[str, Any]:
        """Those with which hetfl takes the same steps."""
        return {**vector.entry["hetfl"]["settings"], **self.also}

    def first(self, vector: Vector, client: int) -> Tensors:
        """Start values by hetfl's name of the parameter; -1 is the server."""
        prefix = self.first_prefix if client < 0 else ""
        return {prefix + parameter(name): tensor for name, tensor in vector.given(client).items()}

    def started(self, vector: Vector, server: Tensors) -> dict[str, Tensor]:
        """The server's first state with what is given."""
        return dict(server)

    def also_heard(self, log: Log, at: list[int]) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Further functions to listen to, by their place."""
        yield from ()

    def expected(self, vector: Vector, round: int, client: int) -> dict[str, Tensor]:
        """What is to be found of a client (-1: the server) after a round, by the vector's names."""
        return vector.under(f"expected/round{round}/{'server' if client < 0 else f'client{client}'}/")

    def client(self, seen: Seen, name: str) -> Tensor:
        """What hetfl has for an expected tensor of a client."""
        if name == "losses":
            return torch.stack(seen.losses)
        if name in ("scores", "predictions", "features"):
            return getattr(seen, name)
        if name in ("sent_labels", "sent_means"):
            return seen.message[name.removeprefix("sent_")]
        return seen.params[parameter(name)]

    def server(self, seen: Seen, name: str) -> Tensor:
        """What hetfl has for an expected tensor of the server."""
        return seen.server[self.server_prefix + parameter(name)]

    def sent(self, seen: Seen) -> Tensors:
        """Parameters in the participant's message, by hetfl's names."""
        return seen.message or {}

    def kind(self, client: int, name: str) -> str:
        """What an expected tensor is, in the page's words."""
        if client < 0:
            return "server state"
        if name.startswith(("sent", "common/")):
            return "messages"
        known = {"loss": "losses", "control": "control variates", "picks": "messages"}
        usual = name if name in ("losses", "scores", "predictions", "features", "logits") else "parameters"
        return known.get(name.partition("/")[0], "gradients" if name.startswith("gradient/") else usual)


class Averaging(Reading):
    """FedAvg and what descends from it."""

    server_prefix = "model/"
    spoilt = {"lr": 0.301}


class FedProx(Averaging):
    loss_of = METHODS["fedavg"]
    spoilt = {"mu": 0.303}


class Scaffold(Averaging):
    loss_of = METHODS["fedavg"]
    spoilt = {"server_lr": 0.81}

    def client(self, seen, name):
        if name.startswith("control/"):
            return seen.memory["own/" + parameter(name.removeprefix("control/"))]
        return super().client(seen, name)

    def server(self, seen, name):
        if name.startswith("control/"):
            return seen.server["control/" + parameter(name.removeprefix("control/"))]
        return super().server(seen, name)

    def sent(self, seen):
        """Its messages are differences."""
        return {n: seen.work.before[n] + t for n, t in (seen.message or {}).items() if n in seen.work.before}


class Moon(Averaging):
    spoilt = {"temperature": 0.51}
    why = (
        "In a client's first round the code's contrast is the constant log 2; hetfl leaves it out, and the losses are"
        " compared without it."
    )

    def expected(self, vector, round, client):
        found = super().expected(vector, round, client)
        if "losses" in found and not any(client in before for before in vector.participants[: round - 1]):
            found["losses"] = found["losses"] - vector.entry["hyperparameters"]["mu"] * math.log(2)
        return found


class FedRep(Averaging):
    also = {"heads": "own"}
    spoilt = {"momentum": 0.01}
    why = "The example gives every client a first head of its own."
    reasons = {"heads": "what the code itself starts with"}


class PFedPT(Averaging):
    spoilt = {"prompt_lr": 0.51}


class LGFedAvg(Averaging):
    spoilt = {"lr": 0.0501}
    reasons = {"reduce": WIDTHS}


class FedProto(Reading):
    spoilt = {"pull": 10.1}
    reasons = {"reduce": WIDTHS, "collect": "FedHPL's reading; FedTGP's experiments set the code's"}

    def client(self, seen, name):
        found = super().client(seen, name)
        # Theirs is the mean square distance over 8 values, ours minus the sum.
        return -found / 8 if name == "scores" else found


class FedTGP(FedProto):
    spoilt = {"margin_cap": 0.54}
    reasons = {
        "collect": "Algorithm 1 sends prototypes of the trained network; the released code reads the network's file"
        " from before the round's training, since it saves the trained one only afterwards"
    }
    names: ClassVar = {
        "E": "vectors.weight",
        "F1": "enter.weight",
        "f1": "enter.bias",
        "F2": "leave.weight",
        "f2": "leave.bias",
    }

    def started(self, vector, server):
        return {**server, **{"net/" + self.names[n]: t for n, t in vector.given(-1).items()}}

    def also_heard(self, log, at):
        loss = fedtgp.contrastive_loss

        def heard(*given):
            found = loss(*given)
            log[at[0], -1].losses.append(found.detach().clone())
            return found

        yield "hetfl.methods.fedtgp.contrastive_loss", heard

    def server(self, seen, name):
        if name == "losses":
            return torch.stack(seen.losses)
        return seen.server["net/" + self.names[name] if name in self.names else name]


class FedDistill(Reading):
    spoilt = {"alpha": 1.01}
    reasons = {"reduce": WIDTHS}


class FML(Reading):
    spoilt = {"beta": 0.41}
    reasons = {"reduce": WIDTHS}
    first_prefix = server_prefix = "auxiliary."
    why = "Losses are the sums of both networks' losses, which is what hetfl minimises."

    def expected(self, vector, round, client):
        found = super().expected(vector, round, client)
        if "common_losses" in found:
            found["losses"] = found["losses"] + found.pop("common_losses")
        return found

    def client(self, seen, name):
        if name.startswith("common/"):
            return seen.message["auxiliary." + parameter(name.removeprefix("common/"))]
        return super().client(seen, name)


class FedKD(FML):
    spoilt = {"energy_end": 0.9}

    def client(self, seen, name):
        if name.startswith("sent/"):
            return self.truncated(seen.message, name.removeprefix("sent/"))
        return super().client(seen, name)

    def server(self, seen, name):
        return self.truncated(seen.server, name)

    def truncated(self, tensors, name):
        if name == "ranks":
            return torch.tensor([t.shape[-1] for n, t in tensors.items() if n.endswith("/s")])
        return restore(tensors)["auxiliary." + parameter(name)]


class FedGen(Reading):
    spoilt = {"lr": 0.0501}
    names: ClassVar = {
        "G1": "enter.weight",
        "g1": "enter.bias",
        "gamma": "norm.weight",
        "beta": "norm.bias",
        "G2": "leave.weight",
        "g2": "leave.bias",
    }
    why = (
        "The vector gives the server a head before the first round, so the generator's features count from then on;"
        " with a start of its own hetfl sends neither in the first round, as the code of July 2023 did."
    )

    reasons = {
        "frozen": "the papers train the generator; from August 2023 on the code trains a copy and does not keep it",
        "labels": "FedHPL's reading; FedTGP's experiments set the code's",
        "tests": "FedHPL's reading; FedTGP's experiments set the code's",
    }

    def started(self, vector, server):
        given = vector.given(-1)
        net = {"generator/" + key: given[name] for name, key in self.names.items()}
        return {**server, **net, **{parameter(name): given[name] for name in ("Wh", "bh")}}


class SGPT(Averaging):
    also = {"balance": "round", "readout": "mean"}
    spoilt = {"group_momentum": 0.61}

    def started(self, vector, server):
        return {**server, PICKS: vector.given(-1)["v"]}

    def expected(self, vector, round, client):
        found = super().expected(vector, round, client)
        if "losses_shared" in found:
            found["losses"] = torch.cat([found.pop("losses_shared"), found.pop("losses_group")])
        return found

    def client(self, seen, name):
        return seen.message["counts"] if name == "picks" else super().client(seen, name)

    def server(self, seen, name):
        return seen.server[PICKS] if name == "v" else super().server(seen, name)


class VPT(Reading):
    """One step of FedHPL without communication, of length 1: the parameters move by the gradient."""

    spoilt = {"lr": 1.001}
    why = "The model under FedHPL and pFedPG, by one step of FedHPL's Local with learning rate 1."

    def method(self, vector):
        return "fedhpl"

    def settings(self, vector):
        step = {"communicate": False, "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "local_epochs": 1}
        return {**super().settings(vector), **step, "batch_size": 4, "shuffle": False}

    def expected(self, vector, round, client):
        """What the first parameters make of the images as round 0, the step as round 1."""
        if client < 0 or round > 1:
            return {}
        found = vector.under("expected/")
        return {name: t for name, t in found.items() if (name in ("features", "logits")) == (round == 0)}

    def client(self, seen, name):
        if name == "logits":
            return seen.scores
        if name == "loss":
            return torch.stack(seen.losses)[0]
        if name.startswith("gradient/"):
            key = parameter(name.removeprefix("gradient/"))
            return seen.work.before[key] - seen.params[key]
        return super().client(seen, name)


READINGS: dict[str, Reading] = {
    "fedtgp": FedTGP(),
    "fedproto": FedProto(),
    "fml": FML(),
    "fedkd": FedKD(),
    "lg-fedavg": LGFedAvg(),
    "fedgen": FedGen(),
    "feddistill": FedDistill(),
    "sgpt": SGPT(),
    "vpt-deep": VPT(),
    "vpt-shallow": VPT(),
    "fedavg": Averaging(),
    "fedprox": FedProx(),
    "scaffold": Scaffold(),
    "moon": Moon(),
    "fedbabu": Averaging(),
    "fedrep": FedRep(),
    "pfedpt": PFedPT(),
    "pfedpt-no-momentum": PFedPT(),
}
