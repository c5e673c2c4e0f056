"""How samples are sorted into groups: how evenly, and how much like K-means on all of them in one place."""

from __future__ import annotations

import numpy as np


def entropy(histogram: np.ndarray) -> float:
    """The entropy of a histogram over that of an even one.

    Args:
        histogram: [G] counts or shares, not negative.

    Returns:
        Within [0, 1]: 0 where one group has everything, 1 where all have as much; 1 where there is one group, or
        nothing to sort.
    """
    counts = np.asarray(histogram, dtype=np.float64)
    if len(counts) == 1 or not counts.any():
        return 1.0
    share = counts[counts > 0] / counts.sum()
    return max(0.0, float(-(share * np.log(share)).sum() / np.log(len(counts))))


def congruence(groups: np.ndarray, clusters: np.ndarray, labels: np.ndarray) -> float:
    """How much a method's groups are like the clusters of centralised K-means, SGPT's appendix D.2 and Figure 6a.

    ``Acc_overlap``, the share of samples in the group that is the most frequent of their cluster, over ``Q_kmeans``,
    the share of samples in the cluster that is the most frequent of their class.

    Args:
        groups: [n] int.
        clusters: [n] int.
        labels: [n] int, the samples' classes.

    Returns:
        Above 0, and above 1 where groups are closer to clusters than clusters are to classes.
    """
    overlap = _contingency(clusters, groups).max(axis=1).sum()
    quality = _contingency(labels, clusters).max(axis=1).sum()
    return float(overlap / quality)


def kmeans(points: np.ndarray, clusters: int) -> np.ndarray:
    """The cluster of each point: the best of 10 restarts of K-means with k-means++, the same every time.

    Args:
        points: [n, d].
        clusters: K; with fewer points each is a cluster of its own.

    Returns:
        [n] int64 within 0 .. K - 1.
    """
    # Imported late: training does not need scikit-learn.
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    # Sums of several threads differ in their last digits.
    with threadpool_limits(1):
        found = KMeans(min(clusters, len(points)), init="k-means++", n_init=10, random_state=0).fit_predict(points)
    return found.astype(np.int64)


def _contingency(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """How many samples are in each pair of two partitions, int64."""
    table = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1), dtype=np.int64)
    # Small integer types would overflow as indices of pairs; this one pairs them by itself.
    np.add.at(table, (rows, columns), 1)
    return table
