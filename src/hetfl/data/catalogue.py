"""The catalogue: every data set that hetfl can prepare, by name."""

from __future__ import annotations

from pathlib import Path

from hetfl.config import Settings
from hetfl.data.entry import Entry
from hetfl.data.fetch import Sources
from hetfl.data.sets import CATALOGUE
from hetfl.data.store import write_dataset
from hetfl.errors import HetflError, unknown

__all__ = ["CATALOGUE", "entry", "prepare_dataset"]


def entry(name: str, where: str = "") -> Entry:
    """The catalogue's entry for a data set.

    Args:
        name: the data set.
        where: the key that held the name, for the error message.

    Raises:
        HetflError: the catalogue has no such data set.
    """
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE, where)
    return CATALOGUE[name]


def prepare_dataset(name: str, settings: Settings, folder: Path, sources: Sources) -> None:
    """Prepare a data set of the catalogue and write it.

    Args:
        name: the data set.
        settings: an instance of its entry's settings class.
        folder: the folder to write; replaced as a whole.
        sources: where its files come from.

    Raises:
        HetflError: the data set is unknown, its files cannot be obtained, or its content differs from its entry.
    """
    known = entry(name)
    subsets = known.prepare(settings, sources)
    for subset, size in known.sizes.items():
        if len(subsets[subset]) != size:
            raise HetflError(f"data set {name}: {subset} has {len(subsets[subset])} images, {size} are published")
    write_dataset(
        folder,
        name=known.name,
        title=known.title,
        origin=known.origin,
        licence=known.licence,
        source=sources.used,
        settings=settings.model_dump(mode="json"),
        class_names=known.class_names,
        subsets=subsets,
        attributes=known.attributes,
    )
