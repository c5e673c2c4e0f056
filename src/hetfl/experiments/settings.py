"""Experiments as they are written in params.yaml, and as they run: with protocols, sweeps and ``over`` resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from hetfl.config import COMBINATIONS, Different, Settings, validate
from hetfl.data.inputs import InputSettings
from hetfl.data.sets import CATALOGUE
from hetfl.errors import HetflError, unknown
from hetfl.methods import METHODS, method_class

ADHOC = "adhoc-"
"""Start of the names of the experiments that single runs of ``hetfl run`` belong to; the data set follows."""

LONGEST = 60
"""The most characters of a name: a cell's four joined, as in its lock's, fit into a file system's 255 bytes."""
NAME = re.compile(rf"[a-z0-9][a-z0-9.-]{{0,{LONGEST - 1}}}")
_RIGHT = f"use at most {LONGEST} lower-case letters, digits, dots and dashes"


def _named(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"is not a valid name; {_RIGHT}")
    return name


Name = Annotated[str, AfterValidator(_named)]
"""A name of an experiment, row or split, which is also used in names of folders and stages."""


def _counted(seeds: Any) -> Any:
    if not isinstance(seeds, int) or isinstance(seeds, bool):
        return seeds
    if not 1 <= seeds <= COMBINATIONS:
        raise ValueError(f"is no number of seeds; use 1 to {COMBINATIONS}, or a list of seeds")
    return [*range(seeds)]


Seeds = Annotated[Different[int], BeforeValidator(_counted)]
"""Seeds, or their number: 3 stands for 0, 1 and 2."""

Sweep = dict[str, Different[str | bool | int | float | None]]
"""Values by setting; several settings form a grid."""


class PublicSettings(Settings):
    """The public data that clients and server share, for methods that use them.

    Attributes:
        dataset: name of the data set.
        subset: which of its subsets is public.
    """

    dataset: str
    subset: str = "train"


class ProtocolSettings(Settings):
    """Settings that the experiments of a paper, or several rows, have in common.

    Attributes:
        paper: the paper that the protocol is from.
        seeds, input: defaults for experiments that set none.
        settings: apply to every method that has these settings.
        methods: further settings by method.
    """

    paper: str = ""
    seeds: Seeds | None = None
    input: InputSettings | None = None
    settings: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {}


class WrittenRow(Settings):
    """One row as it is written in the file.

    Attributes:
        method: if missing, the row's name is the method.
        title: if missing, the method's title, with the row's name and ``against`` where it has these of its own.
        protocol: settings shared with other rows; they override the experiment's, and ``settings`` overrides them.
        settings: of this row only; they override all others.
        models: the row's model group, instead of the experiment's.
        input: the row's input settings, instead of the experiment's.
        splits: the partitions that the row is trained on, instead of the experiment's.
        seeds: the row's seeds, a part of the experiment's.
        sweep: the row's sweep, instead of the experiment's.
        against: the row that this one differs from in one choice. The experiment's table then shows what the choice
            changes, seed by seed.
    """

    method: str | None = None
    title: str | None = None
    protocol: str | None = None
    settings: dict[str, Any] = {}
    models: str | None = None
    input: InputSettings | None = None
    splits: Different[Name] | None = None
    seeds: Seeds | None = None
    sweep: Sweep | None = None
    against: Name | None = None


class WrittenExperiment(Settings):
    """One experiment as it is written in the file; with ``over``, a block is several experiments.

    Attributes:
        protocol: settings shared with other experiments.
        defaults: settings of all rows whose methods have them; a row can override them.
        splits: names of the data set's partitions, with their titles in the table.
        input: how images are resized, normalised and augmented.
        public: the public data, for methods that use them.
        features: number of test samples whose features the evaluation stores, together with the prototypes of clients
            and server; 0: none.
        sweep: values of settings; each row is run with each combination, as a separate row.
        rows: by name; None stands for a row without settings of its own.
    """

    title: str
    paper: str | None = None
    protocol: str | None = None
    dataset: str
    models: str
    splits: dict[Name, str] = Field(min_length=1)
    seeds: Seeds | None = None
    input: InputSettings | None = None
    public: PublicSettings | None = None
    features: int = Field(default=0, ge=0)
    defaults: dict[str, Any] = {}
    sweep: Sweep = {}
    rows: dict[Name, WrittenRow | None] = Field(min_length=1)
    note: str = ""


