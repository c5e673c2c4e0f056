"""What runs are shown by while they train: the progress display and the MLflow mirror."""

from hetfl.tracking.follow import Subscriber, following
from hetfl.tracking.mlflow_mirror import MlflowMirror, sync, try_sync
from hetfl.tracking.progress import Progress

__all__ = ["MlflowMirror", "Progress", "Subscriber", "following", "sync", "try_sync"]
