"""What FedHPL's clients send of their logits: all that they keep, or the mean and number of each class (Eq. 10)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.message import Tensors
from hetfl.methods.contract import Statistics, Work, predicted_classes

Form = Literal["raw", "average"]


def logit_statistics(
    logits: Tensor, batch: Batch, num_classes: int, only_correct: bool, form: Form, all_rows: bool
) -> Statistics:
    """What :func:`upload_of` needs of a batch.

    Args:
        logits: [B, C] of the batch's samples.
        batch: the samples.
        num_classes: C.
        only_correct: keep the logits of samples that are classified rightly; else of all.
        form: of the upload.
        all_rows: the statistics have the rows in every form, and ``real`` [B], False for padding.

    Returns:
        Rows ``logits`` [B, C], ``labels`` and ``keep`` [B]; or sums of the kept ``logits`` [C, C] and ``counts`` [C].
    """
    real = torch.ones_like(batch.labels, dtype=torch.bool) if batch.weight is None else batch.weight > 0
    keep = real & (predicted_classes(logits) == batch.labels) if only_correct else real
    rows, sums = {}, {}
    if form == "average":
        sums["logits"] = class_sums(logits, batch.labels, num_classes, keep)
        sums["counts"] = class_counts(batch.labels, num_classes, keep)
    if form == "raw" or all_rows:
        rows = {"logits": logits, "labels": batch.labels, "keep": keep}
    if all_rows:
        rows["real"] = real
    return Statistics(sums, rows)


def upload_of(work: Work, form: Form) -> dict[str, Tensor]:
    """``logits`` [m, C] and ``labels`` [m] int32 of kept samples; or ``means`` [C, C] and ``counts`` [C] int32."""
    if form == "raw":
        rows = work.statistics.rows
        keep, labels = rows["keep"], rows["labels"]
        return {"logits": rows["logits"][keep], "labels": labels[keep].to(torch.int32)}
    sums, counts = work.statistics.sums["logits"], work.statistics.sums["counts"]
    means = sums / counts.clamp(min=1)[:, None]
    return {"means": means.to(work.dtype), "counts": counts.to(torch.int32)}


def class_logits(message: Tensors, num_classes: int) -> tuple[Tensor, Tensor]:
    """The sum of a client's uploaded logits per class [C, C] and their number [C], in float64.

    Args:
        message: ``logits`` [m, C] and ``labels`` [m]; or ``means`` [C, C] and ``counts`` [C].
        num_classes: C.
    """
    if "means" in message:
        counts = message["counts"].double()
        return message["means"].double() * counts[:, None], counts
    labels = message["labels"].long()
    return class_sums(message["logits"], labels, num_classes), class_counts(labels, num_classes)
