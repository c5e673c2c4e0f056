"""Figures of merit, computed from confusion matrices."""
