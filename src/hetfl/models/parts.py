"""Import single modules of timm and torchvision without the rest of these libraries.

Their private names are here as well: which file holds what, and one method of timm's. Tested with timm 1.0.26 and
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

    An ordinary import runs the ``__init__`` of every package above the module. These import all models of timm, the
    operations of torchvision and the compiler of torch, which takes seconds at the start of every process. Here the
    ``__init__`` of a package runs only when an attribute of the package is first missing. So the same code runs in
    the same modules, but later or never.
    """
    for package in PACKAGES:
        if package not in sys.modules:
            _enter(package)
    return import_module(name)


def timm_registry() -> Any:
    """timm's registry of the models of the two modules that are used here: it lists them and knows their weights."""
    for module in ("vision_transformer", "resnet"):
        part(f"timm.models.{module}")
    return part("timm.models._registry")


def timm_model(name: str, pretrained: bool = False, **arguments: Any) -> Any:
    """A model of timm's registry without a head, by timm's name; ``pretrained``: with its published weights."""
    timm_registry()
    return part("timm.models._factory").create_model(name, pretrained, num_classes=0, **arguments)


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
        # The only attribute of the package that timm's own modules use.
        package.__dict__["__version__"] = version(name)
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)
