"""Every method by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hetfl.config import validate
from hetfl.errors import HetflError, unknown
from hetfl.methods.contract import Method, MethodSettings
from hetfl.methods.mistakes import MistakeError, located

METHODS: dict[str, type[Method]] = {}
"""Every method by name; filled by :func:`register_method`."""

M = TypeVar("M", bound=type[Method])


def register_method(name: str) -> Callable[[M], M]:
    """Class decorator: register a method under ``name``.

    Raises:
        HetflError: a method of another file has this name, or the class does not declare its ``numerics``; its
            settings are none of a method, or one has no default or one that cannot be written down.
    """

    def add(cls: M) -> M:
        if name in METHODS and METHODS[name].__module__ != cls.__module__:
            files = [f"{other.__module__.replace('.', '/')}.py" for other in (cls, METHODS[name])]
            raise HetflError(f"src/{files[0]}: register_method({name!r}): src/{files[1]} has this name; use another")
        place = f"src/{cls.__module__.replace('.', '/')}.py: {cls.__name__}"
        if "numerics" not in vars(cls):
            raise HetflError(f"{place}: has no version of its formulas; write numerics = 1 in the class")
        if not issubclass(cls.Settings, MethodSettings):
            raise HetflError(f"{place}.Settings: is not derived from the settings of the class's parent")
        # A protocol's settings are read by themselves.
        if needed := [name for name, known in cls.Settings.model_fields.items() if known.is_required()]:
            raise HetflError(f"{place}.Settings.{needed[0]}: has no default; give it one")
        for setting, default in cls.Settings().model_dump().items():
            try:
                json.dumps(default)
            except TypeError:
                kind = type(default).__name__
                raise HetflError(
                    f"{place}.Settings.{setting}: is a {kind}, which no YAML has; use text or a tuple"
                ) from None
        METHODS[name] = cls
        return cls

    return add


def method_class(name: str, where: str = "") -> type[Method]:
    """Look a method up.

    Raises:
        HetflError: there is none of that name.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS, where)
    return METHODS[name]


def create(
    name: str,
    settings: Mapping[str, Any] | MethodSettings,
    num_classes: int,
    public_classes: int = 0,
    where: str = "",
    seed: int = 0,
) -> Method:
    """Make a method from its name and raw or resolved settings.

    Args:
        name: a registered method.
        settings: what differs from its defaults, or all of it.
        num_classes: C.
        public_classes: classes of the public data set, for methods that have one.
        where: names the settings' place in messages.
        seed: of the run.

    Raises:
        HetflError: unknown name, or a setting is unknown or out of range.
    """
    cls = method_class(name, where)
    if not isinstance(settings, MethodSettings):
        settings = validate(cls.Settings, dict(settings), where or f"{name}: settings")
    return cls(settings, num_classes, public_classes, seed)


def mistake(error: BaseException) -> MistakeError | None:
    """An error that was raised in a method, in one line; see :func:`hetfl.methods.mistakes.located`."""
    return located(error, {cls.__module__ for cls in METHODS.values()})
