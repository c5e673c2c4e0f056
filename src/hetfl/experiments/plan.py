"""Read and check all of params.yaml, and resolve its experiments into cells, before any work starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, TypeAdapter

from hetfl.config import Settings, one_of, read_yaml, validate
from hetfl.data import catalogue
from hetfl.data.inputs import InputSettings
from hetfl.data.own import OwnSettings
from hetfl.data.partitions import PartitionSettings, Scheme
from hetfl.errors import HetflError, unknown
from hetfl.experiments.settings import (
    ADHOC,
    Experiment,
    Name,
    ProtocolSettings,
    PublicSettings,
    Row,
    Seeds,
    check_shared,
    layers,
    read_experiments,
)
from hetfl.methods import METHODS, Method, create, method_class
from hetfl.models import ModelOptions, check_name, check_options
from hetfl.models.outline import outline
from hetfl.models.registry import check_class_token, head_of, is_vit
from hetfl.schema import cell_path
from hetfl.training.pretrain import PretrainSettings
from hetfl.training.ray import RaySettings
from hetfl.training.registry import ENGINES, Precision, choices

SCHEME: TypeAdapter[Scheme] = TypeAdapter(PartitionSettings)
"""Reads the settings of one partition, of whichever scheme."""


class PartitionsSettings(Settings):
    """The partitions of a data set among clients, which all experiments share.

    Attributes:
        seeds: each split is drawn once per seed.
        splits: partition schemes by name.
    """

    seeds: Seeds
    splits: dict[Name, PartitionSettings] = Field(min_length=1)


class ComputeSettings(Settings):
    """Where and how runs are computed. These settings are not part of a run's identity.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``.
        jobs: number of cells that run at the same time; 0: one per CPU core, or one on a GPU or with an engine that
            has processes of its own.
        threads: torch threads of each job.
        engine: one of :data:`hetfl.training.registry.ENGINES`, or ``auto``: batched on a GPU, else sequential.
        ray: settings of the engine of this name.
        precision: of products, see :data:`hetfl.training.registry.Precision`; ``auto``: the fastest on the device.
        uplinks_needed: how many valid uplinks a round needs; a run whose clients are remote ends with fewer, and
            goes on from there when it is started again. None: those of all participants, or with ``missing: go-on``
            of a deployment one.
        slurm: parameters of the jobs that ``hetfl sweep --on slurm`` submits, e.g. ``{partition: gpu}``.
    """

    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")
    jobs: int = Field(default=0, ge=0, le=1024)
    threads: int = Field(default=1, ge=1, le=1024)
    engine: Annotated[str, one_of(choices)] = "auto"
    ray: RaySettings = RaySettings()
    precision: Literal["auto", Precision] = "auto"
    uplinks_needed: int | None = Field(default=None, ge=1)
    slurm: dict[str, str | int | float | bool] = {}

    @property
    def own_processes(self) -> bool:
        """Whether the engine has processes of its own, see :class:`hetfl.training.registry.EngineKind`."""
        return self.engine in ENGINES and ENGINES[self.engine].own_processes


class DataSettings(Settings):
    """The settings of each data set in use, by name, and the mirror.

    Attributes:
        mirror: a folder with local copies, which is searched before anything is downloaded; the environment variable
            ``HETFL_MIRROR`` overrides it.
    """

    model_config = ConfigDict(extra="allow")
    mirror: str | None = None

    @property
    def sets(self) -> dict[str, Any]:
        """Settings of each data set, not validated."""
        return self.model_extra or {}

    @property
    def own(self) -> dict[str, OwnSettings]:
        """The data sets of one's own: those that are not in the catalogue.

        Raises:
            HetflError: one is neither in the catalogue nor well defined.
        """
        return {name: _own(name, raw) for name, raw in self.sets.items() if name not in catalogue.CATALOGUE}

    def folder(self) -> Path | None:
        """The mirror's folder, from ``HETFL_MIRROR`` or the setting, relative to the project or the one around it.

        Raises:
            HetflError: the folder does not exist.
        """
        if not (name := os.environ.get("HETFL_MIRROR") or self.mirror):
            return None
        for start in (Path(), around(Path()) or Path()):
            if (start / name).is_dir():
                return start / name
        raise HetflError(f"data.mirror (or HETFL_MIRROR): {name!r} is not a folder; name one or leave it empty")


class Params(Settings):
    """All of params.yaml, and the papers' experiments, by name."""

    compute: ComputeSettings = ComputeSettings()
    data: DataSettings
    partitions: dict[Name, PartitionsSettings]
    models: dict[str, Annotated[list[str], Field(min_length=1)]]
    pretrain: dict[str, PretrainSettings] = {}
    protocols: dict[Name, ProtocolSettings] = {}
    experiments: dict[str, Experiment] = {}
    _around: frozenset[str] = PrivateAttr(frozenset())

    def file(self, key: str) -> str:
        """The file, seen from the project, in which a key such as ``protocols.fedtgp`` stands."""
        return "../params.yaml" if key in self._around else "params.yaml"


