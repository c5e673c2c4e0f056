"""Settings that cannot work: one line within seconds, never a traceback, a hang or a crash."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetfl.config import DEEPEST
from hetfl.errors import HetflError
from hetfl.experiments.plan import cells, check_fit, check_models, load_params

TEXT = Path("params.yaml").read_text()
RAW = json.loads(json.dumps(yaml.safe_load(TEXT)))
SECONDS = 3


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """The first check imports timm, which takes seconds that are not the file's."""
    params = load_params(Path("params.yaml"))
    check_fit(params, cells(params, "digits-fgpt"))


def refusal(folder: Path, content: bytes) -> str:
    """What ``hetfl check`` says of a file of settings; empty if it takes it."""
    file = folder / "params.yaml"
    file.write_bytes(content)
    began, message = time.monotonic(), ""
    try:
        params = load_params(file)
        for group in params.models:
            check_models(params, group)
        for name in params.experiments:
            check_fit(params, cells(params, name))
    except HetflError as error:
        message = str(error)
        assert message and "\n" not in message
    assert time.monotonic() - began < SECONDS
    return message


def edited(path: str, value: Any) -> bytes:
    """The committed settings with one value changed."""
    raw = json.loads(json.dumps(RAW))
    *parents, last = path.split("/")
    inner = raw
    for key in parents:
        inner[key] = inner.get(key) or {}
        inner = inner[key]
    inner[last] = value
    return yaml.safe_dump(raw).encode()


ALIASES = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
MERGES = "m0: &m0 {a: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 10)
)

FILES = {
    "not UTF-8": (TEXT.encode() + b"# \xff", r"is not text in UTF-8 \(line \d+\)"),
    "UTF-16": (TEXT.encode("utf-16"), "is not text in UTF-8"),
    "NUL": (TEXT.encode() + b"\0", "is not valid YAML.*unacceptable character"),
    "too large": (b"# " + b"x" * 5_000_000, "has 5000002 bytes; settings may have"),
    "nested brackets": (b"a: " + b"[" * 100_000 + b"]" * 100_000, f"is nested more than {DEEPEST} levels deep"),
    "nested braces": (b"a: " + b"{a: " * 20_000 + b"}" * 20_000, f"is nested more than {DEEPEST} levels deep"),
    "nested items": (b"a:\n  " + b"- " * 20_000 + b"x", f"is nested more than {DEEPEST} levels deep"),
    "aliases": (ALIASES.encode(), "stands for more than 200000 values"),
    "merges": (MERGES.encode(), "stands for more than 200000 values"),
    "itself": (b"a: &a [*a]", r"\*a contains itself; remove it \(line 1\)"),
    "itself, merged": (b"a: &a {<<: *a}", r"\*a contains itself"),
    "5000 digits": (TEXT.replace("threads: 1", "threads: " + "9" * 5000).encode(), "has more than 18 digits"),
    "hexadecimal": (TEXT.replace("threads: 1", "threads: 0x" + "f" * 5000).encode(), "has more than 18 digits"),
    "base 60": (TEXT.replace("rounds: 4,", "rounds: 1:30,").encode(), "'1:30' would be read as a number to the base"),
    "base 60, float": (TEXT.replace("lr: 0.03,", "lr: 1:30.5,").encode(), "'1:30.5' would be read"),
    "month 13": (
        TEXT.replace("threads: 1", "threads: 2001-13-01").encode(),
        "'2001-13-01' is not a value of the type",
    ),
    "no number": (TEXT.replace("threads: 1", "threads: !!int x").encode(), "'x' is not a value of the type int"),
    "a number as a name": (b"experiments: {1: {}}\n" + TEXT.replace("experiments:", "x:").encode(), "setting 'x'"),
}


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=FILES)
def test_a_file_beyond_the_limits_is_refused_in_a_line(tmp_path, content, expected):
    assert re.search(expected, refusal(tmp_path, content))


HOMOGENEOUS, FGPT = "experiments/digits-homogeneous", "experiments/digits-fgpt/rows"
FEDAVG, GROUPS, SGPT = (f"{rows}/settings" for rows in (f"{HOMOGENEOUS}/rows/fedavg", f"{FGPT}/fgpt", f"{FGPT}/sgpt"))
FEDKD = "experiments/digits-fedtgp/rows/fedkd/settings"
SCRATCH = {"models": "digits-homogeneous", "input": {"size": 9}}

