"""Methods without an example in tests/vectors, written down anew from their equations in plain torch.

Each writing plays whole rounds with two of three clients, batches that do not divide the data, momentum and decay. It
is compared in float64 with the sequential engine, in the last round with the batched one, too. It shares with hetfl
what is no part of a method: networks' forward passes, first values, keyed draws (participants, orders of samples).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from playing import play_round, start
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hetfl.draws import Draws
from hetfl.training.client_run import alignment_index
from hetfl.training.engines import make_engine
from hetfl.training.local import LocalEngine
from hetfl.training.sampling import participants
from hetfl.training.state import State

ROUNDS = 3
LR, MOMENTUM, DECAY = 0.05, 0.9, 1e-3
EPOCHS, BATCH, CLASSES = 2, 8, 3
USUAL = {
    "optimiser": "sgd",
    "lr": LR,
    "momentum": MOMENTUM,
    "weight_decay": DECAY,
    "local_epochs": EPOCHS,
    "batch_size": BATCH,
    "keep_optimiser": False,
    "drop_last": False,
    "shuffle": True,
    "participation": 0.67,
    "rounds": ROUNDS,
}

Params = dict[str, Tensor]
Loss = Callable[[Mapping[str, Tensor], Tensor, int], Tensor]
"""Of parameters, rows of the client's data, and the key of the step."""


class Anew:
    """What a writing starts from, and hetfl's rounds beside it. In the last one both engines must agree."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.method = engine, engine.method
        self.together = make_engine(engine.method, engine.federation, "batched")
        data = engine.federation.data
        batches = [own.train_images.batch(own.train) for own in data]
        self.images, self.labels = [b.images for b in batches], [b.labels for b in batches]
        self.queries = [b.queries for b in batches]
        self.models = engine.federation.models
        self.samples = torch.tensor([float(len(labels)) for labels in self.labels], dtype=torch.float64)
        self.state, _ = start(engine, Draws(0))

    def first(self, client: int) -> Params:
        """First values; -1: the server's."""
        return dict(self.models[max(client, 0)].init(Draws(0), client))

    def rounds(self) -> Iterator[tuple[int, list[int]]]:
        """Each round and its participants; hetfl plays it after the writing has."""
        for round in range(1, ROUNDS + 1):
            yield round, participants(3, 0.67, Draws(0).at(round))
            before, draws = self.state, Draws(0).at(round)
            self.state, _ = play_round(self.engine, before, draws)
            if round == ROUNDS:
                same(play_round(self.together, before, draws)[0].tensors(), self.state.tensors())

    def rows(
        self, client: int, round: int, epochs: int = EPOCHS, phase: int = 0, samples: int = 0, size: int = BATCH
    ) -> Iterator[tuple[Tensor, int]]:
        """The rows of every batch of some epochs, and the key of its step."""
        draws = Draws(0).at(round)
        for epoch in range(epochs):
            order = draws.generator("batches", client, phase, epoch)
            rows = torch.randperm(samples or len(self.labels[client]), generator=order)
            key = draws.key("objective", client, phase, epoch)
            yield from ((part, key + step) for step, part in enumerate(rows.split(size)))

    def logits(self, client: int, params: Mapping[str, Tensor], rows: Tensor, *groups: Tensor) -> Tensor:
        """Of a client's network."""
        return self.models[client](params, self.images[client][rows], *groups).logits


def descend(
    params: Params,
    names: Sequence[str],
    loss: Loss,
    batches: Iterator[tuple[Tensor, int]],
    kept: dict[str, Any] | None = None,
) -> Params:
    """Some epochs of torch's SGD over a few of the parameters; ``kept`` is the state it goes on with and leaves."""
    leaves = {name: params[name].clone().requires_grad_() for name in names}
    optimiser = torch.optim.SGD(leaves.values(), LR, MOMENTUM, weight_decay=DECAY)
    if kept:
        optimiser.load_state_dict(kept)
    for rows, key in batches:
        optimiser.zero_grad()
        loss({**params, **leaves}, rows, key).backward()
        optimiser.step()
    if kept is not None:
        kept.update(optimiser.state_dict())
    return {**params, **{name: leaf.detach() for name, leaf in leaves.items()}}


