"""Single files of timm and torchvision, without everything else that these libraries would import first.

Which file holds what is private to them, and so is one method of timm's that is used. Tested with timm 1.0.26 and
1.0.31, torchvision 0.26 and 0.29; ``tests/test_private_names.py`` and ``tests/models/test_parts.py`` say what is gone
where other versions lack it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from torch import Tensor

PACKAGES = ("timm", "timm.layers", "timm.models", "torchvision", "torchvision.models", "torchvision.ops")


def part(name: str) -> Any:
    """Import a module of timm or torchvision by its full name.

    A plain import runs the ``__init__`` of every package above the module, and with it all models of timm, the
    operations of torchvision and the compiler of torch: seconds before a process can start. Here a package can be
    entered at once, and its ``__init__`` runs when something is looked up in it that is not there yet. So the same
    code runs in the same modules as ever, only later or never.
    """
    for package in PACKAGES:
        if package not in sys.modules:
            _enter(package)
    return import_module(name)


def embed_positions(body: Any, patches: Tensor) -> Tensor:
    """A timm transformer's class token and ``patches`` [B, patches, d] with their positions, [B, 1 + patches, d]."""
    tokens: Tensor = body._pos_embed(patches)
    return tokens


class _Deferred(ModuleType):
    """A package whose ``__init__`` has not run yet."""

    def __getattr__(self, name: str) -> Any:
        object.__setattr__(self, "__class__", ModuleType)
        assert self.__spec__ and self.__spec__.loader
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _enter(name: str) -> None:
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = module_from_spec(spec)
    object.__setattr__(package, "__class__", _Deferred)
    if name == "timm":
        # The one thing that its own files look up in it.
        package.__dict__["__version__"] = version(name)
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)
