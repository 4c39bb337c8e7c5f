"""Makes a block class one graph: code of its own, and a first block whose inputs look like every other one's."""

from __future__ import annotations

from types import FunctionType
from typing import Any

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


def own_code(function: Any, kind: str, number: int) -> FunctionType:
    """`function` with a code object of its own, for block class `kind`, the `number`-th of those that share it.

    torch keeps graphs, and what it learnt of sizes, by code object.
    """
    code = function.__code__
    own = code.replace(co_name=f"{code.co_name}_{kind}", co_firstlineno=code.co_firstlineno + number)
    copied = FunctionType(own, function.__globals__, own.co_name, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
