"""What this machine and checkout have, what is missing for which table, and how to get it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import torch
from joblib import cpu_count
from rich.filesize import decimal

import hetfl
from hetfl.errors import HetflError, few, without_password
from hetfl.experiments.needs import BUNDLED, Need, needs
from hetfl.experiments.plan import Cell, Params, Workspace, all_cells, load_params
from hetfl.experiments.record import commit, device_name
from hetfl.experiments.schedule import at_once, pick_device
from hetfl.experiments.versions import check_versions, declared
from hetfl.files import folder_bytes
from hetfl.schema import record_folders
from hetfl.stages import check
from hetfl.tables.catalogue import printed_by, table_names
from hetfl.targets import cells_of
from hetfl.torch_private import multiplies_bfloat16
from hetfl.training.memory import total_bytes

State = Literal["good", "note", "bad"]
MARKS: dict[State, str] = {"good": "ok", "note": "--", "bad": "!!"}
SPACE = 5e9
"""Free bytes below which the disk is worth a note."""
NAMED = 4
"""How many tables are named behind something that is missing."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: its name.
        state: ``bad`` stops work; ``note`` stops a part of it, or is good to know.
        found: what is there.
        remedy: what to do; empty if nothing needs to be done.
    """

    what: str
    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Examination:
    """All findings, and what tables lack."""

    findings: Sequence[Finding]
    lacks: Sequence[dict[str, Any]]
    ready: Sequence[str]
    named: bool

    @property
    def good(self) -> bool:
        """Whether nothing is in the way of work, and nothing is missing for targets that were named."""
        return all(finding.state != "bad" for finding in self.findings) and not (self.named and self.lacks)

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "good": self.good,
            "findings": [vars(finding) for finding in self.findings],
            "missing": [*self.lacks],
            "ready": [*self.ready],
        }

    def render(self) -> str:
        """For a terminal."""
        width = max(len(finding.what) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{MARKS[finding.state]}  {finding.what:{width}}  {finding.found}")
            lines += [f"    {'':{width}}  -> {finding.remedy}"] if finding.remedy else []
        if self.lacks:
            lines += ["", "missing inputs:"]
        for lack in self.lacks:
            size = "" if lack["bytes"] is None else f", {decimal(lack['bytes'])}"
            lines.append(f"  {lack['kind']} {lack['name']} ({lack['origin']}{size})")
            lines.append(f"     for {few(lack['tables'], NAMED)}")
            lines.append(f"     -> {lack['remedy']}")
        if self.ready:
            lines += ["", f"data and weights are here, or come with the stage, for: {', '.join(self.ready)}"]
        return "\n".join(lines)


def examine(root: Path, targets: Sequence[str] = ()) -> Examination:
    """Look at everything that work here needs; nothing is written or downloaded.

    Args:
        root: the checkout.
        targets: whose inputs are looked for; empty: those of all tables.

    Raises:
        HetflError: a target is unknown.
    """
    findings = [*_environment(), *_places(root)]
    workspace = Workspace(root)
    try:
        params = load_params(workspace.params)
    except HetflError as error:
        return Examination([*findings, Finding("params.yaml", "bad", str(error))], [], [], bool(targets))
    findings += [*_settings(params, root), _device(params), _mlflow(root), _mirror(params)]
    every = {cell.path: cell for cell in all_cells(params)}
    if targets:
        wanted = {target: cells_of([target], params) for target in targets}
    else:
        wanted = {name: [every[path] for path in printed_by(name, params)] for name in table_names(params)}
    lacks, ready = _lacks(wanted, params, workspace)
    return Examination(findings, lacks, ready, bool(targets))


def _environment() -> Iterator[Finding]:
    used = f"hetfl {hetfl.__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    yield Finding("environment", "good", f"{used}, {sys.prefix}")
    extras: dict[str, list[str]] = {}
    for line in requires("hetfl") or ():
        name, _, marker = line.partition(";")
        if "extra ==" in marker:
            extra = marker.split("extra ==")[1].strip(" \"')")
            distribution = name.split(">")[0].split("=")[0].split("[")[0].strip()
            try:
                version(distribution)
            except PackageNotFoundError:
                extras.setdefault(extra, []).append(distribution)
    for extra, purpose in (
        ("pipeline", "dvc repro, tables, figures and MLflow"),
        ("slurm", "hetfl sweep --on slurm"),
        ("ray", "hetfl sweep --on ray and the engine ray"),
        ("tables", "data sets of Parquet and Arrow files"),
        ("flower", "hetfl serve, join and certs"),
        ("privacy", "uplinks with noise"),
    ):
        if missing := extras.get(extra):
            remedy = f"pip install 'hetfl[{extra}]', for {purpose}"
            yield Finding(extra, "note", f"not installed: {', '.join(missing)}", remedy)
        else:
            yield Finding(extra, "good", f"installed, for {purpose}")


def _places(root: Path) -> Iterator[Finding]:
    found = commit(root)
    yield Finding("git", "note" if found == "unknown" else "good", f"commit {found}")
    yield _dvc(root / ".dvc")
    usage = shutil.disk_usage(root)
    low = usage.free < SPACE
    there = [
        f"{name}/ {decimal(size)}"
        for name in ("data", "weights", "runs", ".dvc/cache")
        if (size := folder_bytes(root / name))
    ]
    found = f"{decimal(usage.free)} free{', ' if there else ''}{', '.join(there)}"
    yield Finding("disk", "note" if low else "good", found, "free some; hetfl prune, dvc gc" if low else "")


def _dvc(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("DVC", "bad", ".dvc is missing", "run in the repository's root, or dvc init")
    locks = folder / "tmp" / "rwlock"
    try:
        json.loads(locks.read_text())
    except FileNotFoundError:
        pass
    except ValueError:  # DVC was killed while it wrote the file, and cannot read it
        return Finding("DVC", "bad", f"{locks} is damaged", "when no dvc is running, delete it")
    return Finding("DVC", "good", ".dvc is here")


def _settings(params: Params, root: Path) -> Iterator[Finding]:
    yield Finding("params.yaml", "good", f"{len(params.experiments)} experiments, {len(params.data.sets)} data sets")
    looks: dict[str, Callable[[], object]] = {
        "stages": lambda: check(params, root),
        "versions": lambda: check_versions(root, declared()),
    }
    for what, look in looks.items():
        try:
            look()
        except HetflError as error:
            yield Finding(what, "bad", str(error).replace(f"{root}/", ""), f"hetfl {what}")
        else:
            yield Finding(what, "good", "up to date with code and settings")


def _device(params: Params) -> Finding:
    try:
        device = pick_device(params.compute.device)
    except HetflError as error:
        return Finding("device", "bad", str(error))
    many = at_once(device, params.compute)
    fast = ", bfloat16" if multiplies_bfloat16(device) else ""
    found = f"{device_name(device)}, {cpu_count()} cores, {decimal(total_bytes(device))}{fast}; {many} cells at once"
    return Finding("device", "good", found)


def _mlflow(root: Path) -> Finding:
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith("http"):
        import socket

        shown = without_password(uri)
        try:
            place = urlsplit(uri)
            port = place.port or (443 if place.scheme == "https" else 80)
            socket.create_connection((place.hostname or "", port), 3).close()
        except ValueError:
            remedy = "set MLFLOW_TRACKING_URI to an address such as http://localhost:5000, or unset it"
            return Finding("MLflow", "note", f"{shown} is not an address", remedy)
        except OSError as error:
            remedy = (
                "start the server, or unset MLFLOW_TRACKING_URI; training goes on without it, hetfl sync follows up"
            )
            return Finding("MLflow", "note", f"{shown} cannot be reached ({error.strerror or error})", remedy)
        return Finding("MLflow", "good", f"{shown} answers")
    if uri and not uri.startswith("sqlite"):
        return Finding("MLflow", "good", without_password(uri))
    file = Path(uri.removeprefix("sqlite:///")) if uri else root / "mlruns" / "mlflow.db"
    recorded = len(record_folders(root / "runs"))
    if not file.exists():
        return Finding("MLflow", "good", f"{file.name} is made by the first run", "hetfl sync" if recorded else "")
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as base:
            (runs,) = base.execute("select count(*) from runs where lifecycle_stage = 'active'").fetchone()
    except sqlite3.Error as error:
        return Finding("MLflow", "note", f"{file} cannot be read ({error})", "hetfl sync makes it anew")
    return Finding("MLflow", "good", f"{file.name}: {runs} runs, {recorded} records in runs/; make ui shows them")


def _mirror(params: Params) -> Finding:
    try:
        folder = params.data.folder()
    except HetflError as error:
        return Finding("mirror", "bad", str(error))
    if folder is None:
        return Finding(
            "mirror", "good", "none; data sets are downloaded (HETFL_MIRROR or data.mirror names a folder)"
        )
    return Finding("mirror", "good", str(folder))


def _lacks(
    wanted: dict[str, list[Cell]], params: Params, workspace: Workspace
) -> tuple[list[dict[str, Any]], list[str]]:
    """What is missing, with the tables that need it; and the tables that lack nothing that a person must fetch."""
    missing: dict[tuple[str, str], tuple[Need, list[str]]] = {}
    ready = []
    made = {model for settings in params.pretrain.values() for model in settings.models}
    for name, some in wanted.items():
        lacking = [
            need
            for need in needs(some, params, workspace)
            # What DVC's stages make of other inputs is no lack.
            if not need.there and need.kind != "partition" and need.name not in made and need.origin != BUNDLED
        ]
        for need in lacking:
            missing.setdefault((need.kind, need.name), (need, []))[1].append(name)
        if not lacking:
            ready.append(name)
    found = [
        {"kind": need.kind, "name": need.name, "origin": need.origin, "bytes": need.bytes, "tables": tables}
        | {"remedy": need.lack.partition("; ")[2] or need.lack}
        for need, tables in missing.values()
    ]
    return sorted(found, key=lambda lack: -len(lack["tables"])), ready