class Cell(Settings):
    """One run with all settings resolved: data set, partition, models, method, settings and seed."""

    experiment: str
    row: str
    title: str
    paper: str
    split: str
    seed: int
    dataset: str
    models: list[str]
    partition: dict[str, Any]
    input: InputSettings
    public: PublicSettings | None
    method: str
    settings: dict[str, Any]
    features: int = 0

    @property
    def path(self) -> Path:
        """See :func:`hetfl.schema.cell_path`."""
        return cell_path(self.experiment, self.method, self.row, self.split, self.seed)

    def dealt(self, clients: int) -> list[str]:
        """The architecture of each of some clients, to whom ``models`` are dealt in turn."""
        return [self.models[client % len(self.models)] for client in range(clients)]


class Workspace:
    """The folders of a checkout.

    Args:
        root: the repository's root.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.params = root / "params.yaml"
        self.data, self.weights, self.partitions = root / "data", root / "weights", root / "partitions"
        self.runs, self.evaluations, self.results = root / "runs", root / "evaluations", root / "results"
        self.tables, self.figures, self.report = root / "tables", root / "figures", root / "report"
        self.scratch = root / ".hetfl"
        self.verified = self.scratch / "verified"

    def dataset(self, name: str) -> Path:
        """The folder of a prepared data set."""
        return self.data / name

    def partition(self, dataset: str, split: str, seed: int) -> Path:
        """The folder of one partition."""
        return self.partitions / dataset / f"{split}-s{seed}"

    def table(self, name: str) -> Path:
        """The folder of a table in every format, with the curves of its runs."""
        return self.tables / name

    def figure(self, name: str) -> Path:
        """The path of a figure's files, without suffix."""
        return self.figures / name / name

    def compact(self, path: Path) -> Path:
        """The file of a cell's compact record."""
        return self.results / f"{path.as_posix()}.json"

    def resume_points(self, path: Path) -> Path:
        """The folder of the resume points of a cell's path, one folder per fingerprint."""
        return self.scratch / "resume" / ".".join(path.parts)

    def lock(self, path: Path) -> Path:
        """The lock file for changes of the record at a cell's path."""
        return self.scratch / "locks" / f"{'.'.join(path.parts)}.lock"


def around(project: Path) -> Path | None:
    """The project that this one is a folder of, such as the repository's root for ``papers/``, or None."""
    outer = project.absolute().parent
    return outer if (outer / "params.yaml").exists() else None


def parts_of(root: Path, name: str) -> list[Path]:
    """The files of this name in the folders of a project. A folder with a DVC pipeline is another project."""
    return sorted(path for path in root.glob(f"*/{name}") if not (path.parent / ".dvc").exists())