def average(values: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum w_k v_k / sum w_k."""
    return sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True))


def same(ours: Mapping[Any, Tensor], anew: Mapping[Any, Tensor], tolerance: float = 1e-10) -> None:
    """Every tensor that was written anew is hetfl's."""
    for name, tensor in anew.items():
        assert ours[name].shape == tensor.shape
        difference = (ours[name].double() - tensor.double()).abs().max().item()
        assert difference <= tolerance, f"{name}: {difference}"


def own(state: State, client: int) -> Mapping[str, Tensor]:
    return state.clients[client].params


@pytest.fixture
def anew(toy_engine) -> Callable[..., Anew]:
    """Builds a method on the toy federation in float64."""

    def build(method: str, group: str = "homogeneous", **settings: Any) -> Anew:
        return Anew(toy_engine(method, group, torch.float64, **{**USUAL, **settings}))

    return build


@pytest.mark.equation("fedhpl")
def test_fedhpl(anew):
    """Eq. 1-2, 7-9 and Algorithm 1: the optimiser lives as long as the client; only right answers are uploaded."""
    it = anew("fedhpl", "two vits", keep_optimiser=True, temperature=2.0, gamma=0.7, prompt_length=2)
    names = ("prompts", "head.weight", "head.bias")
    leaves = [{n: it.first(k)[n].clone().requires_grad_() for n in names} for k in range(3)]
    optimisers = [torch.optim.SGD(own.values(), LR, MOMENTUM, weight_decay=DECAY) for own in leaves]
    widths = [model.width for model in it.models]
    teacher, valid, last = None, None, None
    for round, who in it.rounds():
        if last is not None:
            same({"logits": it.state.server["logits"]}, {"logits": teacher})
            same(own(it.state, last), {n: t.detach() for n, t in leaves[last].items()})
        sums, counts = torch.zeros(2, CLASSES, CLASSES), torch.zeros(2, CLASSES)
        sums, counts = sums.double(), counts.double()
        for place, k in enumerate(who):
            for rows, _ in it.rows(k, round):
                logits, labels = it.logits(k, leaves[k], rows), it.labels[k][rows]
                loss = F.cross_entropy(logits, labels)
                if teacher is not None:
                    for logit, label in zip(logits, labels, strict=True):
                        if valid[label]:
                            target = (teacher[k, label] / 2.0).softmax(0)
                            divergence = (target * (target / (logit / 2.0).softmax(0)).log()).sum()
                            loss = loss + 0.7 * divergence / len(labels)
                optimisers[k].zero_grad()
                loss.backward()
                optimisers[k].step()
            with torch.no_grad():
                for logit, label in zip(
                    it.logits(k, leaves[k], torch.arange(len(it.labels[k]))), it.labels[k], strict=True
                ):
                    if logit.argmax() == label:
                        sums[place, label] += logit
                        counts[place, label] += 1
        teacher, valid, last = torch.zeros(3, CLASSES, CLASSES).double(), counts.sum(0) > 0, who[0]
        for k in range(3):
            beta = [min(widths[k] / widths[j], widths[j] / widths[k]) for j in who]
            for c in range(CLASSES):
                above = sum(b * sums[place, c] for place, b in enumerate(beta))
                teacher[k, c] = above / (1 + sum(b * counts[place, c] for place, b in enumerate(beta)))
    same({"logits": it.state.server["logits"]}, {"logits": teacher})


@pytest.mark.equation("fedhe")
def test_fedhe(anew):
    """Mean logits of the training passes; a squared distance once every client has reported; momentum is kept."""
    it = anew("fedhe", "two vits", alpha=0.6, collect="training", keep_optimiser=True)
    momenta = [{}, {}, {}]
    params = [it.first(k) for k in range(3)]
    means, reported = {}, set()
    for round, who in it.rounds():
        known = means if reported == {0, 1, 2} else {}
        passed = {c: [] for c in range(CLASSES)}
        for k in who:
            seen = {c: [] for c in range(CLASSES)}

            def loss(p, rows, _, k=k, seen=seen, known=known):
                logits, labels = it.logits(k, p, rows), it.labels[k][rows]
                value = F.cross_entropy(logits, labels)
                for logit, label in zip(logits, labels.tolist(), strict=True):
                    seen[label].append(logit.detach())
                    if label in known:
                        value = value + 0.6 * (logit - known[label]).square().mean() / len(labels)
                return value

            names = it.models[k].names(["body", "head"])
            params[k] = descend(params[k], names, loss, it.rows(k, round), momenta[k])
            for c in range(CLASSES):
                passed[c] += [torch.stack(seen[c]).mean(0)] if seen[c] else []
        means = {c: torch.stack(sent).mean(0) for c, sent in passed.items() if sent}
        reported |= set(who)
    same({"means": it.state.server["means"]}, {"means": torch.stack([means[c] for c in sorted(means)])})
    for k in who:
        same(own(it.state, k), {n: params[k][n] for n in it.models[k].names(["body", "head"])})


@pytest.mark.equation("fedgh")
def test_fedgh(anew):
    """Clients start with the server's head, which then takes a clipped step for every class mean."""
    it = anew("fedgh", "two vits", clip=0.4, server_lr=0.3, embedding=16)
    head = {n: it.first(-1)[n].clone().requires_grad_() for n in ("head.weight", "head.bias")}
    params = [it.first(k) for k in range(3)]
    for round, who in it.rounds():
        pairs = []
        for k in who:
            if round > 1:
                params[k] |= {n: t.detach().clone() for n, t in head.items()}

            def loss(p, rows, _, k=k):
                return F.cross_entropy(it.logits(k, p, rows), it.labels[k][rows])

            params[k] = descend(params[k], it.models[k].names(it.method.trains()), loss, it.rows(k, round))
            with torch.no_grad():
                features = it.models[k](params[k], it.images[k]).features
            pairs += [(features[it.labels[k] == c].mean(0), c) for c in it.labels[k].unique()]
        for mean, c in pairs:
            found = F.cross_entropy((head["head.weight"] @ mean + head["head.bias"])[None], c[None])
            gradients = torch.autograd.grad(found, list(head.values()))
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            factor = min(1.0, 0.4 / (norm + 1e-6).item())
            head = {
                n: (t - 0.3 * factor * g).detach().requires_grad_()
                for (n, t), g in zip(head.items(), gradients, strict=True)
            }
    same(it.state.server, head)
    for k in who:
        same(own(it.state, k), params[k])


@pytest.mark.equation("fedmd")
def test_fedmd(anew):
    """Public data, own data, then in every round digest and revisit; classes of public data count first.

    A client keeps two optimisers: for its own data, from before the first round on, and for the digest.
    """
    it = anew(
        "fedmd",
        "two vits",
        keep_optimiser=True,
        public_epochs=1,
        private_epochs=2,
        alignment_samples=12,
        digest_epochs=2,
        digest_batch=5,
    )
    public = it.engine.federation.data[0].public_images
    every = public.batch(torch.arange(len(public)))
    others, params = 2, []
    private, digests = [{}, {}, {}], [{}, {}, {}]

    def chosen(round: int) -> Tensor:
        return alignment_index(it.method, it.engine.federation.data[0], Draws(0).at(round))

    def revisit(k: int) -> Loss:
        return lambda p, rows, _: F.cross_entropy(it.logits(k, p, rows), it.labels[k][rows] + others)

    def answer(k: int, round: int) -> Tensor:
        with torch.no_grad():
            return it.models[k](params[k], every.images[chosen(round)]).logits

    for k in range(3):
        names, first = it.models[k].names(["body", "head"]), it.first(k)

        def look(p, rows, _, k=k):
            return F.cross_entropy(it.models[k](p, every.images[rows]).logits, every.labels[rows])

        first = descend(first, names, look, it.rows(k, 0, 1, 0, len(public)))
        params.append(descend(first, names, revisit(k), it.rows(k, 0, 2, 1), private[k]))
    consensus = torch.stack([answer(k, 1) for k in range(3)]).mean(0)
    for round, who in it.rounds():
        for k in who:
            names, seen = it.models[k].names(["body", "head"]), every.images[chosen(round)]

            def digest(p, rows, _, k=k, seen=seen, consensus=consensus):
                return (it.models[k](p, seen[rows]).logits - consensus[rows]).abs().mean()

            params[k] = descend(params[k], names, digest, it.rows(k, round, 2, 0, 12, 5), digests[k])
            params[k] = descend(params[k], names, revisit(k), it.rows(k, round, EPOCHS, 1), private[k])
        consensus = torch.stack([answer(k, round + 1) for k in who]).mean(0)
    same(it.state.server, {"logits": consensus})
    for k in range(3):
        same(own(it.state, k), params[k])


PROMPTED = {"shared_blocks": (1,), "group_blocks": (2,), "prompt_length": 2}


def prompted(
    it: Anew, groups: int, mix: float = 0.0, by_group: bool = True, pull: float = 0.0, projects: bool = False
):
    """PT-FedAvg and what FGPT's paper makes of it, each by its own term; returns the server's values.

    Args:
        groups: G; 1: all samples are of one group.
        mix: FedMix's lambda.
        by_group: whether a group's prompt is averaged by the samples of the group.
        pull: of keys that learn (Fed-DualPrompt).
        projects: whether displacements of prompts are projected (FedPR).
    """
    names = [n for n in it.models[0].names(["shared", "group", "keys", "head"])]
    server = {n: it.first(-1)[n] for n in names}
    if mix:
        # Sent once, in float32.
        stored = [own.train_images.stored().batch(own.train) for own in it.engine.federation.data]
        pool = [it.state.server[f"pool/{n}"] for n in ("images", "labels")]
        same(dict(enumerate(pool[0])), dict(enumerate(batch.images.mean(0) for batch in stored)), 1e-6)
        same(
            dict(enumerate(pool[1])),
            {k: F.one_hot(own, CLASSES).double().mean(0) for k, own in enumerate(it.labels)},
            1e-6,
        )

    def cosines(k: int, rows: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        keys = params["keys"] if pull else it.method.keys({}, it.queries[k])
        queries = it.queries[k][rows]
        return (queries @ keys.T) / (queries.norm(dim=1)[:, None] * keys.norm(dim=1))

    for round, who in it.rounds():
        sent, sizes = [], []
        projection = None
        if projects and round > 1:
            projection = it.method.receive(it.method.downlink(it.state.server, 0), {})["projection"]
            prompts = server["shared"].flatten(0, 1)
            assert torch.allclose(projection, projection.T) and torch.allclose(projection @ projection, projection)
            assert (prompts @ projection).abs().max() < 1e-9
        for k in who:

            def projected(p, before=server, projection=projection):
                if projection is None:
                    return p
                return {**p, "shared": before["shared"] + (p["shared"] - before["shared"]) @ projection}

            def loss(p, rows, key, k=k, projected=projected):
                labels, images, chosen = it.labels[k][rows], it.images[k][rows], torch.zeros_like(rows)
                value = 0.0
                if groups > 1:
                    near = cosines(k, rows, p)
                    chosen = near.argmax(1)
                    value = -pull * near.gather(1, chosen[:, None]).mean()
                p = projected(p)
                if not mix:
                    return value + F.cross_entropy(it.models[k](p, images, chosen).logits, labels)
                # Yoon et al., Eq. 6: mixup's loss to first order; the derivative is taken by the unshrunken image.
                drawn = torch.randint(3, (), generator=torch.Generator().manual_seed(key))
                size, mode = images.shape[-2:], it.models[k].spec.interpolation
                other = F.interpolate(pool[0][drawn][None], size, mode=mode, antialias=True)
                images = images.clone().requires_grad_()
                with sdpa_kernel(SDPBackend.MATH):
                    logits = it.models[k](p, (1 - mix) * images, chosen).logits
                    plain = F.cross_entropy(logits, labels)
                    (slope,) = torch.autograd.grad(plain, images, create_graph=True)
                foreign = -(pool[1][drawn] * logits.log_softmax(1)).sum(1).mean()
                return value + (1 - mix) * plain + mix * foreign + mix * (slope * other).sum()

            sent.append(projected(descend(server, names, loss, it.rows(k, round))))
            every = torch.arange(len(it.labels[k]))
            if groups > 1:
                sizes.append(torch.bincount(cosines(k, every, sent[-1]).argmax(1), minlength=groups).double())
        before, server = server, {n: average([one[n] for one in sent], it.samples[who]) for n in names}
        if groups > 1 and by_group:
            for g in range(groups):
                weights = torch.stack([counts[g] for counts in sizes])
                alone = [one["group"][:, g] for one in sent]
                server["group"] = server["group"].clone()
                server["group"][:, g] = average(alone, weights) if weights.sum() else before["group"][:, g]
    return {f"model/{n}": t for n, t in server.items()}


@pytest.mark.equation("pt-fedavg")
def test_pt_fedavg(anew):
    """Prompts and head trained under a frozen transformer, averaged by samples."""
    it = anew("pt-fedavg", **PROMPTED)
    anewly = prompted(it, groups=1)
    same(it.state.server, anewly)


@pytest.mark.equation("fgpt")
def test_fgpt(anew):
    """Eq. 2-8: the nearest fixed key is a sample's group; a group's prompt counts by its samples of the group."""
    it = anew("fgpt", groups=3, **PROMPTED)
    anewly = prompted(it, groups=3)
    same(it.state.server, anewly)


@pytest.mark.equation("fed-dualprompt")
def test_fed_dualprompt(anew):
    """DualPrompt's keys, pulled towards the queries that pick them, under FedAvg."""
    it = anew("fed-dualprompt", groups=3, pull=0.7, **PROMPTED)
    anewly = prompted(it, groups=3, pull=0.7, by_group=False)
    same(it.state.server, anewly)


@pytest.mark.equation("fedmix")
def test_fedmix(anew):
    """Yoon et al., Eq. 6, with one pooled pair a batch."""
    it = anew("fedmix", mix=0.3, **PROMPTED)
    anewly = prompted(it, groups=1, mix=0.3)
    same(it.state.server, anewly)


@pytest.mark.equation("fgpt-fedmix")
def test_fgpt_with_fedmix(anew):
    """FGPT's groups, by the unmixed image, under FedMix's loss."""
    it = anew("fgpt-fedmix", groups=3, mix=0.3, **PROMPTED)
    anewly = prompted(it, groups=3, mix=0.3)
    same(it.state.server, anewly)


@pytest.mark.equation("fedpr")
def test_fedpr(anew):
    """From the second round on displacements are projected onto a null space of the prompts that were sent."""
    it = anew("fedpr", **{**PROMPTED, "group_blocks": ()})
    anewly = prompted(it, groups=1, projects=True)
    same(it.state.server, anewly)


@pytest.mark.equation("pfedhn")
def test_pfedhn(anew):
    """Shamsian et al., Eq. 3: the network descends along the participants' displacements, weighted by samples."""
    it = anew("pfedhn", embedding=4, hidden=5, layers=1, server_lr=0.2, server_decay=1e-2, clip=0.5, **PROMPTED)
    net = {n.removeprefix("net/"): t.clone().requires_grad_() for n, t in it.state.server.items() if "net/" in n}
    optimiser = torch.optim.SGD(net.values(), 0.2, 0.9, weight_decay=1e-2)
    head = {n: it.first(-1)[n] for n in ("head.weight", "head.bias")}
    shapes = {n: it.first(-1)[n].shape for n in ("shared", "group")}

    def made(k: int) -> Params:
        hidden = net["enter.weight"] @ net["clients.weight"][k] + net["enter.bias"]
        hidden = net["hidden0.weight"] @ hidden.clamp(min=0) + net["hidden0.bias"]
        return {n: (net[f"{n}.weight"] @ hidden + net[f"{n}.bias"]).view(shape) for n, shape in shapes.items()}

    for round, who in it.rounds():
        trained = []
        for k in who:

            def loss(p, rows, _, k=k):
                return F.cross_entropy(it.logits(k, p, rows, torch.zeros_like(rows)), it.labels[k][rows])

            params = {**head, **{n: t.detach() for n, t in made(k).items()}}
            trained.append(descend(params, list(params), loss, it.rows(k, round)))
        weights = it.samples[who]
        head = {n: average([one[n] for one in trained], weights) for n in head}
        distance = sum(
            share / 2 * sum((generated - after[n]).square().sum() for n, generated in made(k).items())
            for share, k, after in zip(weights / weights.sum(), who, trained, strict=True)
        )
        optimiser.zero_grad()
        distance.backward()
        torch.nn.utils.clip_grad_norm_(net.values(), 0.5)
        optimiser.step()
    same(it.state.server, {f"model/{n}": t for n, t in head.items()})
    same(it.state.server, {f"net/{n}": t.detach() for n, t in net.items()})


@pytest.mark.equation("pfedpg")
def test_pfedpg(anew):
    """Yang et al.: one step of the generator towards each participant's trained prompts, ½ the squared distance."""
    it = anew("pfedpg", prompt_length=2, inner=4, server_lr=0.1)
    net = {n: t.clone().requires_grad_() for n, t in it.state.server.items()}
    heads = [{n: it.first(k)[n] for n in ("head.weight", "head.bias")} for k in range(3)]

    def made(k: int) -> Tensor:
        query = net["query.weight"] @ net["descriptors"][k]
        scores = torch.stack([query @ (net["key.weight"] @ token) for token in net["basis"]]) / 4**0.5
        attended = sum(
            a * (net["value.weight"] @ token) for a, token in zip(scores.softmax(0), net["basis"], strict=True)
        )
        return net["basis"] + (net["leave.weight"] @ attended + net["leave.bias"])

    for round, who in it.rounds():
        distance = 0.0
        for k in who:

            def loss(p, rows, _, k=k):
                return F.cross_entropy(it.logits(k, p, rows), it.labels[k][rows])

            params = {**heads[k], "prompts": made(k).detach()[None]}
            trained = descend(params, list(params), loss, it.rows(k, round))
            heads[k] = {n: trained[n] for n in heads[k]}
            distance = distance + (made(k) - trained["prompts"][0]).square().sum() / 2
        gradients = torch.autograd.grad(distance, list(net.values()))
        net = {n: (t - 0.1 * g).detach().requires_grad_() for (n, t), g in zip(net.items(), gradients, strict=True)}
    same(it.state.server, {n: t.detach() for n, t in net.items()})
    for k in who:
        same(own(it.state, k), heads[k])
