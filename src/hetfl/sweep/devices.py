"""The devices of this machine: which there are, and whose turn it is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from hetfl.errors import HetflError
from hetfl.experiments.record import now
from hetfl.experiments.schedule import pick_device
from hetfl.files import read_json, write_json


def devices(name: str) -> list[torch.device]:
    """All GPUs where ``compute.device`` leaves the choice or asks for one of them, otherwise the device it names.

    Raises:
        HetflError: a GPU is asked for and there is none.
    """
    device = pick_device(name)
    if device.type == "cuda" and device.index is None:
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [device]


@contextmanager
def held(wanted: Sequence[torch.device], root: Path, wait: bool) -> Iterator[None]:
    """Hold the locks of devices, so that no two sweeps of a user share one, whatever checkouts they are in.

    Args:
        wanted: the devices.
        root: the checkout, which others are told of.
        wait: wait for whoever holds one; otherwise it is an error.

    Raises:
        HetflError: another sweep holds a device.
    """
    # On this machine's own disk: a home folder may be shared by several machines.
    folder = Path(tempfile.gettempdir()) / f"hetfl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        for device in wanted:
            place = folder / _name(device)
            lock, owner = FileLock(place.with_suffix(".lock")), place.with_suffix(".json")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                who = _told(device, owner)
                if not wait:
                    raise HetflError(f"{who}; wait for its end with --wait") from None
                print(f"{who}; waiting for its end", flush=True)
                lock.acquire()
            stack.callback(lock.release)
            write_json(owner, {"process": os.getpid(), "folder": str(root.resolve()), "since": now()})
        yield


def _name(device: torch.device) -> str:
    """The same for every process, whichever devices it sees."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type


def _told(device: torch.device, owner: Path) -> str:
    try:
        found = read_json(owner)
        return (
            f"{device}: is in use by the sweep of process {found['process']} in {found['folder']} since "
            f"{found['since']}"
        )
    except (HetflError, OSError, KeyError, TypeError):  # it has just begun
        return f"{device}: is in use by another sweep"
