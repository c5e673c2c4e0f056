"""Metrics of trained models: accuracies, groups, prototype margins, operations, and the terms of Theorem 1."""
