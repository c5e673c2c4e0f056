"""What the catalogue knows of a data set, and what it takes to prepare one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetfl.config import Settings
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.store import Subset


class NoSettings(Settings):
    """Settings of a data set whose images and subsets are fixed."""


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue.

    Attributes:
        name: the name used in params.yaml.
        title: its name in print.
        origin: who made it and where it is published.
        licence: its licence.
        citation: how to cite it.
        class_names: one name per label value, in the order of its authors.
        prepare: turns settings and sources into subsets by name.
        settings: the class of its settings.
        files: what its authors publish, with checksums; empty where it is bundled or made of other data sets.
        sizes: samples of each subset as published; empty where the settings decide.
        attributes: per attribute of its samples, the names of its values.
    """

    name: str
    title: str
    origin: str
    licence: str
    citation: str
    class_names: tuple[str, ...]
    prepare: Callable[[Any, Sources], Mapping[str, Subset]]
    settings: type[Settings] = NoSettings
    files: tuple[RemoteFile, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
