"""hetfl: reproducible tables of heterogeneous federated learning."""

__version__ = "0.1.0"