def inner_projects(root: Path) -> list[Path]:
    """The folders of a project with a DVC pipeline of their own, such as ``papers/``."""
    return sorted(path.parent for path in root.glob("*/params.yaml") if (path.parent / ".dvc").exists())


def load_params(path: Path) -> Params:
    """Read and check params.yaml as a whole, and the experiments in ``<folder>/params.yaml`` beside it.

    Raises:
        HetflError: one line about the first mistake.
    """
    where = path.name
    raw = read_yaml(path)
    written = {where: raw.pop("experiments", {})}
    around = _add_shared(raw, path)
    params = validate(Params, raw, where, source=(path,))
    params._around = around
    for name, settings in params.data.sets.items():
        if name in catalogue.CATALOGUE:
            validate(catalogue.entry(name).settings, settings, f"{where}: data.{name}")
    inputs = {name: normalised(own) for name, own in params.data.own.items()}
    for dataset in params.partitions:
        _known("data set", dataset, params.data.sets, f"{where}: partitions")
    for name, pretrain in params.pretrain.items():
        _known("data set", pretrain.dataset, params.data.sets, f"{where}: pretrain.{name}.dataset")
    for name, protocol in params.protocols.items():
        _check_protocol(protocol, f"{params.file(f'protocols.{name}')}: protocols.{name}")
    for other in parts_of(path.parent, path.name):
        content, file = read_yaml(other), str(other.relative_to(path.parent))
        for key in content:
            if key != "experiments":
                raise unknown("setting", key, ["experiments"], file)
        written[file] = content.get("experiments", {})
    found: dict[str, Experiment] = {}
    for file, blocks in written.items():
        for name, experiment in read_experiments(blocks, path.parent, file, params.protocols, inputs).items():
            if name.startswith(ADHOC):
                raise HetflError(f"{file}: experiments: {name!r}: runs of hetfl run have such names; use another")
            if name in found:
                raise HetflError(f"{file}: experiments: {name!r} is in {found[name].file} already; use another name")
            found[name] = experiment
    params = params.model_copy(update={"experiments": found})
    for name in params.experiments:
        cells(params, name)
    return params


def _add_shared(raw: dict[str, Any], path: Path) -> frozenset[str]:
    """Add what a project shares with the one that it is a folder of; returns the names of protocols and models added.

    These are ``compute`` and ``data.mirror``, where the project does not set them, all protocols, and all models.
    """
    if (outer := around(path.parent)) is None:
        return frozenset()
    shared, added = read_yaml(outer / path.name), set()
    raw.setdefault("compute", shared.get("compute", {}))
    raw["data"] = {"mirror": (shared.get("data") or {}).get("mirror")} | (raw.get("data") or {})
    for key in ("protocols", "models"):
        own, others = raw.get(key) or {}, shared.get(key) or {}
        if twice := own.keys() & others.keys():
            raise HetflError(f"{path.name}: {key}.{min(twice)}: is in {outer / path.name} already; use another name")
        added |= {f"{key}.{name}" for name in others}
        raw[key] = {**others, **own}
    return frozenset(added)


def normalised(own: OwnSettings) -> InputSettings:
    """How experiments normalise the images of a data set of one's own, unless they say otherwise."""
    return InputSettings.model_validate({"mean": own.mean, "std": own.std})


def _own(name: str, raw: Any) -> OwnSettings:
    where = "params.yaml: data"
    if not isinstance(raw, dict) or "path" not in raw:
        error = unknown("data set", name, catalogue.CATALOGUE, where)
        raise HetflError(f"{error}; one of your own needs the key path, see hetfl new dataset --help")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise HetflError(f"{where}: {name!r} is not a name; use lower-case letters, digits and dashes")
    return validate(OwnSettings, raw, f"{where}.{name}")


def _check_protocol(protocol: ProtocolSettings, where: str) -> None:
    check_shared(protocol.settings, f"{where}.settings")
    for name, settings in protocol.methods.items():
        cls = method_class(name, f"{where}.methods")
        known = {key: value for key, value in protocol.settings.items() if key in cls.Settings.model_fields}
        validate(cls.Settings, known, f"{where}.settings")
        validate(cls.Settings, known | settings, f"{where}.methods.{name}")


