"""What watches run records as they grow: the progress display and the MLflow mirror."""

from hetfl.tracking.mlflow_mirror import MlflowMirror, sync, try_sync
from hetfl.tracking.progress import Progress
from hetfl.tracking.watch import Subscriber, Watcher

__all__ = ["MlflowMirror", "Progress", "Subscriber", "Watcher", "sync", "try_sync"]
