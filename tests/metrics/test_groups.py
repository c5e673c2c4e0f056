"""Groups of a few samples, counted by hand."""

import numpy as np
import pytest

from hetfl.metrics.groups import congruence, entropy, kmeans


@pytest.mark.parametrize(
    ("histogram", "expected"),
    [
        ([5, 5, 5, 5], 1.0),
        ([0, 9, 0], 0.0),
        ([2, 1, 1, 0], 0.75),
        ([7], 1.0),
        ([0, 0], 1.0),
        ([0.5, 0.25, 0.25, 0.0], 0.75),
    ],
)
def test_entropy_is_one_where_groups_are_even(histogram, expected):
    assert entropy(np.array(histogram)) == pytest.approx(expected, abs=1e-15)


# Cluster 0 has four samples, three of group 1; cluster 1 has two, one of each; so 3 + 1 of 6 overlap.
GROUPS = np.array([1, 1, 1, 0, 0, 1], dtype=np.int16)
CLUSTERS = np.array([0, 0, 0, 0, 1, 1], dtype=np.int16)
# Class 0 lies in cluster 0 twice; class 1 twice in cluster 0, once in 1; class 2 once in 1; so 2 + 2 + 1 of 6.
LABELS = np.array([0, 0, 1, 1, 1, 2], dtype=np.int16)


def test_congruence_of_a_contingency_table_counted_by_hand():
    assert congruence(GROUPS, CLUSTERS, LABELS) == 4 / 5


def test_congruence_knows_no_names():
    order = np.array([4, 2, 0, 5, 3, 1])
    renamed = congruence((1 - GROUPS)[order], (5 * CLUSTERS + 2)[order], np.array([7, 3, 0])[LABELS][order])
    assert renamed == congruence(GROUPS, CLUSTERS, LABELS)


def test_groups_equal_to_clusters_score_one_over_the_quality_of_the_clusters():
    assert congruence(CLUSTERS, CLUSTERS, CLUSTERS) == 1
    assert congruence(CLUSTERS, CLUSTERS, LABELS) == 6 / 5


def test_one_group_for_all_overlaps_with_every_cluster():
    """The rows are clusters: were they groups, the largest cluster alone would count."""
    assert congruence(np.zeros(6, dtype=int), CLUSTERS, CLUSTERS) == 1
    assert congruence(CLUSTERS, np.zeros(6, dtype=int), LABELS) == 4 / 6


def test_kmeans_finds_what_lies_together_the_same_way_every_time():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 30)
    points = (np.eye(3)[labels] + 0.05 * generator.standard_normal((90, 3))).astype(np.float32)
    found = kmeans(points, 3)
    assert found.dtype == np.int64
    assert congruence(labels, found, labels) == 1
    np.testing.assert_array_equal(found, kmeans(points, 3))


def test_fewer_points_than_clusters_are_a_cluster_each():
    assert sorted(kmeans(np.eye(3), 5)) == [0, 1, 2]
