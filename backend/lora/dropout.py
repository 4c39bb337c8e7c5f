"""Leaves out parts of a LoRA in a training step: some of its inputs, some of its ranks, or all of it.

All act only where gradients are made. Validation and samples run in train mode under ``no_grad``, so that they share
one graph a block class with nothing but the grad mode to tell them apart; switching modules to eval mode would cost a
recompile of every block. For the same reason all is drawn as tensors, within the graph: a number on the host that
decides whether a LoRA runs is a graph break in every layer, and two graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


def acts(module: nn.Module) -> bool:
    """Whether dropout acts in `module` now."""
    return module.training and torch.is_grad_enabled()


class TrainingDropout(nn.Module):
    """Dropout of single elements."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """`x`, with a share `p` of its elements zeroed and the rest scaled up while gradients are made."""
        return nn.functional.dropout(x, self.p, training=acts(self))


@dataclass(frozen=True)
class LowDropout:
    """A forward hook of A that leaves out what a LoRA adds, as sd-scripts' ``networks/lora.py`` does.

    ranks: the share of ranks that is left out, drawn for each row of a batch, while the rest is scaled up
    (rank_dropout). whole: how often all of the layer's LoRA is, while the rest is not scaled up (module_dropout).
    """

    ranks: float
    whole: float

    def __call__(self, a: nn.Module, _: object, low: Tensor) -> Tensor:
        """A x: (rows, ..., rank), of a convolution (rows, rank, height, width)."""
        if not acts(a):
            return low
        if self.ranks:
            low = low * kept_ranks(low, self.ranks, 1 if isinstance(a, nn.Conv2d) else -1) * (1 / (1 - self.ranks))
        return low * kept(low, self.whole) if self.whole else low


def kept_ranks(low: Tensor, p: float, axis: int) -> Tensor:
    """1 for what stays of `low` and 0 for what goes, a draw for each row and each place along `axis`."""
    shape = [1] * low.ndim
    shape[0], shape[axis] = low.shape[0], low.shape[axis]
    return (torch.rand(shape, device=low.device) > p).to(low.dtype)


def kept(like: Tensor, p: float) -> Tensor:
    """0 with the probability `p`, else 1; shape ()."""
    return (torch.rand((), device=like.device) >= p).to(like.dtype)
