"""Read settings from YAML into validated, frozen objects. Every error is one line with key, value and remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hetfl.errors import HetflError, either, unknown


class Settings(BaseModel):
    """Base class of all settings. Unknown keys are errors, true is not the number 1, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=False)

    @model_validator(mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, raw: Any) -> Any:
        # pydantic would take true for 1.
        if not isinstance(raw, dict):
            return raw
        wrong = {
            name: [_Bool(one) if isinstance(one, bool) else one for one in value]
            if isinstance(value, list | tuple)
            else _Bool(value)
            for name, value in raw.items()
            if _has_bool(value) and name in cls.model_fields and not _takes_bool(cls, name)
        }
        return {**raw, **wrong} if wrong else raw


class _Bool:
    """Stands for true or false where a setting is neither, so that pydantic refuses it."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "true" if self.value else "false"


def _has_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(isinstance(v, bool) for v in value))


@cache
def _takes_bool(kind: type[BaseModel], name: str) -> bool:
    """Whether a setting can be true or false, or a list of such values."""
    annotation = kind.model_fields[name].annotation
    return not {bool, Any}.isdisjoint(_leaves(annotation))


def _leaves(annotation: Any) -> Iterator[Any]:
    arguments = get_args(annotation)
    for argument in arguments:
        yield from _leaves(argument)
    if not arguments:
        yield annotation


S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")


def _different(values: Sequence[T]) -> Sequence[T]:
    seen = set[T]()
    for value in values:
        if value in seen:
            raise ValueError(f"names {value!r} twice; remove one")
        seen.add(value)
    return values


Different = Annotated[list[T], Field(min_length=1), AfterValidator(_different)]
"""A list of at least one value, without duplicates."""

Blocks = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_different)]
"""Numbers of blocks of a model, from 1, without duplicates."""


def one_of(choices: Callable[[], Iterable[str]]) -> BeforeValidator:
    """Allows the names that a registry has when a setting is read, with the error of a ``Literal`` of them."""

    def check(value: Any) -> Any:
        if value not in (known := [*choices()]):
            raise ValueError(f"should be {either(map(repr, known))}")
        return value

    return BeforeValidator(check)


COMBINATIONS = 1000
"""The most experiments or rows that one block of settings may stand for."""

MOST_BYTES, DEEPEST, MOST_VALUES, MOST_DIGITS = 4_000_000, 50, 200_000, 18
"""Limits of a settings file: its size, levels of nesting, values once aliases are replaced, and digits of an integer.

Files far below them are read in a second; without them, a few lines of aliases stand for more than memory holds."""

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

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        # PyYAML lets the errors of Python's own conversions through, such as that of !!int "x" or month 13.
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            problem = f"{_short(node.value)} is not a value of the type {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_number(self, node: Any) -> Any:
        """An integer or a float in decimal notation; PyYAML reads 1:30 as 90, in the base 60."""
        text = str(node.value)
        problem = ""
        if ":" in text:
            problem = f"{_short(text)} would be read as a number to the base 60; put it in quotes, or write a number"
        elif node.tag.endswith(":int") and len(text.strip("+-")) > MOST_DIGITS:
            problem = f"{_short(text)} has more than {MOST_DIGITS} digits; use a smaller number"
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)

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


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        HetflError: the file is missing or beyond the limits, is not YAML in UTF-8, gives a key twice, or is not a
            mapping.
    """
    content = _loaded(_text(path), str(path), lines=True)
    if not isinstance(content, dict):
        raise HetflError(f"{path}: holds {type(content).__name__}, a mapping of settings is needed")
    return content


