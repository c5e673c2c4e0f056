"""The terms of FedHPL's Theorem 1, computed from a run record as diagnostics.

Ma et al., arXiv 2405.17267. With probability 1 - eps, for any t > 0:

    R_test(h_k) <= R(h_k) + sqrt((KL(h_k || h_0) + ln sqrt(4 m) - ln eps) / (2 m)) + R(h_0) + R_test(h_0)
                   + d(D_k, D_test) + mean_i [CE(phi(g_i), phi(p_i)) - H(phi(g_i))]
                   + (lambda_k - ln eps) / (t m) + t C_k^2 / 8

Three terms cannot be computed: KL(h_k || h_0) is between distributions over hypotheses, but each client has a single
hypothesis; lambda_k is infinite for continuous parameters; d is a supremum over hypotheses. Other quantities replace
them, so the sum is a proxy: it can be followed over rounds and compared between runs, but it is no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hetfl.schema import Round, Run

EPSILON = 0.05
"""eps: the probability with which the bound may fail."""


def series(run: Run, rounds: Iterable[Round]) -> dict[str, Any]:
    """Compute every term for every round and client.

    Args:
        run: the run's record.
        rounds: its rounds.

    Returns:
        ``round``: [R], the rounds in which clients were observed. The observed values by name, see
        :mod:`hetfl.methods.parts.theorem`: [R][K], or [R][K][C] for ``upload_rate``. ``shrinkage`` and
        ``shrinkage_max``: [R][K], by how much the 1 that Eq. 8 adds shrinks the teachers made at the end of the
        round. Derived values: ``lambda0`` and ``label_tv`` [K], ``beta`` [K][K]; ``slack_pb``, ``slack_kd`` and
        ``bound_proxy`` [R][K].
        None stands for a missing value. A key is missing if the record lacks the values that it needs.
    """
    clients, lines = run.clients, [line for line in rounds if line.clients]
    names = dict.fromkeys(name for line in lines for name in line.clients)
    values = {name: _by_client([_spread(line, name, clients) for line in lines]) for name in names}
    for name in ("shrinkage", "shrinkage_max"):
        made: list[Any] = [line.diagnostics.get(name) for line in lines]
        if any(made):
            values[name] = _by_client([shares or [None] * clients for shares in made])
    if "width" in values:
        widths = values.pop("width")[0]
        values["beta"] = beta(np.ones_like(widths) if run.settings.get("aggregation") == "average" else widths)
    first = next((line for line in lines if line.round == 0), None)
    if first and "err01" in values:
        values["lambda0"] = adaptation(values["err01"][0], np.array(first.accuracy, dtype=float))
    train, test = (np.array(counts, dtype=float) for counts in (run.class_counts.train, run.class_counts.test))
    samples = train.sum(axis=1)
    values["label_tv"] = label_distance(train, test)
    if "param_kl" in values:
        values["slack_pb"] = prompt_slack(values["param_kl"], samples)
    if {"param_kl", "kd_max"} <= values.keys():
        largest = _weight(run.settings) * values["kd_max"]
        values["slack_kd"] = distillation_slack(largest, values["param_kl"], samples)
    terms = ("err01", "slack_pb", "lambda0", "label_tv", "kd_loss", "slack_kd")
    if values.keys() >= set(terms):
        values["bound_proxy"] = sum((values[name] for name in terms), np.zeros(clients))
    return {"round": [line.round for line in lines]} | {name: _plain(value) for name, value in values.items()}


def _weight(settings: Mapping[str, Any]) -> float:
    """What the loss multiplies a sample's divergence with, and so C_k: gamma, and T squared where that is used."""
    squared = settings.get("temperature", 1.0) ** 2 if settings.get("squared_temperature") else 1.0
    return float(settings.get("gamma", 1.0) * squared)


def beta(widths: np.ndarray) -> np.ndarray:
    """Eq. 7: beta[k, j] = min(d_k / d_j, d_j / d_k), [K, K], for the clients' feature widths [K]."""
    ratio = widths[:, None] / widths[None, :]
    return np.minimum(ratio, 1 / ratio)


def adaptation(error: np.ndarray, test_accuracy: np.ndarray) -> np.ndarray:
    """Theorem 1's R(h_0) + R_test(h_0): 0-1 risks of the untrained model on the client's and on test data.

    For a random head it is about 2 (1 - 1 / C), which says nothing. It is useful to compare initial models.

    Args:
        error: [K], 0-1 risk of each client's untrained model on its training data.
        test_accuracy: [K], the untrained model's accuracy on test data.

    Returns:
        [K].
    """
    return error + 1 - test_accuracy


def label_distance(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """1/2 sum_c |#D[k, c] / m_k - n_test[c] / n_test|, the total variation between label distributions.

    It replaces Theorem 1's d(D_k, D_test), which is a distance between distributions of inputs.

    Args:
        train: training samples per client and class [K, C].
        test: test samples per class [C], or [K, C] if clients have test sets of their own.

    Returns:
        [K]; NaN for a client without samples.
    """
    with np.errstate(invalid="ignore"):
        shares = [counts / counts.sum(axis=-1, keepdims=True) for counts in (train, test)]
    return 0.5 * np.abs(shares[0] - shares[1]).sum(axis=-1)


def prompt_slack(divergence: np.ndarray, samples: np.ndarray, epsilon: float = EPSILON) -> np.ndarray:
    """Theorem 1's sqrt((KL(h_k || h_0) + ln sqrt(4 m) - ln eps) / (2 m)).

    Args:
        divergence: KL(h_k || h_0), [..., K].
        samples: m, [K].
        epsilon: eps.

    Returns:
        [..., K].
    """
    return np.sqrt((divergence + 0.5 * np.log(4 * samples) - np.log(epsilon)) / (2 * samples))


def distillation_slack(
    bound: np.ndarray, complexity: np.ndarray, samples: np.ndarray, epsilon: float = EPSILON
) -> np.ndarray:
    """Theorem 1's (lambda_k - ln eps) / (t m) + t C_k^2 / 8 at the t that minimises it.

    t = sqrt(8 (lambda_k - ln eps) / (m C_k^2)) leaves C_k sqrt((lambda_k - ln eps) / (2 m)).

    Args:
        bound: C_k, the largest distillation loss of a sample, [..., K].
        complexity: lambda_k = -ln pi_k of a discrete prior, replaced by the parameters' divergence, [..., K].
        samples: m, [K].
        epsilon: eps.

    Returns:
        [..., K].
    """
    return bound * np.sqrt((complexity - np.log(epsilon)) / (2 * samples))


def _spread(line: Round, name: str, clients: int) -> list[Any]:
    """One diagnostic by client, from a round that has it by participant; None for the other clients."""
    seen = dict(zip(line.participants, line.clients.get(name, ()), strict=False))
    return [seen.get(client) for client in range(clients)]


def _by_client(lines: list[list[Any]]) -> np.ndarray:
    """Convert to an array [R, K] or [R, K, C], with NaN for None."""
    length = next((len(value) for line in lines for value in line if isinstance(value, list)), None)
    missing = np.nan if length is None else [np.nan] * length
    return np.array([[missing if value is None else value for value in line] for line in lines], dtype=float)


def _plain(values: np.ndarray) -> list[Any]:
    """Convert to nested lists, with None for NaN."""
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return plain.tolist()
