"""Distances between the prototypes of classes."""

from __future__ import annotations

import numpy as np


def margins(prototypes: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The prototype margin of each class: the Euclidean distance to the nearest prototype of another class.

    FedTGP (Zhang et al., AAAI 2024), Fig. 1.

    Args:
        prototypes: [C, d].
        valid: [C] bool, the classes that have a prototype.

    Returns:
        [C] float64; NaN if the class has no finite prototype, or no other class has one.
    """
    from scipy.spatial.distance import cdist

    margin = np.full(len(prototypes), np.nan)
    there = np.flatnonzero(valid & np.isfinite(prototypes).all(axis=1))
    if len(there) > 1:
        points = prototypes[there].astype(np.float64)
        distances = cdist(points, points)
        np.fill_diagonal(distances, np.inf)
        margin[there] = distances.min(axis=1)
    return margin


def largest_margins(prototypes: np.ndarray, owned: np.ndarray) -> np.ndarray:
    """The largest margin of each class over all clients, the "maximum" of FedTGP's Fig. 1.

    Each client's margins are among its own classes.

    Args:
        prototypes: [K, C, d].
        owned: [K, C] bool, the classes of each client.

    Returns:
        [C] float64; NaN if no client has the class and another class.
    """
    return np.fmax.reduce([margins(*client) for client in zip(prototypes, owned, strict=True)])
