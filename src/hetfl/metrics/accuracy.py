"""Accuracies over clients and rounds, from one confusion matrix per client or from the rounds of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetfl.schema import Accuracies, Round


def summary(confusion: np.ndarray) -> dict[str, Any]:
    """Summarise accuracies over clients, as fractions.

    Args:
        confusion: [K, C, C] int64, rows are true classes, columns predicted ones.

    Returns:
        ``accuracy`` of each client; None for a client without samples, which statistics over clients ignore. Their
        ``average``, ``lowest``, ``highest`` and population ``std``. ``pooled``: accuracy over all samples.
        ``balanced_accuracy`` (mean recall of the classes that are present) and ``macro_f1``, averaged over clients.
    """
    correct, total = np.diagonal(confusion, axis1=1, axis2=2).sum(axis=1), confusion.sum(axis=(1, 2))
    some = total > 0
    accuracy, tested = correct[some] / total[some], confusion[some]
    shares = iter(accuracy.tolist())
    return {
        "accuracy": [next(shares) if there else None for there in some],
        "average": float(accuracy.mean()),
        "lowest": float(accuracy.min()),
        "highest": float(accuracy.max()),
        "std": float(accuracy.std()),
        "pooled": float(correct.sum() / total.sum()),
        "balanced_accuracy": float(np.mean(np.nanmean(per_class(tested), axis=1))),
        "macro_f1": float(np.mean([_macro_f1(matrix) for matrix in tested])),
    }


def known(accuracy: Sequence[float | None]) -> list[float]:
    """The accuracies of the clients that have test samples."""
    return [share for share in accuracy if share is not None]


def best_round(lines: Sequence[Round]) -> dict[str, Any]:
    """The best accuracies over rounds, as fractions, by which FedTGP's protocol reports a run.

    Args:
        lines: rounds of the record, from round 1 on.

    Returns:
        ``best_pooled``: the best accuracy over all samples; ``best_round``: the first round that reaches it;
        ``best_average``: the best mean over clients; ``rounds``: number of rounds.
    """
    tests = {line.round: test for line in lines if (test := line.test()) is not None}
    best = max(tests, key=lambda round: tests[round].pooled)
    return {
        "best_pooled": tests[best].pooled,
        "best_round": best,
        "best_average": max(float(np.mean(known(test.accuracy))) for test in tests.values()),
        "rounds": len(lines),
    }


def window(tests: Sequence[Accuracies | None], window: int) -> dict[str, Any]:
    """Accuracies over the last rounds, as fractions, which is how FGPT's protocol reports a run.

    Args:
        tests: the test after each round from 1 on, without the final fine-tuning; None for a round without a test,
            so that the window covers the same rounds in all runs.
        window: number of last rounds; all rounds if there are fewer.

    Returns:
        Means over the rounds of the window that have a test; ``window_rounds`` is their number. ``window_pooled``: of
        the accuracy over all samples; ``window_average``: of the mean over clients; ``window_lowest``: of the lowest
        client. ``window_variance`` and ``window_variance_sample``: variance of the pooled accuracies, divided by
        their number and by one less; the latter is None for a single round.
    """
    last = [test for test in tests[-window:] if test is not None]
    pooled = np.array([test.pooled for test in last])
    clients = [known(test.accuracy) for test in last]
    return {
        "window_pooled": float(pooled.mean()),
        "window_variance": float(pooled.var()),
        "window_variance_sample": float(pooled.var(ddof=1)) if len(pooled) > 1 else None,
        "window_lowest": float(np.mean([min(shares) for shares in clients])),
        "window_average": float(np.mean([np.mean(shares) for shares in clients])),
        "window_rounds": len(last),
    }


def per_class(confusion: np.ndarray) -> np.ndarray:
    """Recall of each client and class [K, C]; NaN if the client has no test sample of the class.

    Args:
        confusion: as for :func:`summary`.
    """
    samples = confusion.sum(axis=2)
    correct = np.diagonal(confusion, axis1=1, axis2=2)
    return np.divide(correct, samples, out=np.full(samples.shape, np.nan), where=samples > 0)


def _macro_f1(matrix: np.ndarray) -> float:
    """The mean over the classes that have samples of 2 TP / (samples of the class + predictions of the class)."""
    samples = matrix.sum(axis=1)
    present = np.flatnonzero(samples)
    right = np.diagonal(matrix)[present]
    return float(np.mean(2 * right / (samples[present] + matrix.sum(axis=0)[present])))