VALUES = [
    ("compute/threads", 2**31, "compute.threads: 2147483648 should be less than"),
    ("compute/threads", True, "compute.threads: true should be a valid integer"),
    ("compute/jobs", 10**9, "compute.jobs: 1000000000 should be less than"),
    ("compute/device", "cuda:99999999999", "compute.device"),
    (FEDAVG, {"local_epochs": 10**12}, "settings.local_epochs: 1000000000000 should be at most 1000000"),
    (
        FEDAVG,
        {"rounds": 10**5, "local_epochs": 10**5},
        "local_epochs: 100000 in each of 100000 rounds would take years",
    ),
    (FEDAVG, {"rounds": True}, "settings.rounds: true should be a valid integer"),
    (FEDAVG, {"lr": True}, "settings.lr: true should be a valid number"),
    (FEDAVG, {"lr": False}, "settings.lr: false should be a valid number"),
    (f"{HOMOGENEOUS}/rows/fedbabu/settings", {"held_out": 1}, "fedbabu has no model for clients that take no part"),
    (f"{HOMOGENEOUS}/rows/fedrep/settings", {"held_out": 1}, "fedrep has no model for clients that take no part"),
    (f"{HOMOGENEOUS}/rows/fedavg/settings", {"held_out": 1}, "held_out: digits_resnet_base has running statistics"),
    (FEDAVG, {"held_out": 5}, r"rows.fedavg: held_out is 5, split '\w+' has 5 clients; hold out fewer"),
    (f"{HOMOGENEOUS}/rows/fedavg/seeds", [9], "rows.fedavg.seeds: 9 is not among the experiment's seeds"),
    (GROUPS, {"group_blocks": []}, "settings.group_blocks: \\[\\]"),
    (GROUPS, {"group_blocks": [0]}, "settings.group_blocks.0: 0 should be greater"),
    (GROUPS, {"group_blocks": [-1]}, "settings.group_blocks.0: -1 should be greater"),
    (GROUPS, {"group_blocks": [2, 2]}, "settings.group_blocks: \\[2, 2\\] names 2 twice"),
    (GROUPS, {"group_blocks": [3]}, "settings.group_blocks: there is no block 3; the backbone has 2"),
    (GROUPS, {"shared_blocks": [0]}, "settings.shared_blocks.0: 0 should be greater"),
    (GROUPS, {"shared_blocks": [1, 1]}, "settings.shared_blocks: \\[1, 1\\] names 1 twice"),
    (GROUPS, {"shared_blocks": [True]}, "settings.shared_blocks.0: true should be a valid integer"),
    (f"{FGPT}/fedpr/settings", {"shared_blocks": []}, "settings.shared_blocks: \\[\\]"),
    (SGPT, {"query_block": 3}, "settings.query_block: there is no block 3; digits_vit_base has 2"),
    (SGPT, {"query_block": 1, "encoder": "digits_resnet_base"}, "digits_resnet_base has 0"),
    (GROUPS, {"groups": 49}, "settings.groups: 49 orthogonal keys need as many features, digits_vit_base has 48"),
    (SGPT, {"groups": 49}, "settings.groups: 49 orthogonal keys"),
    (GROUPS, {"encoder": "nope"}, "settings.encoder: unknown model 'nope'"),
    (f"{HOMOGENEOUS}/input", {"std": 0}, "input.std: 0 should be greater"),
    (f"{HOMOGENEOUS}/input", {"std": [1, 1, -1]}, "input.std.2: -1 should be greater"),
    (f"{HOMOGENEOUS}/input", {"mean": True}, "input.mean: true should be"),
    ("data/mine", {"path": "x", "std": 0}, "data.mine.std: 0 should be greater than or equal to 0.0001$"),
    (
        "compute",
        {"precision": "half"},
        "compute.precision: 'half' should be 'auto', 'float32', 'tf32' or 'bfloat16' .line 2.$",
    ),
    (
        SGPT,
        {"encoder": "vit_base_patch16_gap_224"},
        "gap_224 has no class token, so it gives no features to sort samples by",
    ),
    (
        f"{HOMOGENEOUS}/rows/mine",
        {"method": "fedavg", **SCRATCH},
        "input.size is 9; digits_vit_base takes multiples of",
    ),
    (FEDKD, {"energy_start": 0.9, "energy_end": 0.5}, "energy_end: 0.5 should not be below energy_start"),
    (FEDKD, {"energy_start": 0.99}, "energy_end: 0.95 should not be below energy_start"),
    *(
        ("partitions/digits/seeds", value, f"seeds: {value} is no number of seeds; use 1 to")
        for value in (10**12, 0, -3)
    ),
    (f"{HOMOGENEOUS}/sweep", {"lr": [0.1] + [n / 7 for n in range(1, 1100)]}, "sweep: has 1.1e\\+03 combinations"),
    (
        f"{HOMOGENEOUS}/over",
        {str(n): {"a": {}, "b": {}} for n in range(40)},
        "over: has 1.1e\\+12 combinations, 1000 are allowed",
    ),
]


