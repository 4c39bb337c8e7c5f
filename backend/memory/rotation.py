"""Rotates the inputs of a product by Hadamard matrices, which spreads outliers over a group of columns.

``x W^T = (x H)(W H)^T`` with H orthogonal: a row with one large number becomes one of many middling numbers, which
8 bits with one scale a row hold more exactly (QuaRot, arXiv 2404.00456). Groups of columns are rotated each by
itself, so that the rotation costs little beside the product.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

GROUPS = (64, 16)
"""Sizes of a group, the largest that divides a layer's inputs is taken. Powers of 4: their roots are exact in bf16.
Larger ones spread outliers further, and a row of them is no longer one tile of a kernel."""


@functools.cache
def rotation(columns: int, device: torch.device) -> Tensor | None:
    """The orthogonal symmetric matrix (group, group) bf16 for layers of `columns` inputs; None for odd sizes.

    Exact in that format. One tensor for all layers of a device.
    """
    group = next((size for size in GROUPS if columns % size == 0), None)
    return None if group is None else _hadamard(group, device)


@functools.cache
def _hadamard(group: int, device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1, device=device)
    while matrix.shape[0] < group:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / group**0.5).bfloat16()


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """`x` (rows, columns) with each group of columns rotated by `turn` (group, group), in the format of `x`."""
    group = turn.shape[0]
    return (x.reshape(-1, group) @ turn.to(x.device, x.dtype)).reshape(x.shape)