def check_models(params: Params, group: str) -> None:
    """Check that the models of a group exist; not part of :func:`load_params`, since importing timm takes seconds.

    Raises:
        HetflError: a name is unknown.
    """
    for name in params.models[group]:
        check_name(name, f"params.yaml: models.{group}")


def check_fit(params: Params, chosen: Sequence[Cell]) -> None:
    """Check that every cell's models exist and support its method's options; imports timm, like :func:`check_models`.

    Raises:
        HetflError: a model is unknown, does not support the prompts, the stem or the image size, or has another head
            than the linear one that its method needs; features differ in size where they must not; or clients that
            take no part in training would be tested with running statistics that nobody has collected.
    """
    rows = [(params.experiments[cell.experiment], cell.row) for cell in chosen]
    for group in dict.fromkeys(experiment.rows[row].models or experiment.models for experiment, row in rows):
        check_models(params, group)
    seen = set()
    for cell in chosen:
        experiment = params.experiments[cell.experiment]
        at = _at(experiment, f"rows.{experiment.rows[cell.row].written}")
        method = create(cell.method, cell.settings, 2)
        options = method.model_options()
        if method.linear_heads and (other := [name for name in cell.models if head_of(name)]):
            raise HetflError(f"{at}: {cell.method} needs models with a linear head, {other[0]} has another one")
        if options.auxiliary is not None:
            check_name(options.auxiliary, f"{at}.settings.auxiliary")
        for name in dict.fromkeys(cell.models):
            case = (name, options.model_dump_json(), cell.input.model_dump_json(), method.queries())
            if case not in seen:
                check_options(name, options, at, cell.input)
                _check_transformer(name, method, options, cell.input, at)
            seen.add(case)
        _check_together(cell, method, options, f"{at}.settings")


def _check_together(cell: Cell, method: Method, options: ModelOptions, at: str) -> None:
    """Check what the networks of a cell's clients must have in common."""
    names = [*dict.fromkeys(cell.models)]
    if method.equal_features and cell.settings.get("embedding") is None and len(names) > 1:
        sizes = {outline(name, 2, options, cell.input).width: name for name in names}
        if len(sizes) > 1:
            least, most = min(sizes), max(sizes)
            raise HetflError(
                f"{at}.embedding: {cell.method} needs features of one size, {sizes[least]} has {least} values and "
                f"{sizes[most]} {most}; set a common size"
            )
    if cell.settings["held_out"]:
        moving = [name for name in names if outline(name, 2, options, cell.input).names(["buffers"])]
        if moving:
            raise HetflError(
                f"{at}.held_out: {moving[0]} has running statistics, which each client collects by itself, so "
                "clients that take no part in training have none; set it to 0, or use models without"
            )


def _check_transformer(name: str, method: Method, options: ModelOptions, inputs: InputSettings, at: str) -> None:
    """Check what depends on a transformer's size: blocks, patches, and the features by which samples find groups.

    Raises:
        HetflError: there is no such block, images are not whole patches, or the features are too few.
    """
    query = method.queries()
    if not is_vit(name) or (options.prompts != "inserted" and query is None and inputs.size is None):
        return
    try:
        own = outline(name, 2, options, inputs)
    except HetflError as error:
        raise HetflError(f"{at}.settings.{error}") from error
    if own.spec.size % own.patch:
        multiple = f"{name} takes multiples of {own.patch}, its patches"
        raise HetflError(f"{at}: input.size is {own.spec.size}; {multiple}")
    if query is None:
        return
    if query.model is not None:
        check_name(query.model, f"{at}.settings.encoder")
    check_class_token(query.model or name, "it gives no features to sort samples by", at)
    by = own if query.model is None else outline(query.model, 2, ModelOptions(), InputSettings())
    if (query.block or 0) > by.blocks:
        raise HetflError(f"{at}.settings.query_block: there is no block {query.block}; {by.name} has {by.blocks}")
    if query.least > by.width:
        keys = f"{query.least} orthogonal keys need as many features, {by.name} has {by.width}"
        raise HetflError(f"{at}.settings.groups: {keys}; use fewer groups")
    if options.keys is not None and by.width != own.width:
        widths = f"{by.name} has {by.width} features, {name} has {own.width}"
        raise HetflError(f"{at}.settings.encoder: learned keys are as wide as the model; {widths}")


