"""An entry of the catalogue: what is known about a data set, and how it is prepared."""

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
        prepare: from its settings and the sources of files to its subsets by name.
        settings: the class of its settings.
        files: the files that its authors publish, with checksums; empty if it is bundled with a library or made from
            other data sets.
        sizes: published number of samples of each subset; empty if the settings decide it.
        attributes: per attribute of its samples, the names of the attribute's values.
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