def read_pairs(pairs: Sequence[str], option: str, wrong: str) -> dict[str, Any]:
    """Read the ``key=value`` of an option such as ``--set lr=0.01``, each value in YAML as one in a file is read.

    Args:
        pairs: what the option was given.
        option: its name.
        wrong: what an error says of one that is not of this form.

    Raises:
        HetflError: one is not of this form, or its value is not YAML, or beyond the limits.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise HetflError(f"{option}: {pair!r} {wrong}")
        if key in found:
            raise HetflError(f"{option}: {key} is given twice; remove one")
        found[key] = _loaded(value, f"{option}: {key}", lines=False)
    return found


def _loaded(text: str, where: str, lines: bool) -> Any:
    """The content of YAML; ``lines``: errors name them."""

    def line(mark: Any) -> str:
        return f" (line {mark.line + 1})" if mark and lines else ""

    try:
        if found := _beyond_limits(text):
            raise HetflError(f"{where}: {found[0]}{line(found[1])}")
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        mark = getattr(error, "problem_mark", None)
        raise HetflError(f"{where}: is not valid YAML{line(mark)}; {problem}") from error


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise HetflError(f"{path}: does not exist; run from the repository's root") from error
    except OSError as error:
        raise HetflError(f"{path}: cannot be read ({error.strerror}); it must be a file of settings") from error
    if len(content) > MOST_BYTES:
        raise HetflError(f"{path}: has {len(content)} bytes; settings may have {MOST_BYTES}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise HetflError(f"{path}: is not text in UTF-8 (line {line}); save it as UTF-8") from error


def _beyond_limits(text: str) -> tuple[str, Any] | None:
    """What exceeds the limits of nesting and size, and where; None: nothing.

    It is asked before anything is built: PyYAML builds by recursion, and aliases without a limit.
    """
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_BASE):
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            total += sizes.get(str(event.anchor), 1)
            if event.anchor in (anchor for anchor, _ in opened):
                problem = f"*{event.anchor} contains itself; remove it"
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        if len(opened) > DEEPEST:
            problem = f"is nested more than {DEEPEST} levels deep; use fewer"
        elif total > MOST_VALUES:
            problem = f"stands for more than {MOST_VALUES} values, aliases included; use fewer"
        if problem:
            return problem, event.start_mark
    return None


def _short(value: Any) -> str:
    """A value for a message, cut if it is long."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:40]} ... {shown[-10:]}"


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
        places = {tuple(_keys(kind, raw, problem["loc"])) for problem in problems}
        raise HetflError(_one_line(kind, raw, problems[0], where, len(places) - 1) + line) from error


def _line(path: Path, location: tuple[str | int, ...]) -> int:
    """Line number of a location in a YAML file; its parent's if the location is missing or merged from elsewhere."""
    node: Any = yaml.compose(_text(path), Loader=_BASE)
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
    path = _keys(kind, raw, problem["loc"])
    more = f" (and {others} more)" if others else ""
    context = problem.get("ctx", {})
    if problem["type"] == "extra_forbidden":
        known = _fields(kind, problem["loc"][:-1])
        return f"{unknown('setting', path[-1], known, _join(where, path[:-1]))}{more}"
    if problem["type"] == "missing":
        path = [*_keys(kind, raw, problem["loc"][:-1]), str(problem["loc"][-1])]
        return f"{_join(where, path)}: is missing{more}"
    if problem["type"] == "union_tag_not_found":
        return f"{_join(where, path)}: needs {context['discriminator']}, which says what kind it is{more}"
    if problem["type"] == "union_tag_invalid":
        known = context["expected_tags"].replace("'", "").split(", ")
        name = context["discriminator"].strip("'")
        return f"{unknown(name, str(context['tag']), known, _join(where, [*path, name]))}{more}"
    value = problem["input"]
    message = re.sub(r"^(Value error, |Input |List |String |Dictionary )", "", problem["msg"])
    shown = type(value).__name__ if isinstance(value, dict | list) and len(repr(value)) >= 60 else _short(value)
    return f"{_join(where, path)}: {shown} {message}{more}"


def _join(where: str, path: list[str]) -> str:
    if not path:
        return where
    return f"{where}.{'.'.join(path)}" if ": " in where else f"{where}: {'.'.join(path)}"


def _keys(kind: type[BaseModel], raw: Any, location: tuple[str | int, ...]) -> list[str]:
    # The tag or kind of a union's member is part of pydantic's location, but it is not a key of the file. A setting
    # that the file lacks can be wrong by its default.
    keys = []
    for position, part in enumerate(location):
        inside = part in (range(len(raw)) if isinstance(raw, list) else raw if isinstance(raw, dict) else ())
        if inside or (position == len(location) - 1 and part in _fields(kind, location[:-1])):
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