class Row(Settings):
    """One row as it runs.

    Attributes:
        written: its name in the file; a sweep makes several rows with other names from it.
        swept: this row's values of the sweep's settings.
        own_sweep: whether the sweep is the row's own and not the experiment's.
        against: the row that it is compared with, see :class:`WrittenRow`.
    """

    written: str
    method: str
    title: str
    protocol: str | None
    settings: dict[str, Any]
    swept: dict[str, Any]
    own_sweep: bool
    models: str | None
    input: InputSettings | None
    splits: list[str] | None
    seeds: list[int] | None
    against: str | None = None

    @classmethod
    def plain(cls, method: str) -> Row:
        """A row of a method without any settings."""
        ((_, row),) = _rows(method, WrittenRow(), {}, "")
        return row


class Experiment(Settings):
    """An experiment as it runs: a data set, a model group and a protocol. Its cells are row x split x seed.

    Attributes:
        file: the file that it is written in, relative to the checkout.
        written: its name there; experiments from one ``over`` share it.
    """

    file: str
    written: str
    title: str
    paper: str
    protocol: str | None
    dataset: str
    models: str
    splits: dict[str, str]
    seeds: list[int]
    input: InputSettings
    public: PublicSettings | None
    features: int
    defaults: dict[str, Any]
    rows: dict[str, Row]
    note: str


def read_experiments(
    raw: Any,
    root: Path,
    file: str,
    protocols: Mapping[str, ProtocolSettings],
    inputs: Mapping[str, InputSettings] = {},
) -> dict[str, Experiment]:
    """Read the experiments of a file, by name.

    Args:
        raw: content of the file's ``experiments``.
        root: the checkout.
        file: the file's path in it.
        protocols: all protocols by name.
        inputs: how the images of a data set are normalised where an experiment does not say, by data set.

    Raises:
        HetflError: one line about the first mistake.
    """
    start = f"{file}: experiments"
    if not isinstance(raw, dict):
        raise HetflError(f"{start}: is a {type(raw).__name__}; a mapping of experiments is needed")
    found: dict[str, Experiment] = {}
    for written, block in raw.items():
        if not isinstance(written, str):
            raise HetflError(f"{start}: {written!r} is not a valid name; put it in quotes")
        for suffix, variant in _variants(block, f"{start}.{written}"):
            name = f"{written}{suffix}"
            if not NAME.fullmatch(name):
                raise HetflError(f"{start}: {name!r} is not a valid name; {_RIGHT}")
            if name in found:
                raise HetflError(f"{start}.{written}.over: makes {name!r} twice; use other names")
            found[name] = _experiment(variant, root, file, written, protocols, inputs)
    return found


