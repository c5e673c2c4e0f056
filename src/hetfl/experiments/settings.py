"""Experiments as people write them, and as they run: data sets, sweeps and what a paper has in common filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hetfl.config import Different, Settings, validate
from hetfl.data.inputs import InputSettings
from hetfl.data.sets import CATALOGUE
from hetfl.errors import HetflError, unknown
from hetfl.methods import METHODS, method_class

NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
Name = Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
"""Names of experiments, rows and splits become folders and stages."""


def _counted(seeds: Any) -> Any:
    return [*range(seeds)] if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds


Seeds = Annotated[Different[int], BeforeValidator(_counted)]
"""Seeds, or how many there are: 3 stands for 0, 1 and 2."""

Sweep = dict[str, Different[str | bool | int | float | None]]
"""Setting -> its values; several settings make a grid."""


class PublicSettings(Settings):
    """The data that clients and server share, for methods that need some."""

    dataset: str
    subset: str = "train"


class ProtocolSettings(Settings):
    """What the experiments of a paper, or some rows, have in common.

    Attributes:
        paper: whose protocol it is.
        seeds, input: of experiments that name none.
        settings: of every method that knows them.
        methods: method -> more settings of that method.
    """

    paper: str = ""
    seeds: Seeds | None = None
    input: InputSettings | None = None
    settings: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {}


class WrittenRow(Settings):
    """One row as the file has it.

    Attributes:
        method: the row's name if not given.
        title: the method's if not given.
        protocol: settings in common with other rows; they come before ``settings`` and after the experiment's.
        settings: what differs from everything else.
        models: a model group of the row's own.
        input: what is done to the row's images, instead of the experiment's.
        splits: partition names that the row is trained on, instead of the experiment's.
        seeds: those of the experiment's seeds that the row is trained with.
        sweep: instead of the experiment's.
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


class WrittenExperiment(Settings):
    """One experiment as the file has it; ``over`` makes several of it.

    Attributes:
        protocol: what it has in common with other experiments.
        defaults: settings of every row whose method knows them, unless the row says otherwise.
        splits: partition names of the data set, with their titles in the table.
        input: what is done to images between the store and the models.
        public: the data that methods with a public data set share.
        features: test samples whose features the evaluation stores, with the clients' and the server's prototypes.
        sweep: values of settings; every row is run with each of them, as a row of its own.
        rows: None stands for a row that is all default.
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
    """One row of a table as it runs.

    Attributes:
        written: its name in the file; ``name`` differs where a sweep makes several rows of it.
        swept: the sweep's values that this row has.
    """

    written: str
    method: str
    title: str
    protocol: str | None
    settings: dict[str, Any]
    swept: dict[str, Any]
    models: str | None
    input: InputSettings | None
    splits: list[str] | None
    seeds: list[int] | None

    @classmethod
    def plain(cls, method: str) -> Row:
        """A row of a method that says nothing of its own."""
        ((_, row),) = _rows(method, WrittenRow(), {}, "")
        return row


class Experiment(Settings):
    """A data set, a model group and a protocol as they run; its cells are row x split x seed.

    Attributes:
        file: where it is written, relative to the checkout.
        written: its name there; several experiments have the same where there is an ``over``.
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
    raw: Any, root: Path, file: str, protocols: Mapping[str, ProtocolSettings]
) -> dict[str, Experiment]:
    """The experiments that a file describes, by name.

    Args:
        raw: the content of its ``experiments``.
        root: of the checkout.
        file: its path there.
        protocols: all there are, by name.

    Raises:
        HetflError: one line about the first mistake.
    """
    start = f"{file}: experiments"
    if not isinstance(raw, dict):
        raise HetflError(f"{start}: holds {type(raw).__name__}, a mapping of experiments is needed")
    found: dict[str, Experiment] = {}
    for written, block in raw.items():
        for suffix, variant in _variants(block, f"{start}.{written}"):
            name = f"{written}{suffix}"
            if not NAME.fullmatch(name):
                raise HetflError(f"{start}: {name!r} is no name; use lower-case letters, digits, dots and dashes")
            if name in found:
                raise HetflError(f"{start}.{written}.over: makes {name!r} twice; use other names")
            found[name] = _experiment(variant, root, file, written, protocols)
    return found


