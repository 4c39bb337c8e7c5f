"""Registers the operators of 8-bit products that are one kernel each on a GPU: the product, and the rotations by it.

Operators, so that compiled blocks stay whole graphs and graphs made on one machine know nothing of Triton. On an NVIDIA
GPU with Triton they are `backend.memory.triton_product` and `triton_rotation`; elsewhere the same arithmetic by torch's
own operations, exact for sums of int8. They have no gradients: who calls them computes its own.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from backend.memory.quantized_formats import quantize_rows
from backend.memory.rotation import rotated

_LIBRARY = torch.library.Library("monotile", "FRAGMENT")
_HALVES = (torch.bfloat16, torch.float16)


def _register(name: str, schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    # not by torch.library.custom_op, whose checks take longer than a small kernel runs
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"monotile::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.monotile, name)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _has_kernels(tensor: Tensor) -> bool:
    # AMD's GPUs are "cuda" too, and the kernels were written for NVIDIA's
    return tensor.is_cuda and torch.version.hip is None and _has_triton()


def _product(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, dtype: torch.dtype) -> Tensor:
    if _has_kernels(a):
        from backend.memory import triton_product

        return triton_product.scaled_product(a.contiguous(), b, rows, columns, dtype)
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


def _fake_product(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.empty(a.shape[0], b.shape[1], dtype=dtype, device=a.device)


def _rows(x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    if _has_kernels(x) and x.dtype in _HALVES:
        from backend.memory import triton_rotation

        return triton_rotation.rotated_rows(x.contiguous(), turn)
    return quantize_rows(rotated(x.float(), turn), "int8")


def _fake_rows(x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    numbers = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    return numbers, torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)


def _weight(numbers: Tensor, scale: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
    if _has_kernels(numbers) and dtype in _HALVES:
        from backend.memory import triton_rotation

        return triton_rotation.turned_back(numbers, scale, turn, dtype)
    return (rotated(numbers.float(), turn) * scale[:, None]).to(dtype)


def _fake_weight(numbers: Tensor, scale: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(numbers.shape, dtype=dtype, device=numbers.device)


_scaled_product = _register(
    "scaled_product",
    "(Tensor a, Tensor b, Tensor rows, Tensor? columns, ScalarType dtype) -> Tensor",
    _product,
    _fake_product,
)
_rotated_rows = _register("rotated_rows", "(Tensor x, Tensor turn) -> (Tensor, Tensor)", _rows, _fake_rows)
_turned_back = _register(
    "turned_back", "(Tensor numbers, Tensor scale, Tensor turn, ScalarType dtype) -> Tensor", _weight, _fake_weight
)
# an operator of unknown cost is free to repeat to the partitioner
register_flop_formula(_scaled_product)(lambda a, b, rows, columns, dtype, out_shape=None, **_: 2 * a[0] * a[1] * b[1])


def scaled_product(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``(a @ b) * rows * columns`` (M, N) in `dtype`, of 8-bit `a` (M, K) and `b` (K, N), strided in any way.

    rows: (M, 1) float32. columns: (N,) float32, or None for ones.
    """
    return _scaled_product(a, b, rows, columns, dtype)


def rotated_rows(x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """`x` (rows, columns), rotated by `turn` and quantised row by row: int8 of that shape, scale (rows, 1) float32."""
    return _rotated_rows(x, turn)


def turned_back(numbers: Tensor, scale: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight (out, in) in `dtype` whose rows, rotated by `turn`, are int8 `numbers` (out, in) * `scale` (out,)."""
    return _turned_back(numbers, scale, turn, dtype)
