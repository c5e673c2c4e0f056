"""The notation of the figures' layouts, ``<paper>.yaml`` in this folder: YAML with variables and repetition.

``each: {name: values}`` repeats what it stands in for every value of a variable, or for every combination of several
variables, the last one fastest. An item of a list is repeated as a whole. In any other mapping, its keys with a ``$``
are repeated, and a key that is written out replaces one that repetition made.

``$name`` (or ``${name}``) in a string or key is the variable's value. If the values are a mapping ``value: title``,
``$Name`` is the title; if they are a mapping ``value: {other: ...}``, ``$other`` comes with the value. ::

    rows:
      each: {row: {fgpt: FGPT, pfedhn: pFedHN}}
      $Row: fgpt-five/$row/domains

A cell is ``experiment/row/split``. What several figures share stands under ``shared``, with YAML's own anchors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from string import Template
from typing import Any

from hetfl.errors import HetflError, unknown

EACH = "each"
Values = Mapping[str, str]


def expand(written: Any, values: Values | None = None) -> Any:
    """A layout with all repetitions written out and all variables replaced.

    Args:
        written: what the YAML file holds.
        values: of the variables so far, by name.

    Raises:
        HetflError: a variable has no value, or a ``$`` is followed by no name.
    """
    values = values or {}
    if isinstance(written, str):
        return _fill(written, values)
    if isinstance(written, list):
        return [expand(item, known) for entry in written for item, known in _repeated(entry, values)]
    if isinstance(written, dict):
        repeated = _repeated(written, values)
        inside, combinations = repeated[0][0], [known for _, known in repeated]
        return {
            _fill(str(key), known): expand(value, known)
            for key, value in inside.items()
            for known in (combinations if "$" in str(key) else [values])
        }
    return written


def _repeated(item: Any, values: Values) -> list[tuple[Any, Values]]:
    """An item without its ``each``, once for every combination of its variables, with the values of all variables."""
    if not isinstance(item, dict) or EACH not in item:
        return [(item, values)]
    inside = {key: value for key, value in item.items() if key != EACH}
    choices = [list(_choices(name, some)) for name, some in item[EACH].items()]
    return [(inside, {**values, **{k: v for one in chosen for k, v in one.items()}}) for chosen in product(*choices)]


def _choices(name: str, some: Any) -> Iterator[dict[str, str]]:
    titles = some if isinstance(some, dict) else {value: str(value) for value in some}
    for value, title in titles.items():
        others = title if isinstance(title, dict) else {name.capitalize(): title}
        yield {name: str(value), **{key: str(other) for key, other in others.items()}}


def _fill(text: str, values: Values) -> str:
    try:
        return Template(text).substitute(values)
    except KeyError as error:
        raise unknown("variable", str(error.args[0]), values, repr(text)) from error
    except ValueError as error:
        raise HetflError(f"{text!r}: a $ is followed by no variable; write $$ for a dollar") from error
