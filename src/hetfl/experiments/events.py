"""What a run says while it trains; its record says the same, and for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hetfl.schema import Round, Run


class Event(NamedTuple):
    """One thing that happened in a cell's record.

    Attributes:
        folder: of the record.
        run: ``run.json`` where it was written: when the run begins, and when it is complete; otherwise None.
        rounds: that the record gained; when a run continues, all that it kept.
    """

    folder: Path
    run: Run | None = None
    rounds: Sequence[Round] = ()


Callback = Callable[[Event], None]
"""What is called with every event, in the process that trains; picklable where several processes do."""
