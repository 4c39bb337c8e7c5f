"""What makes the border before the first block look like every other one, so that a block class is one graph."""

from __future__ import annotations

import torch
from torch import Tensor


def with_grad(tensor: Tensor) -> Tensor:
    """The first block's input looking like every later one's.

    It requires a gradient, as a LoRA block's output does, and is no view of another tensor, as a linear layer's result
    is: where sizes are open, dynamo guards what a view looks at too.
    """
    # Within a graph of the whole model there are no borders, and nothing to make alike.
    if tensor.requires_grad or torch.compiler.is_compiling():
        return tensor
    alone = tensor.detach()
    return alone.requires_grad_() if torch.is_grad_enabled() else alone