def layers(
    experiment: Experiment, row: Row, protocols: Mapping[str, ProtocolSettings]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The layers of a row's settings over its method's defaults: location in the file and settings. Later ones win.

    From settings that rows share, a row takes those that its method has.
    """
    known = method_class(row.method).Settings.model_fields

    def shared(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name in known}

    def protocol(name: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
        if name is not None:
            yield f"protocols.{name}.settings", shared(protocols[name].settings)
            yield f"protocols.{name}.methods.{row.method}", protocols[name].methods.get(row.method, {})

    at = f"experiments.{experiment.written}"
    yield from protocol(experiment.protocol)
    yield f"{at}.defaults", shared(experiment.defaults)
    yield from protocol(row.protocol)
    yield f"{at}.rows.{row.written}.settings", row.settings
    yield f"{at}.rows.{row.written}.sweep" if row.own_sweep else f"{at}.sweep", row.swept


def check_shared(settings: Mapping[str, Any], where: str) -> None:
    """Check that at least one method has each of these shared settings.

    Raises:
        HetflError: no method has the setting.
    """
    known = {name for method in METHODS.values() for name in method.Settings.model_fields}
    for name in settings:
        if name not in known:
            raise unknown("setting", name, sorted(known), where)


def _variants(block: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The experiments of a block, as suffix of the name and content; several if it has ``over``.

    ``over`` has axes, and each combination of one entry per axis is an experiment. An axis maps suffixes to entries,
    which are merged into the block. An axis named ``dataset``, ``models`` or ``protocol`` also sets this key to the
    suffix, unless the entry sets it.
    """
    if not isinstance(block, dict) or "over" not in block:
        yield "", block
        return
    axes = block["over"]
    if not isinstance(axes, dict) or not axes or not all(isinstance(axis, dict) and axis for axis in axes.values()):
        raise HetflError(
            f"{where}.over: must be a mapping of axes, each a mapping of suffixes, such as dataset: {{digits: {{}}}}"
        )
    _few({axis: len(entries) for axis, entries in axes.items()}, f"{where}.over")
    common = {key: value for key, value in block.items() if key != "over"}
    for chosen in product(*([(axis, *entry) for entry in entries.items()] for axis, entries in axes.items())):
        variant, titles = common, [str(common.get("title", ""))]
        for axis, suffix, changes in chosen:
            named = {axis: suffix} if axis in ("dataset", "models", "protocol") else {}
            if not isinstance(changes, dict | None):
                raise HetflError(
                    f"{where}.over.{axis}.{suffix}: {changes!r} is not a mapping; give the keys that differ, or {{}}"
                )
            variant = _merged(variant, named | (changes or {}))
            titles.append(CATALOGUE[suffix].title if axis == "dataset" and suffix in CATALOGUE else str(suffix))
        yield "".join(f"-{suffix}" for _, suffix, _ in chosen), variant | {"title": ", ".join(titles)}


def _few(axes: Mapping[Any, int], where: str) -> None:
    """Check that a grid, given the number of entries on each axis, has few combinations."""
    if (found := prod(axes.values())) > COMBINATIONS:
        raise HetflError(f"{where}: has {found:.3g} combinations, {COMBINATIONS} are allowed; use fewer")


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merged(base[key], value) if both else value
    return merged


def _experiment(
    raw: Any,
    root: Path,
    file: str,
    written: str,
    protocols: Mapping[str, ProtocolSettings],
    inputs: Mapping[str, InputSettings],
) -> Experiment:
    where = f"{file}: experiments.{written}"
    read = validate(WrittenExperiment, raw, where, source=(root / file, "experiments", written))
    base = _protocol(read.protocol, protocols, where)
    seeds = read.seeds or base.seeds
    if seeds is None:
        raise HetflError(f"{where}.seeds: is missing")
    for key, row in read.rows.items():
        _protocol(row.protocol if row else None, protocols, f"{where}.rows.{key}")
    rows = {
        key: row
        for written_row, entry in read.rows.items()
        for key, row in _rows(written_row, entry or WrittenRow(), read.sweep, f"{where}.rows.{written_row}")
    }
    _check_compared(rows, where)
    return Experiment(
        file=file,
        written=written,
        title=read.title,
        paper=base.paper if read.paper is None else read.paper,
        protocol=read.protocol,
        dataset=read.dataset,
        models=read.models,
        splits=read.splits,
        seeds=seeds,
        input=read.input or base.input or inputs.get(read.dataset) or InputSettings(),
        public=read.public,
        features=read.features,
        defaults=read.defaults,
        rows=rows,
        note=read.note,
    )


def _check_compared(rows: Mapping[str, Row], where: str) -> None:
    """Check that rows are compared with other rows of the experiment."""
    for name, row in rows.items():
        if row.against is not None and row.against not in (others := [other for other in rows if other != name]):
            raise unknown("row", row.against, others, f"{where}.rows.{row.written}.against")


def _protocol(name: str | None, protocols: Mapping[str, ProtocolSettings], where: str) -> ProtocolSettings:
    if name is None:
        return ProtocolSettings()
    if name not in protocols:
        raise unknown("protocol", name, protocols, f"{where}.protocol")
    return protocols[name]


def _rows(written: str, row: WrittenRow, sweep: Sweep, where: str) -> Iterator[tuple[str, Row]]:
    """The rows that a row of the file stands for: one for each combination of its sweep."""
    sweep = sweep if row.sweep is None else row.sweep
    cls = method_class(row.method or written, f"{where}.method")
    _few({setting: len(values) for setting, values in sweep.items()}, f"{where}.sweep")
    for values in product(*sweep.values()):
        point = dict(zip(sweep, values, strict=True))
        parts = [f"{setting}-{_shown(value)}" for setting, value in point.items()]
        key = "-".join([written, *parts]).replace("_", "-").lower()
        if not NAME.fullmatch(key):
            raise HetflError(
                f"{where}.sweep: {key!r} is not a valid name of a row; sweep over numbers and plain words, and "
                f"over so few settings that it has at most {LONGEST} characters"
            )
        words = ", ".join(f"{setting} {_shown(value)}" for setting, value in point.items())
        title = row.title or _title(cls.title, written, row)
        yield (
            key,
            Row(
                written=written,
                method=row.method or written,
                title=f"{title}, {words}" if words else title,
                protocol=row.protocol,
                settings=row.settings,
                swept=point,
                own_sweep=row.sweep is not None,
                models=row.models,
                input=row.input,
                splits=row.splits,
                seeds=row.seeds,
                against=row.against,
            ),
        )


def _title(usual: str, written: str, row: WrittenRow) -> str:
    """The title of a row that is given none: the method's, and what tells the row from others of this method."""
    named = usual if written == (row.method or written) else f"{usual} ({written})"
    return f"{named}, against {row.against}" if row.against else named


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
