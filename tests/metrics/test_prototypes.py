"""Prototype margins of a few points."""

import numpy as np
import pytest

from hetfl.metrics.prototypes import largest_margins, margins

# 0 and 1 are five apart, 2 is twelve from 1.
POINTS = np.array([[0.0, 0.0], [3.0, 4.0], [15.0, 4.0]], dtype=np.float32)
NAN = np.nan


@pytest.mark.parametrize(
    ("valid", "expected"),
    [
        ([1, 1, 1], [5, 5, 12]),
        ([1, 0, 1], [np.sqrt(241), NAN, np.sqrt(241)]),
        ([0, 1, 0], [NAN, NAN, NAN]),
        ([0, 0, 0], [NAN, NAN, NAN]),
    ],
)
def test_margin_is_the_distance_to_the_nearest_other_class(valid, expected):
    found = margins(POINTS, np.array(valid, dtype=bool))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_equal_prototypes_have_no_margin():
    np.testing.assert_array_equal(margins(np.ones((2, 3)), np.array([True, True])), [0, 0])


def test_largest_margin_is_over_the_clients_that_own_the_class_and_another():
    owned = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=bool)
    clients = np.stack([2 * POINTS, POINTS, 9 * POINTS])
    np.testing.assert_allclose(largest_margins(clients, owned), [10, 10, 12], rtol=1e-12)
    np.testing.assert_allclose(largest_margins(clients[[0, 2]], owned[[0, 2]]), [10, 10, NAN], rtol=1e-12)


def test_prototypes_of_a_diverged_model_have_no_margin():
    prototypes = np.array([[0.0, 0.0], [3.0, 4.0], [NAN, 0.0], [np.inf, 0.0]])
    found = margins(prototypes, np.ones(4, dtype=bool))
    assert found[:2].tolist() == [5, 5] and np.isnan(found[2:]).all()