def cells(params: Params, experiment: str) -> list[Cell]:
    """Expand an experiment into its cells.

    Raises:
        HetflError: a name is unknown, a setting is out of range, or a method does not support the model group.
    """
    _known("experiment", experiment, params.experiments, "params.yaml: experiments")
    settings = params.experiments[experiment]
    key = _at(settings)
    _known("data set", settings.dataset, params.data.sets, f"{key}.dataset")
    _known("model group", settings.models, params.models, f"{key}.models")
    if settings.public is not None:
        _known("data set", settings.public.dataset, params.data.sets, f"{key}.public.dataset")
        published = catalogue.CATALOGUE.get(settings.public.dataset)
        if published and published.sizes:  # other data sets have theirs when they are prepared
            _known("subset", settings.public.subset, published.sizes, f"{key}.public.subset")
    if settings.dataset not in params.partitions:
        raise HetflError(f"{key}.dataset: {settings.dataset!r} has no entry in partitions; add one")
    shared = params.partitions[settings.dataset]
    for split in settings.splits:
        _known("split", split, shared.splits, f"{key}.splits")
    for seed in settings.seeds:
        if seed not in shared.seeds:
            at = f"partitions.{settings.dataset}.seeds"
            raise HetflError(f"{key}.seeds: {seed} is not among {at} {shared.seeds}; add it there")
    check_shared(settings.defaults, f"{key}.defaults")
    resolved = {}
    for row, entry in settings.rows.items():
        at = _at(settings, f"rows.{entry.written}")
        if entry.models is not None:
            _known("model group", entry.models, params.models, f"{at}.models")
        for split in entry.splits or ():
            _known("split", split, shared.splits, f"{at}.splits")
        if entry.seeds and (extra := set(entry.seeds) - set(settings.seeds)):
            raise HetflError(f"{at}.seeds: {min(extra)} is not among the experiment's seeds {settings.seeds}")
        resolved[row] = _resolve(entry, settings, params)
        for split in entry.splits or settings.splits:
            held_out, there = resolved[row]["held_out"], shared.splits[split].clients
            if held_out >= there:
                raise HetflError(f"{at}: held_out is {held_out}, split {split!r} has {there} clients; hold out fewer")
    return [
        Cell(
            experiment=experiment,
            row=row,
            title=entry.title,
            paper=settings.paper,
            split=split,
            seed=seed,
            dataset=settings.dataset,
            models=params.models[entry.models or settings.models],
            partition=shared.splits[split].model_dump(),
            input=entry.input or settings.input,
            public=settings.public if METHODS[entry.method].public else None,
            method=entry.method,
            settings=resolved[row],
            features=settings.features,
        )
        for row, entry in settings.rows.items()
        for split in entry.splits or settings.splits
        for seed in entry.seeds or settings.seeds
    ]


def all_cells(params: Params) -> Iterator[Cell]:
    """The cells of all experiments."""
    for name in params.experiments:
        yield from cells(params, name)


Wanted = str | int | Sequence[str] | Sequence[int] | None
"""One value of a cell's attribute or some of them; None or an empty sequence: all."""


