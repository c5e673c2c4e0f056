"""Read settings from YAML into validated, frozen objects. Every error is one line with key, value and remedy."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hetfl.errors import HetflError, unknown


class Settings(BaseModel):
    """Base class of all settings. Unknown keys are errors, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=False)


S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")


def _different(values: list[T]) -> list[T]:
    if again := [value for place, value in enumerate(values) if value in values[:place]]:
        raise ValueError(f"names {again[0]!r} twice; remove one")
    return values


Different = Annotated[list[T], Field(min_length=1), AfterValidator(_different)]
"""A list of at least one value, without duplicates."""

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """A YAML loader that reports a key given twice as an error; PyYAML's own loaders silently keep the last value.

    A key may still override one that ``<<`` merges. The base class is PyYAML's C loader where there is one, since it
    is ten times faster.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._checked: set[Any] = set()

    def flatten_mapping(self, node: Any) -> None:
        # PyYAML calls this again for each merge of a mapping. Only the first call sees the keys as they are written.
        if node not in self._checked:
            self._checked.add(node)
            self._check(node)
        super().flatten_mapping(node)

    def _check(self, node: Any) -> None:
        lines: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the base class reports it
            if key in lines:
                problem = f"key {key!r} is given twice, first in line {lines[key]}; remove one"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            lines[key] = key_node.start_mark.line + 1


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        HetflError: the file is missing, is not YAML, gives a key twice, or is not a mapping.
    """
    try:
        content = yaml.load(path.read_text(), Loader=_Loader)
    except FileNotFoundError as error:
        raise HetflError(f"{path}: does not exist; run from the repository's root") from error
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise HetflError(f"{path}: is not valid YAML{line}; {getattr(error, 'problem', error)}") from error
    if not isinstance(content, dict):
        raise HetflError(f"{path}: holds {type(content).__name__}, a mapping of settings is needed")
    return content


Source = tuple[Path, *tuple[str, ...]]
"""A YAML file, and the keys that lead to a location in it."""


def validate(kind: type[S], raw: Any, where: str, source: Source | None = None, context: Any = None) -> S:
    """Turn raw values into settings.

    Args:
        kind: the settings class.
        raw: what the YAML file held.
        where: the location to name in an error, e.g. ``"params.yaml: experiments.x"``.
        source: the YAML file and the keys that lead to the values; if given, an error also names the line.
        context: what the class's own validators look names up in.

    Raises:
        HetflError: a key is unknown, missing or out of range; it names the first mistake and counts the others.
    """
    try:
        return kind.model_validate(raw, context=context)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        line = f" (line {_line(source[0], (*source[1:], *problems[0]['loc']))})" if source else ""
        raise HetflError(_one_line(kind, raw, problems[0], where, len(problems) - 1) + line) from error


def _line(path: Path, location: tuple[str | int, ...]) -> int:
    """Line number of a location in a YAML file; its parent's if the location is missing or merged from elsewhere."""
    node: Any = yaml.compose(path.read_text(), Loader=_BASE)
    line: int = node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _one_line(kind: type[BaseModel], raw: Any, problem: Any, where: str, others: int) -> str:
    path = _keys(raw, problem["loc"])
    more = f" (and {others} more)" if others else ""
    context = problem.get("ctx", {})
    if problem["type"] == "extra_forbidden":
        known = _fields(kind, problem["loc"][:-1])
        return f"{unknown('setting', path[-1], known, _join(where, path[:-1]))}{more}"
    if problem["type"] == "missing":
        return f"{_join(where, path)}: is missing{more}"
    if problem["type"] == "union_tag_not_found":
        return f"{_join(where, path)}: needs {context['discriminator']}, which says what kind it is{more}"
    if problem["type"] == "union_tag_invalid":
        known = context["expected_tags"].replace("'", "").split(", ")
        name = context["discriminator"].strip("'")
        return f"{unknown(name, str(context['tag']), known, _join(where, [*path, name]))}{more}"
    value = problem["input"]
    message = re.sub(r"^(Value error, |Input |List |String |Dictionary )", "", problem["msg"])
    shown = repr(value) if not isinstance(value, dict | list) or len(repr(value)) < 60 else type(value).__name__
    return f"{_join(where, path)}: {shown} {message}{more}"


def _join(where: str, path: list[str]) -> str:
    if not path:
        return where
    return f"{where}.{'.'.join(path)}" if ": " in where else f"{where}: {'.'.join(path)}"


def _keys(raw: Any, location: tuple[str | int, ...]) -> list[str]:
    # The tag of a tagged union is part of pydantic's location, but it is not a key of the file.
    keys = []
    for position, part in enumerate(location):
        inside = part in (range(len(raw)) if isinstance(raw, list) else raw if isinstance(raw, dict) else ())
        if inside or position == len(location) - 1:
            keys.append(str(part))
        raw = raw[part] if inside else raw
    return keys


def _fields(kind: Any, location: tuple[str | int, ...]) -> list[str]:
    # The settings allowed at a location of the file. Keys of dictionaries and positions in lists keep the type.
    for part in location:
        models = list(_models(kind))
        tagged = [model for model in models if any(f.default == part for f in model.model_fields.values())]
        named = [model.model_fields[str(part)].annotation for model in models if part in model.model_fields]
        kind = named[0] if named else tagged[0] if tagged else kind
    return [name for model in _models(kind) for name in model.model_fields]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
