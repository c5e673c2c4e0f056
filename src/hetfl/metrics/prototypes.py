"""How far apart the prototypes of classes lie."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist


def margins(prototypes: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The prototype margin of each class: the Euclidean distance to the nearest prototype of another one.

    FedTGP (Zhang et al., AAAI 2024), Fig. 1.

    Args:
        prototypes: [C, d].
        valid: [C], the classes that have one.

    Returns:
        [C] float64; NaN where the class has no finite prototype, or no other class has.
    """
    margin = np.full(len(prototypes), np.nan)
    there = np.flatnonzero(valid & np.isfinite(prototypes).all(axis=1))
    if len(there) > 1:
        points = prototypes[there].astype(np.float64)
        distances = cdist(points, points)
        np.fill_diagonal(distances, np.inf)
        margin[there] = distances.min(axis=1)
    return margin


def largest_margins(prototypes: np.ndarray, owned: np.ndarray) -> np.ndarray:
    """The largest margin of each class over clients, each among its own classes: the "maximum" of FedTGP's Fig. 1.

    Args:
        prototypes: [K, C, d].
        owned: [K, C], the classes of each client.

    Returns:
        [C] float64; NaN where no client has the class and another one.
    """
    return np.fmax.reduce([margins(*client) for client in zip(prototypes, owned, strict=True)])