def layers(
    experiment: Experiment, row: Row, protocols: Mapping[str, ProtocolSettings]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a row is set to beside its method's own defaults: places in the file and the settings there, in order.

    Later ones win. What many rows share reaches a row as far as its method knows it.
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
    yield f"{at}.sweep", row.swept


def check_shared(settings: Mapping[str, Any], where: str) -> None:
    """Check that some method knows each of the settings that many rows share.

    Raises:
        HetflError: none does.
    """
    known = {name for method in METHODS.values() for name in method.Settings.model_fields}
    for name in settings:
        if name not in known:
            raise unknown("setting", name, sorted(known), where)


def _variants(block: Any, where: str) -> Iterator[tuple[str, Any]]:
    """What a block stands for: itself or, with an ``over``, every choice of one entry from each of its axes.

    Each axis maps suffixes of the name to what differs from the block, key by key. An axis that is called like one of
    ``dataset``, ``models`` and ``protocol`` sets that to the suffix, unless the entry says otherwise.
    """
    if not isinstance(block, dict) or "over" not in block:
        yield "", block
        return
    axes = block["over"]
    if not isinstance(axes, dict) or not axes or not all(isinstance(axis, dict) and axis for axis in axes.values()):
        raise HetflError(f"{where}.over: needs axes, each a mapping of suffixes, like dataset: {{digits: {{}}}}")
    common = {key: value for key, value in block.items() if key != "over"}
    for chosen in product(*([(axis, *entry) for entry in entries.items()] for axis, entries in axes.items())):
        variant, titles = common, [str(common.get("title", ""))]
        for axis, suffix, changes in chosen:
            named = {axis: suffix} if axis in ("dataset", "models", "protocol") else {}
            if not isinstance(changes, dict | None):
                raise HetflError(f"{where}.over.{axis}.{suffix}: {changes!r} is no mapping of what differs")
            variant = _merged(variant, named | (changes or {}))
            titles.append(CATALOGUE[suffix].title if axis == "dataset" and suffix in CATALOGUE else str(suffix))
        yield "".join(f"-{suffix}" for _, suffix, _ in chosen), variant | {"title": ", ".join(titles)}


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merged(base[key], value) if both else value
    return merged


def _experiment(
    raw: Any, root: Path, file: str, written: str, protocols: Mapping[str, ProtocolSettings]
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
        input=read.input or base.input or InputSettings(),
        public=read.public,
        features=read.features,
        defaults=read.defaults,
        rows=rows,
        note=read.note,
    )


def _protocol(name: str | None, protocols: Mapping[str, ProtocolSettings], where: str) -> ProtocolSettings:
    if name is None:
        return ProtocolSettings()
    if name not in protocols:
        raise unknown("protocol", name, protocols, f"{where}.protocol")
    return protocols[name]


def _rows(written: str, row: WrittenRow, sweep: Sweep, where: str) -> Iterator[tuple[str, Row]]:
    """A row of the file, once for each point of its sweep."""
    sweep = sweep if row.sweep is None else row.sweep
    cls = method_class(row.method or written, f"{where}.method")
    for values in product(*sweep.values()):
        point = dict(zip(sweep, values, strict=True))
        parts = [f"{setting}-{_shown(value)}" for setting, value in point.items()]
        key = "-".join([written, *parts]).replace("_", "-").lower()
        if not NAME.fullmatch(key):
            raise HetflError(f"{where}.sweep: {key!r} is no name of a row; sweep over numbers and plain words")
        words = ", ".join(f"{setting} {_shown(value)}" for setting, value in point.items())
        title = row.title or cls.title
        yield (
            key,
            Row(
                written=written,
                method=row.method or written,
                title=f"{title}, {words}" if words else title,
                protocol=row.protocol,
                settings=row.settings,
                swept=point,
                models=row.models,
                input=row.input,
                splits=row.splits,
                seeds=row.seeds,
            ),
        )


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