@pytest.mark.parametrize(("path", "value", "expected"), VALUES, ids=[f"{v[0]}={v[1]}"[-60:] for v in VALUES])
def test_a_value_that_cannot_work_is_refused_in_a_line(tmp_path, path, value, expected):
    message = refusal(tmp_path, edited(path, value))
    assert message.startswith("params.yaml: ") and re.search(expected, message), message


def test_what_looks_alike_is_taken(tmp_path):
    same = TEXT.replace("title: Digits, homogeneous models", 'title: "1:30"').replace("threads: 1 ", "threads: 010 ")
    assert same != TEXT and refusal(tmp_path, b"\xef\xbb\xbf" + same.encode()) == ""
    assert (
        refusal(tmp_path, edited(f"{FGPT}/pt-fedavg/settings", {"group_blocks": [], "shared_blocks": [2, 1]})) == ""
    )
    assert refusal(tmp_path, edited(f"{FGPT}/fgpt/settings", {"groups": 49, "keys": "random"})) == ""
    assert refusal(tmp_path, edited(f"{FGPT}/pt-fedavg/settings", {"held_out": 1})) == ""


def _paths(raw: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return [path for key, value in inner for path in ((*here, key), *_paths(value, (*here, key)))]


PLACES = _paths(RAW)
TOKENS = [
    "\0",
    "\xff",
    "&a ",
    "*a",
    "<<: ",
    "[" * 60,
    "{",
    "}",
    "- ",
    ": ",
    "!!int ",
    "1:30",
    "\t",
    "\n",
    "'",
    "? ",
    "0x",
    "%",
]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "a\nb", "1:30", "../x", "digits", "fedavg", "~"]),
    st.lists(st.one_of(st.integers(-2, 9), st.booleans(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.just("lr")), st.integers(), max_size=3),
)


@st.composite
def broken_files(draw: st.DrawFn) -> bytes:
    """The committed settings with some values replaced or removed, then some characters put in or bytes changed."""
    raw = json.loads(json.dumps(RAW))
    for _ in range(draw(st.integers(0, 3))):
        *parents, last = draw(st.sampled_from(PLACES))
        inner = raw
        try:
            for key in parents:
                inner = inner[key]
            if draw(st.booleans()):
                inner[last] = draw(ODD)
            else:
                del inner[last]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has removed the place
    content = yaml.safe_dump(raw, allow_unicode=True).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(content)))
        content = (
            content[:at] + draw(st.sampled_from(TOKENS)).encode("latin-1") + content[at + draw(st.integers(0, 3)) :]
        )
    return content


def _fuzz(folder: Path, examples: int) -> None:
    taken = []

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(broken_files())
    def check(content: bytes) -> None:
        taken.append(not refusal(folder, content))

    check()
    # A test in which all files are alike would show nothing.
    assert len(taken) >= examples and 0 < sum(taken) < len(taken)


def test_generated_files_are_taken_or_refused_in_a_line(tmp_path):
    _fuzz(tmp_path, 40)


@pytest.mark.slow
def test_many_generated_files_are_taken_or_refused_in_a_line(tmp_path):
    _fuzz(tmp_path, 400)
