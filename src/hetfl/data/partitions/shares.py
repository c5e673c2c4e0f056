"""Helpers of the partition schemes: from shares to whole numbers of samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from hetfl.draws import Draws


def sorted_parts(parts: Iterable[Iterable[np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Concatenate and sort each client's lists of indices: int64 [n] per client."""
    return tuple(np.sort(np.concatenate([np.empty(0, np.int64), *pieces])).astype(np.int64) for pieces in parts)


def members(values: np.ndarray, number: int) -> list[np.ndarray]:
    """For each value, the ascending indices of the samples that have it.

    Args:
        values: labels, or another attribute, int64 [N].
        number: of values; they are 0 to ``number`` - 1.
    """
    ends = np.cumsum(np.bincount(values, minlength=number))
    return np.split(np.argsort(values, kind="stable"), ends[:-1])


def floors(part: float, sizes: np.ndarray | int) -> np.ndarray:
    """floor(part * sizes), int64, in decimal: 0.29 * 100 is 29, although binary gives 28.999999999999996."""
    return np.floor(np.round(part * np.asarray(sizes), 9)).astype(np.int64)


def random_shares(rng: np.random.Generator, size: int, alpha: float | None, alpha_mode: str) -> np.ndarray:
    """Shares that sum to 1, float [size], from Dirichlet(alpha).

    Without ``alpha``, ``alpha_mode`` says how they are drawn; see :class:`DirichletOverlap`.
    """
    if alpha is not None:
        return rng.dirichlet(np.full(size, alpha))
    if alpha_mode == "share":
        return rng.dirichlet(np.ones(size))
    alphas = 1 - rng.random(size)
    return rng.dirichlet(alphas / alphas.sum())


def counts_over_clients(
    sizes: np.ndarray,
    least: np.ndarray,
    clients: int,
    alpha: float | None,
    alpha_mode: str,
    draws: Draws,
    scheme: str,
) -> np.ndarray:
    """Samples per client and class, int64 [K, C]; every column sums to the size of its class.

    Args:
        sizes: samples of each class, int64 [C].
        least: the minimum number of samples of each class that every client holds, int64 [C].
        clients: number of clients, K.
        alpha, alpha_mode: see :func:`random_shares`.
        draws: the source of randomness, keyed by ``scheme`` and class.
        scheme: name of the scheme.
    """
    counts = np.empty((clients, len(sizes)), dtype=np.int64)
    for label, size in enumerate(sizes):
        shares = random_shares(draws.numpy_generator(f"partition:{scheme}:shares", label), clients, alpha, alpha_mode)
        floor, ceiling = np.full(clients, least[label]), np.full(clients, size)
        counts[:, label] = settle(np.rint(shares * size), shares, size, floor, ceiling)
    return counts


def capped(shares: np.ndarray, total: int, caps: np.ndarray) -> np.ndarray:
    """Divide ``total`` in proportion to shares [n] without exceeding caps [n]; float [n].

    What a cap cuts off goes to the others, in proportion to their shares.
    """
    full = np.zeros(len(shares), dtype=bool)
    spread = shares * total
    while (over := ~full & (spread > caps)).any():
        full |= over
        rest = shares[~full].sum()
        scale = (total - caps[full].sum()) / rest if rest > 0 else 0.0
        spread = np.where(full, caps, shares * scale)
    return spread


def settle(wanted: np.ndarray, shares: np.ndarray, total: int, least: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Counts near ``wanted`` [n], between ``least`` and ``caps``, that sum to ``total``; int64 [n].

    A surplus is taken one by one from the largest count. A deficit goes to the largest share below its cap.
    """
    counts = np.clip(wanted.astype(np.int64), least, caps)
    if counts.sum() > total:
        levels = range(int(counts.max()) + 1)
        level = bisect_right(levels, total, key=lambda at: np.maximum(np.minimum(counts, at), least).sum()) - 1
        lowered = np.maximum(np.minimum(counts, level), least)
        order = np.argsort(-counts, kind="stable")
        lowerable = order[(counts > level)[order] & (least <= level)[order]]
        lowered[lowerable[: total - lowered.sum()]] += 1
        return lowered
    order = np.argsort(-shares, kind="stable")
    room = (caps - counts)[order]
    counts[order] += np.clip(total - counts.sum() - (np.cumsum(room) - room), 0, room)
    return counts
