"""Metrics of how a method sorts samples into groups: balance, and agreement with centralised K-means."""

from __future__ import annotations

import numpy as np


def entropy(histogram: np.ndarray) -> float:
    """The normalised entropy of a histogram: its entropy divided by that of a uniform one.

    Args:
        histogram: [G], counts or shares, not negative.

    Returns:
        A number in [0, 1]: 0 if one group has everything, 1 if all groups have the same count. Also 1 if there is
        only one group, or nothing is counted.
    """
    counts = np.asarray(histogram, dtype=np.float64)
    if len(counts) == 1 or not counts.any():
        return 1.0
    share = counts[counts > 0] / counts.sum()
    return max(0.0, float(-(share * np.log(share)).sum() / np.log(len(counts))))


def congruence(groups: np.ndarray, clusters: np.ndarray, labels: np.ndarray) -> float:
    """The congruence of a method's groups with the clusters of centralised K-means (SGPT, appendix D.2, Figure 6a).

    It is ``Acc_overlap / Q_kmeans``. ``Acc_overlap`` is the share of samples whose group is the most frequent one in
    their cluster; ``Q_kmeans`` is the share of samples whose cluster is the most frequent one in their class.

    Args:
        groups: [n] int, the group of each sample.
        clusters: [n] int, the cluster of each sample.
        labels: [n] int, the class of each sample.

    Returns:
        A number above 0; above 1 if groups agree with clusters more than clusters agree with classes.
    """
    overlap = _contingency(clusters, groups).max(axis=1).sum()
    quality = _contingency(labels, clusters).max(axis=1).sum()
    return float(overlap / quality)


def kmeans(points: np.ndarray, clusters: int) -> np.ndarray:
    """Cluster points by K-means: the best of 10 runs with k-means++ and fixed seeds.

    Args:
        points: [n, d].
        clusters: K; if there are fewer points, each is a cluster.

    Returns:
        [n] int64, the cluster of each point, from 0 to K - 1.
    """
    # Imported late: training does not need scikit-learn.
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    # Sums in several threads differ in their last digits.
    with threadpool_limits(1):
        found = KMeans(min(clusters, len(points)), init="k-means++", n_init=10, random_state=0).fit_predict(points)
    return found.astype(np.int64)


def _contingency(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Number of samples for each pair of values, int64 [rows, columns]."""
    table = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1), dtype=np.int64)
    # Combining both values into one index would overflow small integer types; add.at takes them separately.
    np.add.at(table, (rows, columns), 1)
    return table
