"""The data sets, one file for each or for each family.

A file defines ``ENTRY`` or ``ENTRIES``; importing this package collects them.
"""

from importlib import import_module
from pkgutil import iter_modules

from hetfl.data.entry import Entry

CATALOGUE: dict[str, Entry] = {}
"""Every data set by name."""

MODULES: dict[str, str] = {}
"""The module of this package that defines each data set."""

for _module in iter_modules(__path__):
    _found = import_module(f"{__name__}.{_module.name}")
    for _entry in getattr(_found, "ENTRIES", None) or (_found.ENTRY,):
        CATALOGUE[_entry.name], MODULES[_entry.name] = _entry, _module.name
