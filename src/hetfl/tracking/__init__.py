"""What runs are shown by while they train: the progress display and the MLflow mirror."""

from hetfl.tracking.follow import Apart, Relay, following
from hetfl.tracking.mlflow_mirror import MlflowMirror, sync, try_sync
from hetfl.tracking.progress import Progress

__all__ = ["Apart", "MlflowMirror", "Progress", "Relay", "following", "sync", "try_sync"]
