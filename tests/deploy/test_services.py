"""The compose file and the systemd units start what there is, and show each process only its own files."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from hetfl.cli import app

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def paths(value: Any) -> Iterator[str]:
    """The relative paths among a file's settings."""
    if isinstance(value, dict):
        for part in value.values():
            yield from paths(part)
    elif isinstance(value, str) and value.startswith(("certs/", "server", "node-")) and ":" not in value:
        yield value


@pytest.mark.parametrize("service", COMPOSE)
def test_a_container_sees_what_its_file_names_and_no_other_key(rehearsed, service):
    command, file = COMPOSE[service]["command"].split()
    assert command in get_command(app).commands and file == f"{service}.yaml"
    mounts = dict(volume.split(":")[:2] for volume in COMPOSE[service]["volumes"])
    assert all((rehearsed / source).exists() for source in mounts)
    seen = {Path(source): target for source, target in mounts.items()}
    assert all(target == f"/srv/hetfl/{source}" for source, target in seen.items())
    settings = yaml.safe_load((rehearsed / file).read_text())
    named = {Path(path) for path in paths(settings)} - {Path(service)} | {Path(file)}
    assert named and all({path, *path.parents} & seen.keys() for path in named)
    assert {path for path in seen if path.suffix == ".key"} == {Path(f"certs/{service}.key")}
    assert {path.parts[0] for path in seen} == {file, service, "certs"}
    assert COMPOSE["server"]["image"] == COMPOSE[service]["image"] and COMPOSE[service]["read_only"]


@pytest.mark.parametrize(("unit", "command"), [("hetfl-server", "serve"), ("hetfl-node", "join")])
def test_a_unit_starts_a_command(unit, command):
    start, given, file = exec_start(unit)
    assert start.startswith("/") and given == command
    assert Path(file).is_relative_to(unit_of(unit)["Service"]["WorkingDirectory"])


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["hetfl-server", "hetfl-node"])
def test_systemd_takes_a_unit(unit, tmp_path):
    assert shutil.which("systemd-analyze"), "needs systemd-analyze, of the package systemd"
    # In a root of its own, where the program exists.
    folder, start = tmp_path / "etc/systemd/system", tmp_path / exec_start(unit)[0].lstrip("/")
    for each in (folder, start.parent):
        each.mkdir(parents=True)
    shutil.copy(DEPLOY / f"{unit}.service", folder)
    start.touch(0o755)
    verify = ["systemd-analyze", "verify", "--man=no", f"--root={tmp_path}", f"/etc/systemd/system/{unit}.service"]
    done = subprocess.run(verify, capture_output=True, text=True)
    assert not re.search(rf"{unit}\.service:\d|not executable", done.stderr), done.stderr


def unit_of(name: str) -> RawConfigParser:
    """A unit of ``deploy/``."""
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / f"{name}.service")
    return parser


def exec_start(name: str) -> list[str]:
    """The words of a unit's command."""
    return unit_of(name)["Service"]["ExecStart"].split()