def pick(all_cells: list[Cell], **wanted: Wanted) -> list[Cell]:
    """The cells that match what is given, by attribute of a cell.

    Raises:
        HetflError: none has one of the values.
    """
    chosen = all_cells
    for key, given in wanted.items():
        values = [given] if isinstance(given, str | int) else list(given or ())
        known = list(dict.fromkeys(getattr(cell, key) for cell in chosen))
        for value in values:
            if value not in known:
                raise unknown(key, str(value), map(str, known), f"--{key}")
        chosen = [cell for cell in chosen if not values or getattr(cell, key) in values]
    return chosen


def shared_settings(params: Params, experiment: str, method: str) -> dict[str, Any]:
    """The settings of a row without settings of its own that differ from its method's defaults."""
    settings = params.experiments[experiment]
    row = Row.plain(method)
    return {name: value for _, layer in layers(settings, row, params.protocols) for name, value in layer.items()}


def origins(params: Params, cell: Cell) -> dict[str, tuple[Any, str]]:
    """A cell's settings, each with the location in the file that sets it, or ``default`` of its method."""
    experiment = params.experiments[cell.experiment]
    found = dict.fromkeys(cell.settings, "default")
    for place, settings in layers(experiment, experiment.rows[cell.row], params.protocols):
        found |= dict.fromkeys(settings, f"{_file_of(place, experiment, params)}: {place}")
    return {name: (value, found[name]) for name, value in cell.settings.items()}


def _file_of(place: str, experiment: Experiment, params: Params) -> str:
    kind, name, *_ = place.split(".")
    return experiment.file if kind == "experiments" else params.file(f"{kind}.{name}")


def _at(experiment: Experiment, place: str = "") -> str:
    """A location within an experiment's block, for messages."""
    return f"{experiment.file}: experiments.{experiment.written}{f'.{place}' if place else ''}"


def _resolve(row: Row, experiment: Experiment, params: Params) -> dict[str, Any]:
    """All settings of a row: its own, those it shares with other rows, and its method's defaults."""
    at = _at(experiment, f"rows.{row.written}")
    cls = method_class(row.method, f"{at}.method")
    group = row.models or experiment.models
    kinds = len(set(params.models[group]))
    if not cls.heterogeneous and kinds > 1:
        raise HetflError(
            f"{at}.method: {row.method} needs one architecture for all clients, models {group!r} has {kinds}; "
            "use a group of equal models"
        )
    if cls.public and experiment.public is None:
        raise HetflError(f"{at}.method: {row.method} needs a public data set; name one in {_at(experiment)}.public")
    for name in row.swept:
        if name not in cls.Settings.model_fields and any(_has(other, name) for other in experiment.rows.values()):
            raise HetflError(
                f"{_at(experiment, 'sweep')}: {row.method} has no setting {name!r}; "
                "remove it there, and give each row whose method has it the key sweep"
            )
    given = [*layers(experiment, row, params.protocols)]
    merged: dict[str, Any] = {}
    for place, layer in given:
        if layer:
            merged |= layer
            settings = validate(cls.Settings, merged, f"{_file_of(place, experiment, params)}: {place}")
    settings = validate(cls.Settings, merged, at)
    kept = create(row.method, settings.model_dump(), 2).keeps()
    if settings.held_out and (cls.evaluates != "global" or cls.personal or kept):
        raise HetflError(
            f"{at}: {row.method} has no model for clients that take no part in training; set held_out to 0"
        )
    return settings.model_dump()


def _has(row: Row, setting: str) -> bool:
    return setting in METHODS[row.method].Settings.model_fields


def weights_read(cell: Cell) -> list[str]:
    """The models whose stored weights a run reads: its backbones, and the encoder that assigns samples to groups."""
    method = create(cell.method, cell.settings, 2)
    query = method.queries()
    by = [query.model] if query and query.model else []
    return [*by, *(dict.fromkeys(cell.models) if method.model_options().weights == "pretrained" else ())]


def _known(kind: str, name: str, known: Mapping[str, Any], where: str) -> None:
    if name not in known:
        raise unknown(kind, name, known, where)
