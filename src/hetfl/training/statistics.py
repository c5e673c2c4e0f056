"""The statistics that a client takes of its data in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from hetfl.data.batches import DeviceImages
from hetfl.draws import Draws
from hetfl.methods.base import Method, Statistics
from hetfl.training.client_run import ClientRun, alignment_index, public_images


@torch.no_grad()
def statistics_of(
    method: Method, run: ClientRun, draws: Draws, stored: Callable[[DeviceImages], DeviceImages]
) -> Statistics:
    """A client's statistics after its training, from the source that the method names for the round.

    Args:
        method: the run's.
        run: of the client.
        draws: keyed randomness of the round.
        stored: gives images in the size in which they are stored.
    """
    if run.gathered:
        return merged(run.gathered)
    source, data, model = method.statistics_source(draws.round), run.data, run.client.model
    if source in ("own", "before", "stored"):
        params = run.before if source == "before" else run.params
        images = stored(data.train_images) if source == "stored" else data.train_images
        size = images.large_batch(0 if source == "stored" else model.largest_map)
        batches = iter(images.batches(data.train, size))
    elif source == "alignment":
        params = run.params
        index = alignment_index(method, data, draws.at(draws.round + 1))
        images = public_images(method, data)
        size = images.large_batch(model.largest_map)
        rows = torch.arange(len(index), device=index.device).split(size)
        parts = zip(images.batches(index, size), rows, strict=True)
        batches = (replace(batch, rows=part) for batch, part in parts)
    elif source == "training":
        # It took no step: statistics of no samples, from which a method makes a message without rows.
        params, batches = run.params, iter([data.train_images.batch(data.train[:0])])
    else:
        return Statistics()
    return merged([method.statistics(model, params, batch, run.received) for batch in batches])


def merged(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of a whole pass from those of its batches."""
    sums = {name: torch.stack([part.sums[name] for part in parts]).sum(dim=0) for name in parts[0].sums}
    rows = {name: torch.cat([part.rows[name] for part in parts]) for name in parts[0].rows}
    return Statistics(sums, rows)
