"""Numbers that are recorded with the versions they are from: they change together or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "golden"
DIGITS = 7
TOLERANCE = 2e-6
"""Of the largest number of a list; in float64 processors agree far beyond it."""


def figures(tensors: Iterable[Tensor]) -> list[float]:
    """How many numbers tensors hold, their root mean square, and a mean in which every place has its own weight."""
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors] or [torch.zeros(1)])
    weight = torch.arange(1, len(flat) + 1, dtype=torch.float64).cos()
    return [len(flat), flat.square().mean().sqrt().item(), (flat * weight).mean().item()]


def numbers_in(nested: Any) -> list[float]:
    """All finite numbers of lists and mappings."""
    if isinstance(nested, Mapping):
        nested = list(nested.values())
    if isinstance(nested, list | tuple):
        return [number for part in nested for number in numbers_in(part)]
    return [float(nested)] if isinstance(nested, int | float) and math.isfinite(nested) else []


def same(told: Any, found: Any) -> bool:
    """Whether two JSON values agree; numbers within the tolerance."""
    if isinstance(told, dict) and isinstance(found, dict):
        return told.keys() == found.keys() and all(same(told[key], found[key]) for key in told)
    if isinstance(told, list) and isinstance(found, list):
        plain = all(isinstance(value, int | float) for value in (*told, *found))
        if len(told) != len(found) or not plain:
            return len(told) == len(found) and all(map(same, told, found))
        largest = max((abs(value) for value in (*told, *found)), default=0)
        return all(abs(a - b) <= TOLERANCE * largest for a, b in zip(told, found, strict=True))
    if isinstance(told, float) or isinstance(found, float):
        return same([told], [found])
    return bool(told == found)


def check(
    name: str, versions: Mapping[str, int], found: Mapping[str, Any], raises: str, request: pytest.FixtureRequest
) -> None:
    """Hold numbers to the recorded ones, or record them where a raised version says that they are meant to differ.

    Args:
        name: of the file in ``tests/golden``.
        versions: every integer that the numbers rest on, by the name of what declares it.
        found: the numbers, by case.
        raises: what to raise where these numbers are meant to change, e.g. "`numerics` of FedAvg (fedavg.py)".
        request: pytest's, for its options and the test's name.
    """
    path, found = FOLDER / f"{name}.json", json.loads(json.dumps(_rounded(found)))
    record = recording(request.node.nodeid)
    if not path.exists() and not request.config.getoption("--update-golden"):
        pytest.fail(f"{name}: has no golden numbers; type: {record}", pytrace=False)
    told = json.loads(path.read_text()) if path.exists() else {"versions": {}, "moved": {}, "numbers": {}}
    was, before = told["numbers"], told["versions"]
    moved = [case for case in was if case in found and not same(was[case], found[case])]
    raised = [what for what in versions if what in before and before[what] != versions[what]]
    if moved and not raised:
        pytest.fail(
            f"{name}: {moved[0]} has other numbers, with the same versions ({_show(before)}). If they are meant, "
            f"raise {raises}, or the version of the parent, model or engine that changed, then type:\n  {record}",
            pytrace=False,
        )
    current = versions == before and was.keys() == found.keys() and not moved
    if request.config.getoption("--update-golden") and not current:
        since = {what: told["moved"].get(what, versions[what]) for what in versions}
        content = {
            "versions": dict(versions),
            "moved": dict(versions) if moved or not was else since,
            "numbers": {case: was[case] if case in was and case not in moved else found[case] for case in found},
        }
        path.parent.mkdir(exist_ok=True)
        path.write_text(_layout(content))
    elif not current:
        news = (
            f"versions are {_show(versions)}, recorded are {_show(before)}" if versions != before else "cases differ"
        )
        pytest.fail(f"{name}: {news}; type:\n  {record}", pytrace=False)


def recording(test: str) -> str:
    """The command that records a test's golden numbers."""
    return f"hetfl versions && pytest --update-golden '{test}'"


def unmoved(files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was raised although no recorded number moved with it, e.g. ``FedAvg 2``.

    A file says in ``moved`` from which versions its numbers are that last changed.
    """
    raised = {(what, number) for file in files.values() for what, number in file["versions"].items() if number > 1}
    justified = {pair for file in files.values() for pair in file["moved"].items()}
    return [f"{what} {number}" for what, number in sorted(raised - justified)]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _show(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "none"


def _layout(content: Mapping[str, Any]) -> str:
    """JSON with a line for each round of each case, so that a change is a small one in git."""
    lines = [f' "{key}": {json.dumps(content[key])},' for key in ("versions", "moved")]
    cases = [f"  {json.dumps(case)}: {_case(value)}" for case, value in content["numbers"].items()]
    return "{\n" + "\n".join(lines) + '\n "numbers": {\n' + ",\n".join(cases) + "\n }\n}\n"


def _case(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n   " + ",\n   ".join(json.dumps(part) for part in value) + "\n  ]"
    return json.dumps(value)
