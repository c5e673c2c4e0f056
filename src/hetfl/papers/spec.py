"""What a table prints: rows are methods, columns are splits of experiments."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from hetfl.config import Settings


class Column(Settings):
    """One column: its title, and the experiment and split its cells are taken from."""

    title: str
    experiment: str
    split: str


class TableSpec(Settings):
    """One table.

    Attributes:
        name: the stage's and the files' name.
        title: the heading a reader sees.
        rows: row name in the experiments -> its title.
        columns: column name -> what it holds.
        seeds: the seeds each cell is averaged over.
        note: what a reader must know before reading a number, shown beside the title.
        printed: row -> column -> the paper's value in percent, where it prints one.
    """

    name: str = Field(min_length=1)
    title: str
    rows: dict[str, str] = Field(min_length=1)
    columns: dict[str, Column] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    note: str = ""
    printed: dict[str, dict[str, float]] = {}


def columns_of(experiment: str, splits: Mapping[str, str]) -> dict[str, Column]:
    """The columns of a table over one experiment: its splits by name, with their titles."""
    return {split: Column(title=title, experiment=experiment, split=split) for split, title in splits.items()}
