"""Mistakes in the file of a method, in one line that names the file, the line and the function.

What a function of the contract returns is checked wherever it is called, since a wrong result would else fail far
away from the method, in an engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, wraps
from pathlib import Path
from traceback import walk_tb
from types import CodeType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import ValidationError
from torch import Tensor

from hetfl.errors import HetflError, one_line
from hetfl.torch_private import changes

Function = Callable[..., Any]

DIMENSIONS = {"objective": (0, "a scalar"), "predict": (2, "scores [B, C]")}
"""Of the tensors that some functions return."""

BETWEEN = "aggregate", "after_turn", "downlink", "receive", "adopt", "register", "uplink", "remember"
"""Functions that make messages and states. What they are given stays in use, by other clients or by a resume point
that is being written, and may not be changed in place."""

ABOVE = "hetfl.training.", "hetfl.deploy."
"""Packages that call methods, and that methods call through the uplinks only."""


class MistakeError(HetflError):
    """A mistake in the file of a method."""


def located(error: BaseException, modules: Iterable[str]) -> MistakeError | None:
    """An error as the author of a method is told of it.

    Args:
        error: which was raised and caught.
        modules: the names of the methods' modules.

    Returns:
        The error with the last place in each of the modules that it went through; None if it went through none, or
        is a want of memory.
    """
    if isinstance(error, HetflError | torch.OutOfMemoryError) or not isinstance(error, Exception):
        return None
    if isinstance(error, SyntaxError) and error.filename:
        return MistakeError(f"{_shown(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}")
    modules, places = {*modules}, dict[str, str]()
    for frame, line in walk_tb(error.__traceback__):
        if (name := frame.f_globals.get("__name__", "")).startswith(ABOVE):
            places.clear()  # a method that asked for the next uplink had a client trained; the error is from there
        elif name in modules:
            places.pop(name, None)  # the order is that of the last places
            places[name] = f"{_shown(frame.f_code.co_filename)}:{line}, in {_function(frame.f_code)}"
    return MistakeError(f"{' > '.join(places.values())}: {_told(error)}") if places else None


def checked(function: Function, declared: Function) -> Function:
    """A function of a method whose arguments and results are those of the contract.

    Functions of :data:`BETWEEN` must leave the tensors in their arguments as they are.

    Args:
        function: of a method.
        declared: the contract's function of this name.

    Raises:
        MistakeError: it takes other arguments; called, it raises this if it returns something else or
            changes a tensor that it may not change.
    """
    code = function.__code__
    place = f"{_shown(code.co_filename)}:{code.co_firstlineno}: {_function(code)}"
    takes, wanted = ([*inspect.signature(each).parameters] for each in (function, declared))
    if len(takes) != len(wanted) and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        raise MistakeError(f"{place} takes ({', '.join(takes)}); it should take ({', '.join(wanted)})")
    dimensions, shape = DIMENSIONS.get(declared.__name__, (None, ""))
    watched = declared.__name__ in BETWEEN

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = _tensors_in(*args, *kwargs.values()) if watched else ()
        before = [(name, tensor, changes(tensor)) for name, tensor in given]
        result = function(*args, **kwargs)
        for name, tensor, version in before:
            if changes(tensor) != version:
                raise MistakeError(f"{place} changed {name!r} in place; it should make a new tensor")
        if not _fits(result, _hint(declared)):
            right = str(inspect.signature(declared).return_annotation)
            raise MistakeError(f"{place} returned {_brief(result, _hint(declared))}; it should return {right}")
        if dimensions is not None and result.dim() != dimensions:
            raise MistakeError(f"{place} returned {_brief(result)}; it should return {shape}")
        return result

    return call


def mistaken(method: object, found: str) -> MistakeError:
    """What an engine found wrong with the results of several functions of a method."""
    return MistakeError(f"{_shown(inspect.getfile(type(method)))}: {found}")


def _told(error: Exception) -> str:
    """An error in one line; of values that a class refuses, the first."""
    if not isinstance(error, ValidationError):
        return one_line(error)
    first = error.errors(include_url=False)[0]
    right = first["msg"].replace("Input should be", "it should be")
    return f"{error.title}.{'.'.join(map(str, first['loc']))} is {_brief(first['input'])}; {right}"


def _tensors_in(*values: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of mappings, and of the mappings that a dataclass such as a client's work has, by name."""
    for value in values:
        mappings = vars(value).values() if is_dataclass(value) else [value]
        for mapping in mappings:
            if isinstance(mapping, Mapping):
                yield from ((name, tensor) for name, tensor in mapping.items() if isinstance(tensor, Tensor))


@cache
def _hint(declared: Function) -> Any:
    return get_type_hints(declared)["return"]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type, and what a collection holds does."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind is Literal:
        return value in inner
    if kind in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if not isinstance(value, kind or hint):
        return False
    if kind is None or inner[-1] is ...:
        return True
    if isinstance(value, Mapping):
        return all(_fits(name, inner[0]) and _fits(each, inner[-1]) for name, each in value.items())
    return all(_fits(each, inner[-1]) for each in value)


def _brief(value: Any, hint: Any = Any) -> str:
    """A value in a few words; of a collection, a key or part that has not its type, if there is one."""
    if value is None:
        return "nothing"
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, list | tuple | dict) and value:
        inner = get_args(hint) or (Any, Any)
        parts = [*value.values()] if isinstance(value, dict) else [*value]
        for key in value if isinstance(value, dict) else ():
            if not _fits(key, inner[0]):
                return f"a dict with the key {_brief(key)}"
        inside = next((part for part in parts if not _fits(part, inner[-1])), parts[0])
        return f"a {type(value).__name__} of {_brief(inside)}"
    return repr(value) if isinstance(value, bool | int | float) else f"a {type(value).__name__}"


def _function(code: CodeType) -> str:
    """``FedAvg.aggregate``, also of a comprehension inside it."""
    return code.co_qualname.partition(".<locals>.<")[0]


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
