"""A finished run as a model of MLflow, which ``mlflow.pyfunc.load_model`` loads by :func:`hetfl.load`.

The model is a description of a few kilobytes that names the run's record; the checkpoint stays there, unless MLflow's
files are on another machine: then the record is copied with the model. Nothing is pickled.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hetfl.errors import HetflError
from hetfl.files import read_json, sha256_file, write_json
from hetfl.schema import MODEL, RECORD, RUN, Run
from hetfl.tracking.mlflow_content import record_path

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

NAME = "model"
"""A run's model, ``runs:/<id>/model``."""
SOURCE, REFERENCE = "record", "reference.json"
UNASKED = "mlflow.utils.environment.warn_dependency_requirement_mismatches"
"""What looks for seconds through the files of all installed packages, to compare this hetfl with itself."""
EXAMPLE_SIZE = 32
"""Largest height and width of the input example, which is stored as text."""


def write_model(folder: Path, record: Path, run: Run, data: Path, copied: bool, model_id: str, run_id: str) -> None:
    """Write the description of a finished run as a model.

    Args:
        folder: where to; it must not exist.
        record: the run's folder.
        run: its record.
        data: the folder of prepared data sets. An image of the run's is the input example, if it is there.
        copied: whether to put the record beside it.
        model_id, run_id: MLflow's, of the model and of the run.
    """
    import mlflow.pyfunc
    import numpy as np
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
    from mlflow.types.schema import Array

    # MLflow would say so at every model without an example, in the middle of a progress display.
    warnings.filterwarnings("ignore", message=".*input example was not provided")
    example = _example(data / run.dataset, run)
    channels = -1 if example is None else example.shape[3]
    outputs: list[Any] = [
        ColSpec(DataType.string, "class", required=False),
        ColSpec(DataType.long, "label"),
        ColSpec(DataType.double, "probability"),
        ColSpec(Array(DataType.float), "probabilities"),
    ]
    with TemporaryDirectory() as temporary:
        source = Path(temporary) / SOURCE
        source.mkdir()
        write_json(source / REFERENCE, {"record": record_path(record), "sha256": sha256_file(record / MODEL)})
        if copied:
            for name in RECORD:
                shutil.copyfile(record / name, source / name)
        with patch(UNASKED, create=True):
            mlflow.pyfunc.save_model(
                folder,
                loader_module=__name__,
                data_path=source,
                mlflow_model=Model(artifact_path=NAME, run_id=run_id, model_id=model_id),
                signature=ModelSignature(
                    Schema([TensorSpec(np.dtype("uint8"), (-1, -1, -1, channels))]),
                    Schema(outputs),
                    ParamSchema([ParamSpec("client", DataType.long, 0)]),
                ),
                input_example=example,
                pip_requirements=[f"hetfl=={run.versions['hetfl']}"],
                metadata={"method": run.method, "dataset": run.dataset, "fingerprint": run.fingerprint},
            )


class PyfuncModel:
    """What ``mlflow.pyfunc.load_model`` gives of a run."""

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def predict(self, images: np.ndarray, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Classify images uint8 [N, H, W, C].

        Args:
            images: of any size; they are resized and normalised as the run's test images were.
            params: ``client``, whose model classifies; 0 by default.

        Returns:
            A row per image: its ``class`` (None for one of the public data set), the class's ``label`` and
            ``probability``, and the ``probabilities`` of all classes.
        """
        import pandas as pd

        found = self.loaded.predict(images, **(params or {}))
        shares = found.probabilities
        return pd.DataFrame(
            {
                "class": found.names,
                "label": found.labels,
                "probability": shares.max(axis=1, initial=0.0).astype(float),
                "probabilities": shares[:, : len(self.loaded.class_names)].tolist(),
            }
        )


def _load_pyfunc(path: str) -> PyfuncModel:
    """What MLflow calls with the folder that has a model's :data:`REFERENCE`.

    Raises:
        HetflError: there is no checkout with the record, or its checkpoint is another one.
    """
    from hetfl.experiments.loading import load

    folder = Path(path).resolve()
    told = read_json(folder / REFERENCE)
    above = [*folder.parents, *(Path.cwd() / "x").parents]
    root = next((root for root in above if (root / told["record"] / RUN).exists()), None)
    if root is not None:
        record, weights = root / told["record"], root / "weights"
    elif (folder / RUN).exists():
        record, weights = folder, Path("weights")
    else:
        raise HetflError(f"{told['record']}: is not here; load the model in the checkout that trained it")
    if sha256_file(record / MODEL) != told["sha256"]:
        raise HetflError(
            f"{record / MODEL}: is of another training than this model; take the model of its newest run"
        )
    return PyfuncModel(load(record, weights=weights))


def _example(dataset: Path, run: Run) -> np.ndarray | None:
    """The first test image [1, h, w, C] of a prepared data set, every so many pixels; None if it is not there."""
    from hetfl.data.store import read_dataset

    try:
        found = read_dataset(dataset)
    except HetflError:
        return None
    if found.checksum != run.inputs.dataset or "test" not in found.subsets:
        return None
    image = found.subsets["test"].images[:1]
    step = -(-max(image.shape[1:3]) // EXAMPLE_SIZE)
    return image[:, ::step, ::step].copy()
