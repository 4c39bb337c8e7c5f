"""Computes the matrix product with a frozen quantised weight, forward and backward, in traceable operations.

Three ways: the weight dequantised on the fly, int8 times int8 (``_int_mm``), fp8 times fp8 (``_scaled_mm``). Only the
quantised weight is kept for the backward, never a dequantised one; the input is not needed, as the weight has no
gradient. Activations and gradients of the 8-bit ways are quantised row by row inside the graph, where the compiler
joins it to what comes before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backend.memory.quantized_formats import dequantize, dequantize_again, quantize_rows

MIN_ROWS = 17
"""Fewer rows than this CUDA's int8 product refuses; so few gain nothing from 8 bits either."""


class Dequantised(torch.autograd.Function):
    """``x @ W^T`` with W brought to the format of `x`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, kind: str) -> Tensor:
        """(rows, in) -> (rows, out), in the format of `x`."""
        ctx.save_for_backward(weight, scale)
        ctx.kind = kind
        return x @ dequantize(weight, scale, kind, x.dtype).t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of `x`."""
        weight, scale = ctx.saved_tensors
        return grad @ dequantize_again(weight, scale, ctx.kind, grad.dtype), None, None, None


class Int8(torch.autograd.Function):
    """``x @ W^T`` of rowwise quantised `x` and W, summed in int32: exact but for the rounding to 8 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        """(rows, in) -> (rows, out), in the format of `x`."""
        ctx.save_for_backward(weight, scale)
        numbers, rows = quantize_rows(x, "int8")
        return _in(torch._int_mm(numbers, weight.t()).float() * rows * scale, x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Gradient of `x`, in 8 bits too; the weight's scales lie along the summed axis: they go into `grad`."""
        weight, scale = ctx.saved_tensors
        numbers, rows = quantize_rows(grad.float() * scale, "int8")
        product = torch._int_mm(numbers, _columns_first(weight))
        return _in(product.float() * rows, grad.dtype), None, None


class Fp8(torch.autograd.Function):
    """``x @ W^T`` of rowwise scaled float8_e4m3fn `x` and W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        """(rows, in) -> (rows, out), in the format of `x`."""
        ctx.save_for_backward(weight, scale)
        numbers, rows = quantize_rows(x, "fp8")
        return _in(_scaled(numbers, weight.t(), rows, scale[None], fast=True), x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Gradient of `x`, in 8 bits too, summed in full precision."""
        weight, scale = ctx.saved_tensors
        numbers, rows = quantize_rows(grad.float() * scale, "fp8")
        columns = torch.ones(1, weight.shape[1], device=weight.device)
        product = _scaled(numbers, _columns_first(weight), rows, columns, fast=False)
        return _in(product, grad.dtype), None, None


def _in(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Compiled by torch 2.11, a conversion that changes nothing cuts a function's output off from its backward: the
    # gradient is zero. (Seen with fp8 products in bf16; 2.13 does not.)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _scaled(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, fast: bool) -> Tensor:
    # bf16 is the one result that rowwise scaled kernels give on every GPU
    return torch._scaled_mm(
        a, b, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=fast and a.is_cuda
    )


def _columns_first(weight: Tensor) -> Tensor:
    """`weight` with its columns contiguous, the one layout that 8-bit products take as their right side."""
    return weight.t().contiguous().t()


def product(x: Tensor, weight: Tensor, scale: Tensor, kind: str, compute: str) -> Tensor:
    """``x @ W^T`` (rows, out) of `x` (rows, in) with the quantised weight (`weight`, `scale`) of format `kind`.

    compute: "bf16" dequantises to the format of `x`; "int8" and "fp8", which need a weight of that format, multiply in
    8 bits where there are rows enough.
    """
    if compute == "bf16" or x.shape[0] < MIN_ROWS:
        return Dequantised.apply(x, weight, scale, kind)
    return Int8.apply(x, weight, scale) if compute == "int8" else Fp8.apply(x, weight, scale)
