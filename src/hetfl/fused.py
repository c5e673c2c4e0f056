"""Functions that torch's compiler turns into fewer kernels on a GPU.

Where the operations between products only pass over memory, each of them takes as long as all of them together.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from hetfl.errors import one_line, out_of_memory

log = logging.getLogger(__name__)

_plain: list[bool] = []
"""Has an element for every :func:`uncompiled` that is entered."""

PROGRAMS = 64
"""Programs of one function, at least, that torch keeps; by itself 8, too few for the shapes of several networks."""


class Fused:
    """A function of tensors, compiled where one of them is on a GPU; elsewhere an ordinary call.

    A function that cannot be compiled, such as without a C compiler, is called as it is, with a warning. With torch's
    ``TORCH_COMPILE_DISABLE=1`` none is compiled.

    Args:
        function: differentiable; what it returns depends on nothing but its arguments, which may be modules.
        shapes: whether every shape is compiled for itself; otherwise there is one program for all but the first.
    """

    def __init__(self, function: Callable[..., Tensor], shapes: bool = False) -> None:
        self._function, self._shapes = function, shapes
        self._fails = False

    def __call__(self, *given: object) -> Tensor:
        """What the function returns, up to the rounding of values between two of its operations."""
        if self._fails or _plain or not compilable(given):
            return self._function(*given)
        try:
            return self._compiled(*given)
        except (RuntimeError, ImportError) as error:
            if out_of_memory(error):
                raise
            self._fails = True
            log.warning("%s cannot be compiled, and is slower without (%s)", self._name, one_line(error))
        return self._function(*given)

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", str(self._function))

    @cached_property
    def _compiled(self) -> Callable[..., Tensor]:
        # Its advice is about settings that hetfl leaves as they are, such as how products are rounded.
        warnings.filterwarnings("ignore", module=r"torch\._inductor")
        limits = torch.compiler.config
        limits.recompile_limit = max(limits.recompile_limit, PROGRAMS)
        return torch.compile(self._function, dynamic=False if self._shapes else None)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within, functions are called as they are, since gradients of what is compiled have no gradients."""
    _plain.append(True)
    try:
        yield
    finally:
        _plain.pop()


def compilable(given: Iterable[object]) -> bool:
    """Whether a function of these arguments is compiled."""
    return any(isinstance(value, Tensor) and value.is_cuda for value in given)
