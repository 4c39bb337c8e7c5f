"""Compiles what an optimizer does to one tensor, so that its values are read and written once, not once an operation.

A step of a large model by single operations waits for the memory of the GPU and for the processor that starts them: on
one H200 that was half of a step of full fine-tuning at FLUX.1's width (docs/benchmarks.md, flux-full-plain).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from backend.compile import code_kinds
from backend.compile.forward_shape import RunningBlock, running

log = logging.getLogger(__name__)

_OWN_GRAPH = 1 << 22
"""Values from which a tensor's shape has a graph of its own: kernels for any size split sums as the first one needs."""
_LOW_BITS = 16
"""Bits of a float32 that bf16 has no place for."""

_RUNNING = RunningBlock("optimizer", "the optimizer's step")

Step = Callable[..., None]


@torch.no_grad()
def rounded(value: Tensor) -> Tensor:
    """`value` (float32) in bf16, rounded up or down at random so that its mean is `value`.

    What bf16 can show stays as it is, NaN and infinity too. Draws from torch's own generator of the device.
    """
    bits = value.contiguous().view(torch.int32)
    noise = torch.randint_like(bits, 1 << _LOW_BITS)
    kept = ((bits + noise) >> _LOW_BITS << _LOW_BITS).view(torch.float32)
    return torch.where(torch.isfinite(value), kept, value).to(torch.bfloat16)


def store(weight: Tensor, value: Tensor) -> None:
    """Set `weight` (bf16) to `value` (float32, as large), rounded at random."""
    weight.copy_(rounded(value))


class CompiledStep:
    """`step` compiled: any function of tensors that changes some of them in place.

    Its first argument tells which graph is used: each large shape has one of its own, all others share one for each
    number of dimensions. own_graphs: False for a function that sums nothing up, whose graph for any size serves all.
    Where torch can't compile it, it runs as it is, and the log says why.
    """

    def __init__(self, step: Step, own_graphs: bool = True) -> None:
        self._step, self._own_graphs = step, own_graphs
        self._compiled: dict[Hashable, Step] = {}
        self._failed = False
        code_kinds.register_apart(step)

    def __call__(self, weight: Tensor, *more: Any) -> None:
        """Step `weight`, which is no leaf that wants a gradient."""
        if self._failed:
            self._step(weight, *more)
            return
        try:
            with running(_RUNNING):
                self._for(weight)(weight, *more)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            # these are raised before anything ran
            self._failed = True
            log.warning("the optimizer's step is not compiled: %s", next(iter(str(error).splitlines()), ""))
            self._step(weight, *more)

    def _for(self, weight: Tensor) -> Step:
        """The compiled function for tensors like this.

        Each has code of its own: torch keeps graphs by code, few for each, and one for any size would serve large ones.
        """
        is_large = self._own_graphs and weight.numel() >= _OWN_GRAPH
        # sizes of 1 are taken as fixed, whatever the rest is
        sizes = weight.shape if is_large else tuple(size == 1 for size in weight.shape)
        key = (is_large, sizes, weight.dtype)
        if key not in self._compiled:
            self._compiled[key] = torch.compile(_twin(self._step), dynamic=not is_large, fullgraph=True)
        return self._compiled[key]


def _twin(step: Step) -> Step:
    """The same function with code of its own."""
    return FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__, step.__closure__)
