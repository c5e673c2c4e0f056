"""What ``import hetfl`` offers besides loading models: training a cell, and reading what was trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetfl.experiments.loading import LoadedRun, load
from hetfl.metrics.accuracy import known
from hetfl.schema import RUN, Round, Run, needed_run, read_rounds

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Result:
    """A run as its record tells it.

    Attributes:
        folder: of the record.
        run: its settings, inputs, versions and machine.
        rounds: its rounds, the one before training included.
    """

    folder: Path
    run: Run
    rounds: list[Round]

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy of the clients after the last round that was tested, in percent."""
        tested = [mean for line in self.rounds if (mean := _average(line)) is not None]
        return tested[-1] if tested else None

    @property
    def bytes(self) -> int:
        """Size of all messages of all rounds, in both directions."""
        return sum(line.up.bytes + line.down.bytes for line in self.rounds)

    @property
    def seconds(self) -> float:
        """Time of all rounds, with their tests."""
        return sum(sum(line.seconds.values()) for line in self.rounds)

    def frame(self) -> pd.DataFrame:
        """A row per round: ``round``; in percent ``accuracy`` (mean over clients), ``lowest``, ``highest`` and
        ``pooled``; ``loss``; and up to then ``bytes`` and ``seconds``. Accuracies of rounds without a test are empty.
        """
        import pandas as pd

        rows = []
        for line in self.rounds:
            shares = known(line.accuracy or ())
            rows.append(
                {
                    "round": line.round,
                    "accuracy": _average(line),
                    "lowest": 100 * min(shares) if shares else None,
                    "highest": 100 * max(shares) if shares else None,
                    "pooled": None if line.pooled is None else 100 * line.pooled,
                    "loss": line.mean_loss,
                    "bytes": line.up.bytes + line.down.bytes,
                    "seconds": sum(line.seconds.values()),
                }
            )
        found = pd.DataFrame(rows)
        found[["bytes", "seconds"]] = found[["bytes", "seconds"]].cumsum()
        return found

    def load(self, device: str = "cpu") -> LoadedRun:
        """Its models, ready to classify images; see :func:`hetfl.load`."""
        return load(self.folder, device)


def run(
    method: str,
    data: str | None = None,
    split: str | None = None,
    seed: int = 0,
    models: str | None = None,
    like: str | None = None,
    root: str | Path = ".",
    engine: str | None = None,
    precision: str | None = None,
    **settings: Any,
) -> Result:
    """Train and evaluate one cell, as ``hetfl run`` does; one that is finished is read from its record.

    ``hetfl.run("fedhpl", split="dir", rounds=5).accuracy``

    Args:
        method: the method.
        data: a data set with partitions in params.yaml; None: that of ``like``, or else the first.
        split: one of them; None: the first of ``like``, or else of the data set.
        seed: of partition and training.
        models: a group of models of params.yaml; None: that of the experiment.
        like: the experiment of params.yaml that all else is taken from; None: the first on the data set.
        root: the folder with params.yaml.
        engine, precision: instead of those of params.yaml.
        **settings: of the method, e.g. ``rounds=5, lr=0.01``.

    Raises:
        HetflError: a name or setting is wrong, or the partition or weights are missing; nothing was written.
        FailedCellsError: the training failed.
    """
    from hetfl.adhoc import adhoc
    from hetfl.experiments.plan import Workspace, load_params
    from hetfl.train import train_cells

    workspace = Workspace(Path(root).resolve())
    params = load_params(workspace.params)
    params, cell = adhoc(params, method, data, split, seed, models, settings, like)
    train_cells([cell], params, workspace.root, engine, precision, evaluate=True)
    return result(workspace.runs / cell.path)


def result(folder: str | Path) -> Result:
    """Read one run's record.

    Args:
        folder: of the record, ``runs/<experiment>/<method>/<row>/<split>-s<seed>``.

    Raises:
        HetflError: there is none, or it is damaged.
    """
    folder = Path(folder)
    run = needed_run(folder)
    return Result(folder, run, read_rounds(folder, finished=run.complete))


def results(folder: str | Path = "runs") -> pd.DataFrame:
    """What was trained: a row per finished run below a folder.

    Args:
        folder: ``runs``, or a folder below it.

    Returns:
        Columns ``experiment``, ``row``, ``method``, ``dataset``, ``split``, ``seed``, ``rounds`` (of the settings),
        ``accuracy`` (percent), ``bytes``, ``seconds`` (both of all rounds) and ``folder``, by which
        :func:`hetfl.load` and :func:`result` read more.

    Raises:
        HetflError: a record is damaged.
    """
    import pandas as pd

    keys = ("experiment", "row", "method", "dataset", "split", "seed", "rounds")
    figures = ("accuracy", "bytes", "seconds")
    paths = sorted(path.parent for path in Path(folder).rglob(RUN) if not _is_hidden(path.relative_to(folder)))
    found = [one for path in paths if (one := result(path)).run.complete]
    rows = [
        {key: getattr(one.run, key) for key in keys}
        | {name: getattr(one, name) for name in figures}
        | {"folder": path}
        for one in found
        for path in [str(one.folder)]
    ]
    return pd.DataFrame(rows, columns=[*keys, *figures, "folder"])


def _average(line: Round) -> float | None:
    shares = known(line.accuracy or ())
    return 100 * sum(shares) / len(shares) if shares else None


def _is_hidden(path: Path) -> bool:
    """Whether a record is a superseded one."""
    return any(part.startswith(".") for part in path.parts)
