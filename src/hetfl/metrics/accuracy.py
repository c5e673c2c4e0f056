"""The accuracy family, from one confusion matrix per client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetfl.schema import Accuracies, Round


def summary(confusion: np.ndarray) -> dict[str, Any]:
    """Accuracy over clients and within them, as fractions.

    Args:
        confusion: [K, C, C] int64, rows are true classes, columns predicted ones.

    Returns:
        ``accuracy`` of each client, None of one without samples, which all figures over clients leave out; their
        ``average``, ``lowest``, ``highest`` and population ``std``; ``pooled`` over all samples;
        ``balanced_accuracy`` (mean recall of the classes present) and ``macro_f1``, each averaged over clients.
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
    """The best accuracies over rounds, as fractions, which is how FedTGP's protocol reports a run.

    Args:
        lines: of the record, from round 1 on.

    Returns:
        ``best_pooled`` over all samples and the ``best_round`` that has it first, ``best_average`` over clients, and
        the number of ``rounds``.
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
        tests: after each round from 1 on, fine-tuning left out. Rounds without a test are None and keep their place,
            so that windows are of the same rounds.
        window: how many rounds; all where there are fewer.

    Returns:
        Means over those of these rounds that have a test, ``window_rounds`` of them: ``window_pooled`` over all
        samples, ``window_average`` over clients, ``window_lowest`` of each round's lowest client. And of the pooled
        ones ``window_variance``, which divides by their number, and ``window_variance_sample``, by one less (None of
        one round).
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
    """Recall of each client and class [K, C]; NaN where a client has no test sample of the class."""
    samples = confusion.sum(axis=2)
    correct = np.diagonal(confusion, axis1=1, axis2=2)
    return np.divide(correct, samples, out=np.full(samples.shape, np.nan), where=samples > 0)


def _macro_f1(matrix: np.ndarray) -> float:
    # Imported late: training does not need scikit-learn's metrics.
    from sklearn.metrics import f1_score

    true, predicted = np.indices(matrix.shape)
    present = np.flatnonzero(matrix.sum(axis=1))
    return float(
        f1_score(
            true.ravel(),
            predicted.ravel(),
            sample_weight=matrix.ravel(),
            labels=present,
            average="macro",
            zero_division=0,
        )
    )
