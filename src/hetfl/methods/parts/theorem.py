"""The terms of FedHPL's Theorem 1 that a client can compute.

They say how well it fits its samples, how often its teacher is right, and how close the two are.

Ma et al., arXiv 2405.17267, Theorem 1 and its proof. In all of it phi(v) = softmax(v / T), p_i are the client's own
logits of sample i after local training, y_i is the label, G the client's global logits and g_i = G[y_i].
These formulas belong to FedHPL's ``numerics``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl.data.batches import class_counts
from hetfl.message import Tensors, flatten, group
from hetfl.methods.contract import Work, predicted_classes

INITIAL = "initial"
"""Group of the parameters that a client started its first round with, in its memory."""


def remembered(work: Work, groups: Sequence[str]) -> dict[str, Tensor]:
    """What a client keeps for the theorem: the group ``initial``, with its first parameters of some groups."""
    # In the order of the names, which a stored memory does not keep: the last bits of sums depend on it.
    kept = group(work.received, INITIAL)
    return flatten({INITIAL: {n: kept.get(n, work.before[n]) for n in work.client.model.names(groups)}})


def observations(work: Work, temperature: float, std: float) -> dict[str, Any]:
    """What a client's round says about Theorem 1, as numbers for the record.

    Before the first round: the client's ``width``, which beta (Eq. 7) follows from, and :func:`fit`. Afterwards
    ``upload_rate`` [C], the uploaded share of each class, and ``param_kl`` (:func:`gaussian_divergence`); and once
    there is a teacher ``valid_frac``, the share of samples whose class has one, ``teacher_acc`` and :func:`guidance`.
    With a teacher, :func:`fit` and :func:`guidance` are of the samples whose class has one, if there are any.

    Args:
        work: with rows ``logits`` [n, C], ``labels``, ``keep`` and ``real`` [n] of the client's samples, and
            in its memory what is :func:`remembered`.
        temperature: T.
        std: s of :func:`gaussian_divergence`.
    """
    client, rows, received = work.client, work.statistics.rows, work.received
    logits, labels, keep = (rows[name][rows["real"]] for name in ("logits", "labels", "keep"))
    logits = logits.double()
    if work.round == 0:
        return {"width": client.model.width, **figures(fit(logits, labels, temperature))}
    uploaded = class_counts(labels, len(client.class_counts), keep)
    observed = {
        "upload_rate": uploaded / client.class_counts.to(uploaded.device),
        "param_kl": gaussian_divergence(work.params, group(work.memory, INITIAL), std),
    }
    if "logits" in received:
        teacher, taught = received["logits"].double(), received["valid"][labels]
        observed["valid_frac"] = taught.double().mean()
        observed["teacher_acc"] = teacher_accuracy(teacher, received["valid"])
        if taught.any():
            logits, labels = logits[taught], labels[taught]
            observed |= guidance(logits, labels, teacher, temperature)
    return figures(observed | fit(logits, labels, temperature))


def fit(logits: Tensor, labels: Tensor, temperature: float) -> dict[str, Tensor]:
    """How well a client fits samples of its own.

    Args:
        logits: p [m, C].
        labels: y [m], int64.
        temperature: T.

    Returns:
        Scalars: ``err01``, the 0-1 risk; ``local_conf``, B = mean_i phi(p_i)[y_i]; ``logit_bound``, 2 - 2 B, which
        Lemma 7 sets above the risk.
    """
    confidence = _of_label(torch.softmax(logits / temperature, dim=1), labels).mean()
    wrong = (predicted_classes(logits) != labels).to(logits.dtype).mean()
    return {"err01": wrong, "local_conf": confidence, "logit_bound": 2 - 2 * confidence}


def guidance(logits: Tensor, labels: Tensor, teacher: Tensor, temperature: float) -> dict[str, Tensor]:
    """How a client's logits compare with its teacher's, on samples whose classes have a teacher.

    Args:
        logits: p [m, C].
        labels: y [m], int64.
        teacher: G [C, C].
        temperature: T.

    Returns:
        Scalars. Of Eq. 34, with A = mean_i phi(g_i)[y_i] and B = mean_i phi(p_i)[y_i]: ``agg_conf`` A, ``agg_error``
        2 - 2 A, ``distill_similarity`` 2 |A - B|. Of the distillation loss: its mean ``kd_loss`` (Eq. 9) and the two
        parts it is the difference of, the cross-entropy ``kd_ce`` of phi(p_i) under phi(g_i) and the entropy
        ``kd_entropy`` of phi(g_i). Of C_k, its bound: the largest divergence ``kd_max``, and ``kd_cap``, the largest
        (max_c (g_i - p_i)_c - min_c (g_i - p_i)_c) / T, which no divergence exceeds.
    """
    targets = teacher[labels]
    log_teacher, log_student = F.log_softmax(targets / temperature, dim=1), F.log_softmax(logits / temperature, dim=1)
    probabilities = log_teacher.exp()
    divergence = (probabilities * (log_teacher - log_student)).sum(dim=1)
    difference = targets - logits
    precision = _of_label(probabilities, labels).mean()
    confidence = _of_label(log_student.exp(), labels).mean()
    return {
        "agg_conf": precision,
        "agg_error": 2 - 2 * precision,
        "distill_similarity": 2 * (precision - confidence).abs(),
        "kd_ce": -(probabilities * log_student).sum(dim=1).mean(),
        "kd_entropy": -(probabilities * log_teacher).sum(dim=1).mean(),
        "kd_loss": divergence.mean(),
        "kd_max": divergence.max(),
        "kd_cap": (difference.amax(dim=1) - difference.amin(dim=1)).max() / temperature,
    }


def teacher_accuracy(teacher: Tensor, valid: Tensor) -> Tensor:
    """The share of classes c with ``valid`` [C] whose global logits G[c], of [C, C], are largest at c."""
    right = predicted_classes(teacher) == torch.arange(len(teacher), device=teacher.device)
    return right[valid].double().mean()


def gaussian_divergence(params: Tensors, initial: Tensors, std: float) -> Tensor:
    """KL(N(theta, s^2) || N(theta_0, s^2)) = |theta - theta_0|^2 / (2 s^2), over the tensors that ``initial`` names.

    It replaces KL(h_k || h_0) of Theorem 1, which is between distributions over hypotheses.
    """
    squares = [(params[name].double() - start.double()).square().sum() for name, start in initial.items()]
    return torch.stack(squares).sum() / (2 * std**2)


def aggregation_weights(uploaded: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """Eq. 36: the share of each client's class mean in the global logits.

    Args:
        uploaded: #D~ [J, C], logits that participant j uploaded of a class.
        counts: M [J, C], the counts of Eq. 8's denominator; usually the same.
        weights: beta [K, J].

    Returns:
        beta[k, j] #D~[j, c] / (1 + sum_j' beta[k, j'] M[j', c]), [K, J, C].
    """
    return weights[:, :, None] * uploaded / (1 + weights @ counts)[:, None, :]


def shrinkage_of_valid(server: Tensors) -> dict[str, Any]:
    """The share that the added 1 in Eq. 8's denominator takes from each client's global logits [K].

    Args:
        server: ``shrinkage`` [K, C], 1 minus the sum of :func:`aggregation_weights`, and ``valid`` [C] bool.

    Returns:
        Its mean, ``shrinkage``, and maximum, ``shrinkage_max``, over the valid classes, if there are any.
    """
    if "shrinkage" not in server or not server["valid"].any():
        return {}
    shrinkage = server["shrinkage"][:, server["valid"]]
    return figures({"shrinkage": shrinkage.mean(dim=1), "shrinkage_max": shrinkage.amax(dim=1)})


def figures(tensors: Tensors) -> dict[str, Any]:
    """Tensors as numbers and lists of numbers; None where there is none."""
    flat = torch.cat([tensor.double().flatten() for tensor in tensors.values()]).tolist()
    numbers = iter(value if math.isfinite(value) else None for value in flat)
    return {
        name: [next(numbers) for _ in range(tensor.numel())] if tensor.dim() else next(numbers)
        for name, tensor in tensors.items()
    }


def _of_label(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(1, labels[:, None])[:, 0]
