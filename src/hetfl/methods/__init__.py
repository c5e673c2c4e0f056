"""The federated methods: one file each; importing this package registers them all.

Raises:
    HetflError: a file cannot be imported; the error names file and line.
"""

from importlib import import_module
from pkgutil import iter_modules

from hetfl.methods.base import METHODS, Method, MethodSettings, create, method_class
from hetfl.methods.mistakes import located

for _module in iter_modules(__path__):
    _name = f"{__name__}.{_module.name}"
    try:
        import_module(_name)
    except Exception as _error:
        if (_found := located(_error, [_name])) is None:
            raise
        raise _found from _error

__all__ = ["METHODS", "Method", "MethodSettings", "create", "method_class"]
