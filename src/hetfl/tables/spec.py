"""What a table prints: cells taken from any runs, beside what the paper prints in their place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field

from hetfl.config import Settings
from hetfl.errors import unknown
from hetfl.schema import cell_path

if TYPE_CHECKING:
    from hetfl.experiments.plan import Params  # imports torch, which takes seconds; whoever prints a table needs none

Accuracy = Literal[
    "average",
    "lowest",
    "highest",
    "last_pooled",
    "validated_pooled",
    "best_pooled",
    "window_pooled",
    "window_lowest",
]
"""Read in percent: over clients after the last round; of all clients' test samples together after the last round,
each client's in the round that is best on the others', or in the round where it is best; that one or each round's
lowest client, on average over the last rounds that a method reports."""
Count = Literal["parameters", "parameters_total"]
"""Trainable parameters of one client or of all, in M = 1024^2; what they are is known without a run."""
Size = Literal["up_first", "up_last", Count]
"""Elements in M: the uploads of all clients in the first or last round, or :data:`Count`."""
Cosine = Literal["cosine_shared", "cosine_group_global", "cosine_group_local"]
"""Of prompts, as a record's diagnostics have them, on average over the last rounds that a method reports."""
Statistic = Accuracy | Size | Cosine
"""What is read from a run."""


PRINTED = ("printed", "printed_std", "printed_variance", "digits")
"""Fields of a cell that say what the paper prints."""


class Entry(Settings):
    """One cell: the runs that its number is taken from, and what the paper prints.

    Attributes:
        experiment, method, row, split: where the runs lie.
        seeds: of the runs; the number is their mean.
        statistic: what is read from each.
        reading: the inference rule that an accuracy is of, as a record names others than the method's usual one.
        round: read when this round was over; None: when the run was.
        server: whether ``parameters`` count the server's network.
        printed: the paper's number, in the unit of the statistic.
        printed_std: the deviation that the paper prints with it.
        printed_variance: the variance between rounds of one run that the paper prints with it, in squared points.
        digits: decimals that the paper's number has in print.
        comparable: whether the printed number is of the same setting; if not, it is shown and nothing concluded.
        footnote: what a reader must know about this cell.
        against: the row whose number, in this column and of the same seed, is subtracted.
    """

    experiment: str
    method: str
    row: str
    split: str
    seeds: list[int] = Field(min_length=1)
    statistic: Statistic = "average"
    reading: str = ""
    round: int | None = None
    server: bool = False
    printed: float | None = None
    printed_std: float | None = None
    printed_variance: float | None = None
    digits: int = 0
    comparable: bool = True
    footnote: str = ""
    against: str = ""

    @property
    def in_print(self) -> dict[str, Any]:
        """What the paper prints, by :data:`PRINTED`."""
        return {name: getattr(self, name) for name in PRINTED}

    @property
    def unit(self) -> str:
        """``%`` for accuracies, ``points`` for their differences, ``M`` for elements, nothing for cosines."""
        if self.statistic in get_args(Accuracy):
            return "points" if self.against else "%"
        return "M" if self.statistic in get_args(Size) else ""

    def path(self, seed: int) -> Path:
        """The path of one seed's cell."""
        return cell_path(self.experiment, self.method, self.row, self.split, seed)


def as_printed(printed: Mapping[str, Any], unit: str, decimals: int, varied: str = " ({})") -> str:
    """What a paper prints as text, such as ``85.40±0.30``; empty without a number.

    Args:
        printed: the number, its deviation and its variance, as :data:`PRINTED` names them.
        unit: of the statistic. An accuracy has at least as many decimals as ours; other numbers are as they are.
        decimals: of ours, and of deviation and variance.
        varied: how a variance follows the number.
    """
    number, std, variance, digits = (printed[name] for name in PRINTED)
    if number is None:
        return ""
    text = max(f"{number:g}", f"{number:.{max(digits, decimals if unit == '%' else 0)}f}", key=len)
    text += "" if std is None else f"±{std:.{decimals}f}"
    return text + ("" if variance is None else varied.format(f"{variance:.{decimals}f}"))


class Block(Settings):
    """A part of a table that is laid out by itself."""

    title: str
    rows: list[str]
    columns: list[str]


class TableSpec(Settings):
    """One table.

    Attributes:
        name: the stage's and the files' name.
        title: the heading a reader sees.
        head: what the rows are.
        rows, columns: name -> title.
        entries: row -> column -> cell; a place without one stays empty.
        blocks: parts that are laid out one below the other; empty: the whole at once.
        note: what a reader must know before reading a number, shown beside the title.
        footnotes: what a reader must know besides.
        decimals: of the accuracies.
        curves: whether accuracy over rounds and over traffic are drawn as well.
    """

    name: str = Field(min_length=1)
    title: str
    head: str = "Method"
    rows: dict[str, str] = Field(min_length=1)
    columns: dict[str, str] = Field(min_length=1)
    entries: dict[str, dict[str, Entry]]
    blocks: list[Block] = []
    note: str = ""
    footnotes: list[str] = []
    decimals: int = 1
    curves: bool = False

    @property
    def seeds(self) -> list[int]:
        """All seeds that a cell asks for."""
        return sorted({seed for row in self.entries.values() for entry in row.values() for seed in entry.seeds})


def entry(params: Params, experiment: str, row: str, split: str, **more: Any) -> Entry:
    """The cell of an experiment's row and split.

    Raises:
        HetflError: there is no such experiment or row.
    """
    if experiment not in params.experiments:
        raise unknown("experiment", experiment, params.experiments)
    settings = params.experiments[experiment]
    if row not in settings.rows:
        raise unknown("row", row, settings.rows, f"{settings.file}: experiments.{settings.written}")
    of_row = settings.rows[row]
    seeds = of_row.seeds or settings.seeds
    return Entry(experiment=experiment, method=of_row.method, row=row, split=split, seeds=seeds, **more)


def pooled(table: Mapping[str, Any]) -> bool:
    """Whether the accuracies of a table, as its JSON holds it, are of all clients' test samples together."""
    return has_statistic(table, "last_pooled", "best_pooled", "window_pooled")


def compares(table: Mapping[str, Any]) -> bool:
    """Whether rows of a table, as its JSON holds it, are differences to another row."""
    return any(cell.get("against") for cell in table["cells"])


def several_seeds(table: Mapping[str, Any]) -> bool:
    """Whether a table, as its JSON holds it, has numbers of several seeds, or asks for them while it has none."""
    done = {seed for cell in table["cells"] for seed in cell["seeds"]}
    return len(done or {*table["seeds"]}) > 1


def has_statistic(table: Mapping[str, Any], *statistics: str) -> bool:
    """Whether a cell of a table, as its JSON holds it, has one of these statistics."""
    return any(cell.get("statistic") in statistics for cell in table["cells"])
