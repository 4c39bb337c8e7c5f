"""Registers the operator that multiplies 8-bit matrices and scales the sums before they are written.

An operator, so that compiled blocks stay whole graphs and graphs made on one machine know nothing of Triton. On an
NVIDIA GPU with Triton it is `backend.memory.triton_product`; elsewhere the same sums by torch's own products, exact for
int8. There is no gradient: who calls it computes its own.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

_LIBRARY = torch.library.Library("monotile", "FRAGMENT")
_FEWEST_ROWS = 17
"""Fewer rows than this CUDA's int8 product refuses."""


def _compute(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, dtype: torch.dtype) -> Tensor:
    if a.is_cuda and importlib.util.find_spec("triton") is not None:
        from backend.memory.triton_product import scaled_product

        return scaled_product(a.contiguous(), b, rows, columns, dtype)
    sums = _sums(a, b) * rows
    return (sums if columns is None else sums * columns).to(dtype)


def _sums(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` (M, N) as float32: of int8 summed in int32, of fp8 in float32."""
    if a.dtype != torch.int8:
        return a.float() @ b.float()
    if not a.is_cuda:
        return torch._int_mm(a, b).float()
    # the one layout that CUDA's product takes as its right side
    return torch._int_mm(a, b.t().contiguous().t()).float()


def _fake(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.empty(a.shape[0], b.shape[1], dtype=dtype, device=a.device)


_LIBRARY.define(
    "scaled_product(Tensor a, Tensor b, Tensor rows, Tensor? columns, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("scaled_product", _compute, "CompositeExplicitAutograd")
torch.library.register_fake("monotile::scaled_product", _fake, lib=_LIBRARY)
# an operator of unknown cost is free to repeat to the partitioner
register_flop_formula(torch.ops.monotile.scaled_product)(
    lambda a, b, rows, columns, dtype, out_shape=None, **_: 2 * a[0] * a[1] * b[1]
)


def scaled_product(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``(a @ b) * rows * columns`` (M, N) in `dtype`, of 8-bit `a` (M, K) and `b` (K, N), strided in any way.

    rows: (M, 1) float32. columns: (N,) float32, or None for ones.
    """
    return torch.ops.monotile.scaled_product(a, b, rows, columns, dtype)
