"""SGD and Adam as torch has them, in torch's functional form.

The classes of torch.optim import torch's compiler at a process's first step, which takes seconds. Their bookkeeping
takes longer than the arithmetic of a small model's step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from hetfl.torch_private import add_to_all

_HOST = torch.device("cpu")


class Optimiser:
    """Updates tensors in place from their gradients.

    Args:
        leaves: the tensors, of any shape; a step leaves those without a gradient unchanged.

    Attributes:
        state: tensors kept between steps, by leaf and name.
    """

    def __init__(self, leaves: Iterable[Tensor]) -> None:
        self.leaves = list(leaves)
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    def kept(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of named leaves by ``<leaf>/<name>``."""
        return {f"{of}/{name}": tensor for of, leaf in leaves.items() for name, tensor in self.state[leaf].items()}

    def go_on(self, leaves: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
        """Continue with a copy of what :meth:`kept` gave, from any device; of other leaves nothing is taken."""
        for key, tensor in kept.items():
            of, name = key.split("/")
            if of in leaves:
                self.state[leaves[of]][name] = tensor.to(self._place(name, leaves[of]), copy=True)

    def _place(self, name: str, leaf: Tensor) -> torch.device:
        """Where a leaf's state of that name belongs."""
        return leaf.device

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for leaf in self.leaves:
            leaf.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every leaf that has a gradient."""
        moved = [(leaf, _in_step(leaf.grad, leaf)) for leaf in self.leaves if leaf.grad is not None]
        if moved:
            leaves, gradients = zip(*moved, strict=True)
            self._move(list(leaves), list(gradients))

    def _move(self, leaves: list[Tensor], gradients: list[Tensor]) -> None:
        raise NotImplementedError

    def _slots(self, leaves: list[Tensor], name: str) -> list[Tensor]:
        return [self.state[leaf][name] for leaf in leaves]


def _in_step(gradient: Tensor, leaf: Tensor) -> Tensor:
    """The gradient in its leaf's memory layout: fused steps read memory in order and ignore strides."""
    return gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)


def clip_gradients(leaves: Sequence[Tensor], largest: float) -> None:
    """Scale gradients so that their total L2 norm is at most ``largest``, like ``torch.nn.utils.clip_grad_norm_``."""
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    # torch multiplies by one where the norm is small enough, which is a pass over memory. On a CPU it can be skipped;
    # on a GPU the comparison would have to wait for the device.
    if norm.device.type != "cpu" or not norm + 1e-6 <= largest:
        torch.nn.utils.clip_grads_with_norm_(leaves, largest, norm)


class SGD(Optimiser):
    """Stochastic gradient descent; the state ``momentum_buffer`` starts at zero."""

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
    """Adam (Kingma and Ba, ICLR 2015). A leaf's first step creates its state: ``step``, ``exp_avg``, ``exp_avg_sq``.

    Args:
        leaves: the tensors to update.
        lr: learning rate.
        weight_decay: L2 penalty, added to the gradient.
        fused: whether one kernel updates all leaves; otherwise one leaf after another, which rounds differently.
    """

    def __init__(self, leaves: Iterable[Tensor], lr: float, weight_decay: float = 0.0, fused: bool = True) -> None:
        super().__init__(leaves)
        self.lr, self.weight_decay, self.fused = lr, weight_decay, fused

    def _place(self, name: str, leaf: Tensor) -> torch.device:
        return leaf.device if self.fused or name != "step" else _HOST  # which reads it before each step

    def _move(self, leaves: list[Tensor], gradients: list[Tensor]) -> None:
        for leaf in leaves:
            if not self.state[leaf]:
                self.state[leaf] = {
                    "step": torch.zeros((), device=self._place("step", leaf)),
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
