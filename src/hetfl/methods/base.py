"""What the file of a method imports: the contract, the registry, and the functions that many methods share."""

from hetfl.methods.contract import (
    NONE,
    Client,
    Method,
    MethodSettings,
    Phase,
    Query,
    Statistics,
    StatisticsSource,
    Uplinks,
    Work,
    predicted_classes,
)
from hetfl.methods.parts.averages import weighted_mean
from hetfl.methods.parts.class_means import by_class, class_means, class_statistics, mean_over_owners
from hetfl.methods.parts.losses import cross_entropy, euclidean_distances
from hetfl.methods.registry import METHODS, create, method_class, register_method

__all__ = [
    "METHODS",
    "NONE",
    "Client",
    "Method",
    "MethodSettings",
    "Phase",
    "Query",
    "Statistics",
    "StatisticsSource",
    "Uplinks",
    "Work",
    "by_class",
    "class_means",
    "class_statistics",
    "create",
    "cross_entropy",
    "euclidean_distances",
    "mean_over_owners",
    "method_class",
    "predicted_classes",
    "register_method",
    "weighted_mean",
]
