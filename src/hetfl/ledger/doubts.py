"""Printed numbers that look inherited, inconsistent or implausible, each with the evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from hetfl.config import Settings, read_yaml, validate
from hetfl.data.sets import CATALOGUE
from hetfl.errors import unknown
from hetfl.experiments.plan import Params
from hetfl.tables import notation
from hetfl.tables.notation import content
from hetfl.tables.spec import Entry, as_printed

Place = tuple[str, str, str]
"""Table, row and column."""


class Doubt(Settings):
    """What is known against some numbers of a table."""

    rows: list[str] = Field(min_length=1)
    columns: list[str] = Field(min_length=1)
    says: str


class _File(Settings):
    tables: dict[str, list[Doubt]]


@cache
def known_doubts() -> dict[Place, list[str]]:
    """The evidence in ``tables/doubts.yaml``, by place.

    Raises:
        HetflError: the file has something else than tables with doubts.
    """
    path = Path(notation.__file__).with_name("doubts.yaml")
    found: dict[Place, list[str]] = defaultdict(list)
    for table, doubts in validate(_File, {"tables": read_yaml(path)}, path.name).tables.items():
        for doubt in doubts:
            for row in doubt.rows:
                for column in doubt.columns:
                    found[table, row, column].append(doubt.says)
    return dict(found)


def check_places(places: Iterable[Place]) -> None:
    """Check that all places of ``tables/doubts.yaml`` have a printed number.

    Raises:
        HetflError: one has none.
    """
    every = [*places]
    for place in known_doubts():
        if place not in every:
            raise unknown("cell", "/".join(place), ["/".join(some) for some in every], "doubts.yaml")


def found_doubts(entries: Mapping[Place, Entry], params: Params) -> dict[Place, list[str]]:
    """The evidence that follows from the printed numbers themselves, by place.

    - Runs of one setting are printed with different numbers or deviations.
    - Runs of different settings with the same method, models and data set have the same number to its last digit, or
      two papers print the same number for a method on a data set.
    - A deviation is 0; an accuracy is below chance or above 100 %; an average is not between its lowest and highest.
    """
    found: dict[Place, list[str]] = defaultdict(list)
    for rule in (_printed_differently, _equal, _implausible, _out_of_order):
        for place, says in rule(entries, params):
            found[place].append(says)
    return dict(found)


Evidence = list[tuple[Place, str]]


def _key(entry: Entry) -> tuple[object, ...]:
    """What tells the numbers of one setting from others."""
    return entry.path(0), entry.statistic, entry.reading, entry.round, entry.server


def _text(entry: Entry) -> str:
    return as_printed(entry.in_print, entry.unit, decimals=2)


def number_of(table: str) -> str:
    """What a paper calls a table: ``FedTGP's Table 10``."""
    paper, _, rest = table.partition("-table-")
    return f"{content(paper)['paper']['short']}'s Table {rest.partition('-')[0]}"


def _printed_differently(entries: Mapping[Place, Entry], params: Params) -> Evidence:
    groups: dict[object, list[Place]] = defaultdict(list)
    for place, entry in entries.items():
        groups[_key(entry)].append(place)
    evidence: Evidence = []
    for places in groups.values():
        for place in places:
            others = [other for other in places if _differ(entries[place], entries[other])]
            if others:
                told = dict.fromkeys(f"{_text(entries[other])} in {number_of(other[0])}" for other in others)
                evidence.append((place, f"The same setting is printed with {', '.join(told)}."))
    return evidence


def _differ(one: Entry, other: Entry) -> bool:
    """Whether two numbers of one setting contradict each other; one may lack what the other has."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("printed", "printed_std", "printed_variance")]
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _equal(entries: Mapping[Place, Entry], params: Params) -> Evidence:
    groups: dict[object, list[Place]] = defaultdict(list)
    models = {}
    for place, entry in entries.items():
        experiment = params.experiments[entry.experiment]
        models[place] = experiment.rows[entry.row].models or experiment.models
        if entry.unit == "%":
            groups[entry.printed, entry.printed_std, entry.method, experiment.dataset].append(place)
    evidence: Evidence = []
    for places in groups.values():
        for place in places:
            others = [
                other
                for other in places
                if _key(entries[other]) != _key(entries[place])
                and (models[other] == models[place] or _paper(other) != _paper(place))
            ]
            if others:
                told = "; ".join(f"{number_of(other[0])}, {other[1]}, {other[2]}" for other in others)
                evidence.append((place, f"Equal to the number of another setting, which may be chance: {told}."))
    return evidence


def _paper(place: Place) -> str:
    return place[0].partition("-")[0]


def _implausible(entries: Mapping[Place, Entry], params: Params) -> Evidence:
    evidence: Evidence = []
    for place, entry in entries.items():
        if entry.printed_std == 0 or entry.printed_variance == 0:
            evidence.append((place, "A deviation of 0."))
        dataset = params.experiments[entry.experiment].dataset
        chance = 100 / len(CATALOGUE[dataset].class_names)
        if entry.unit == "%" and entry.printed is not None and not chance <= entry.printed <= 100:
            evidence.append((place, f"Not between chance ({chance:g}) and 100."))
    return evidence


def _out_of_order(entries: Mapping[Place, Entry], params: Params) -> Evidence:
    order: Sequence[str] = ("lowest", "average", "highest")
    groups: dict[object, dict[str, Place]] = defaultdict(dict)
    for place, entry in entries.items():
        if entry.statistic in order:
            groups[place[0], place[1], entry.path(0), entry.round][entry.statistic] = place
    evidence: Evidence = []
    for found in groups.values():
        told = [(entries[found[name]].printed or 0.0, name, found[name]) for name in order if name in found]
        for (low, lower, _), (high, higher, place) in zip(told, told[1:], strict=False):
            if low > high:
                evidence.append((place, f"The {higher} client is below the {lower} one ({low:g})."))
    return evidence
