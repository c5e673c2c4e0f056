"""How a process of this package begins and ends, for which a person waits."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 10_000
"""Objects that are made between two looks for garbage. Importing torch makes 180,000 that all stay."""

_status: list[int] = []


@atexit.register
def leave() -> None:
    """End at once where :func:`quick` says so: taking apart all that was imported would take Python seconds.

    What is registered first is called last, when the libraries that were imported have closed what they opened.
    """
    if not _status:
        return
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BrokenPipeError:
        pass  # whoever reads the output has enough of it
    except (OSError, ValueError):
        if not _status[0]:
            return  # a success that could not be told, of which Python makes a failure
    os._exit(_status[0])


@contextmanager
def quick() -> Iterator[None]:
    """All that a process does is within: it imports faster, and ends at once afterwards, unless by an exception."""
    if gc.get_threshold()[0] < SELDOM:
        gc.set_threshold(SELDOM, *gc.get_threshold()[1:])
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.code, str):
            _status[:] = [int(end.code or 0)]
        raise
    _status[:] = [0]
