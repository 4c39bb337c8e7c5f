"""What makes the border before the first block look like every other one, so that a block class is one graph."""

from __future__ import annotations

import torch
from torch import Tensor


def with_grad(tensor: Tensor) -> Tensor:
    """The first block's input looking like every later one's: requiring a gradient, as a LoRA block's output does."""
    # Within a graph of the whole model there are no borders, and nothing to make alike.
    if torch.is_grad_enabled() and not tensor.requires_grad and not torch.compiler.is_compiling():
        return tensor.detach().requires_grad_()
    return tensor
