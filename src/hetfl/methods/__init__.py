"""The federated methods: one file each; importing this package registers them all."""

from importlib import import_module
from pkgutil import iter_modules

from hetfl.methods.base import METHODS, Method, MethodSettings, create, method_class

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Method", "MethodSettings", "create", "method_class"]
