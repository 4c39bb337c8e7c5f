"""Rotates and quantises rows, and dequantises and rotates weights back, each in one Triton kernel: for NVIDIA GPUs.

One program works on a row, as a matrix of groups by the columns of a group, so that a row is read and written once.
Nothing imports this module where Triton is missing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows_kernel(x, turn, numbers, scale, columns, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group, at = tl.arange(0, GROUPS), tl.arange(0, GROUP)
    place = row * columns + group[:, None] * GROUP + at[None, :]
    inside = (group * GROUP < columns)[:, None] & (at < GROUP)[None, :]
    matrix = tl.load(turn + at[:, None] * GROUP + at[None, :])
    turned = tl.dot(tl.load(x + place, mask=inside, other=0.0), matrix)
    step = tl.maximum(tl.max(tl.max(tl.abs(turned), 1), 0) / 127.0, 1e-12)
    # adding and taking away 1.5 * 2^23 leaves the nearest whole number
    whole = (turned / step + 12582912.0) - 12582912.0
    tl.store(numbers + place, whole.to(tl.int8), mask=inside)
    tl.store(scale + row, step)


@triton.jit
def _weight_kernel(numbers, scale, turn, out, columns, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group, at = tl.arange(0, GROUPS), tl.arange(0, GROUP)
    place = row * columns + group[:, None] * GROUP + at[None, :]
    inside = (group * GROUP < columns)[:, None] & (at < GROUP)[None, :]
    matrix = tl.load(turn + at[:, None] * GROUP + at[None, :])
    turned = tl.dot(tl.load(numbers + place, mask=inside, other=0).to(matrix.dtype), matrix)
    tl.store(out + place, (turned * tl.load(scale + row)).to(out.dtype.element_ty), mask=inside)


def rotated_rows(x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """`x` (rows, columns) bf16 or fp16, contiguous, rotated and quantised: (int8 of that shape, (rows, 1) float32)."""
    rows, columns = x.shape
    numbers = torch.empty(rows, columns, dtype=torch.int8, device=x.device)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    groups, warps = _groups(columns, turn)
    with torch.cuda.device(x.device):
        _rows_kernel[(rows,)](
            x, turn.to(x.dtype), numbers, scale, columns, GROUPS=groups, GROUP=turn.shape[0], num_warps=warps
        )
    return numbers, scale


def turned_back(numbers: Tensor, scale: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight (out, in) in `dtype`, bf16 or fp16, of rotated int8 `numbers` (out, in) and `scale` (out,)."""
    rows, columns = numbers.shape
    out = torch.empty(rows, columns, dtype=dtype, device=numbers.device)
    groups, warps = _groups(columns, turn)
    with torch.cuda.device(out.device):
        _weight_kernel[(rows,)](
            numbers, scale, turn.to(dtype), out, columns, GROUPS=groups, GROUP=turn.shape[0], num_warps=warps
        )
    return out


def _groups(columns: int, turn: Tensor) -> tuple[int, int]:
    """Groups of a row, as a power of two that a product takes, and warps for them."""
    groups = max(16, triton.next_power_of_2(columns // turn.shape[0]))
    return groups, 8 if groups >= 128 else 4
