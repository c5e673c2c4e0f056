"""SGD and Adam as torch has them, in torch's functional form.

The classes of torch.optim import torch's compiler in the first step of a process, which takes seconds, and their
bookkeeping takes longer than a step of a small model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from hetfl.torch_private import add_to_all


class Optimiser:
    """Moves tensors against their gradients.

    Args:
        leaves: the tensors; those without a gradient stay where they are.

    Attributes:
        state: tensors that are kept from step to step, by leaf and name.
    """

    def __init__(self, leaves: Iterable[Tensor]) -> None:
        self.leaves = list(leaves)
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for leaf in self.leaves:
            leaf.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every leaf that has a gradient."""
        moved = [(leaf, _in_step(leaf.grad, leaf)) for leaf in self.leaves if leaf.grad is not None]
        if moved:
            leaves, gradients = zip(*moved, strict=True)
            self._move(list(leaves), list(gradients))

    def _move(self, leaves: list[Tensor], gradients: list[Tensor]) -> None:
        raise NotImplementedError

    def _slots(self, leaves: list[Tensor], name: str) -> list[Tensor]:
        return [self.state[leaf][name] for leaf in leaves]


def _in_step(gradient: Tensor, leaf: Tensor) -> Tensor:
    """The gradient, laid out as its leaf is: fused steps walk through memory, whatever the strides."""
    return gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)


def clip_gradients(leaves: Sequence[Tensor], largest: float) -> None:
    """Scale the gradients of some tensors down to a norm of ``largest`` over all of them, as torch does it."""
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    # Where nothing is to be done torch multiplies by one, which takes a pass over memory. Only a CPU knows without
    # waiting that nothing is to be done.
    if norm.device.type != "cpu" or not norm + 1e-6 <= largest:
        torch.nn.utils.clip_grads_with_norm_(leaves, largest, norm)


class SGD(Optimiser):
    """Stochastic gradient descent; momentum starts from zeros, in the slot ``momentum_buffer``."""

    def __init__(self, leaves: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(leaves)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        for leaf in self.leaves if momentum else []:
            self.state[leaf]["momentum_buffer"] = torch.zeros_like(leaf)

    def _move(self, leaves: list[Tensor], gradients: list[Tensor]) -> None:
        if not self.momentum and not self.weight_decay:
            add_to_all(leaves, gradients, alpha=-self.lr)
            return
        sgd(
            leaves,
            gradients,
            [*self._slots(leaves, "momentum_buffer")] if self.momentum else [None] * len(leaves),
            fused=True,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0,
            nesterov=False,
            maximize=False,
        )


class Adam(Optimiser):
    """Adam; slots ``step``, ``exp_avg`` and ``exp_avg_sq`` appear with a leaf's first step.

    Args:
        fused: one kernel for all leaves; else one after another, which rounds differently.
    """

    def __init__(self, leaves: Iterable[Tensor], lr: float, weight_decay: float = 0.0, fused: bool = True) -> None:
        super().__init__(leaves)
        self.lr, self.weight_decay, self.fused = lr, weight_decay, fused

    def _move(self, leaves: list[Tensor], gradients: list[Tensor]) -> None:
        for leaf in leaves:
            if not self.state[leaf]:
                self.state[leaf] = {
                    "step": torch.zeros((), device=leaf.device if self.fused else "cpu"),
                    "exp_avg": torch.zeros_like(leaf),
                    "exp_avg_sq": torch.zeros_like(leaf),
                }
        adam(
            leaves,
            gradients,
            self._slots(leaves, "exp_avg"),
            self._slots(leaves, "exp_avg_sq"),
            [],
            self._slots(leaves, "step"),
            fused=self.fused,
            lr=self.lr,
            weight_decay=self.weight_decay,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
