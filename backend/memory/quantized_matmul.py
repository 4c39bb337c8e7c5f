"""Computes the matrix product with a frozen quantised weight, forward and backward, in traceable operations.

The weight is dequantised on the fly, or multiplied in 8 bits (`backend.memory.product_ways` says by which kernel).
Only the quantised weight, or its transposed copy, is kept for the backward, never a dequantised one; the input is not
needed, as the weight has no gradient. Activations and gradients are quantised row by row inside the graph, where the
compiler joins it to what comes before; the scales of "scaled" products are applied outside of them, where it joins them
to bias and LoRA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backend.memory.product_operators import rotated_rows, scaled_product, turned_back
from backend.memory.quantized_formats import dequantize, dequantize_again, quantize_rows
from backend.memory.rotation import rotated

MIN_ROWS = 17
"""Fewer rows than this CUDA's int8 product refuses; so few gain nothing from 8 bits either."""


class QuantizedProduct(torch.autograd.Function):
    """``x @ W^T`` with a quantised W."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        copy: Tensor | None,
        turn: Tensor | None,
        kind: str,
        forward: str,
        backward: str,
    ) -> Tensor:
        """(rows, in) -> (rows, out), in the format of `x`.

        copy: W's numbers as (in, out). turn: the matrix that W's rows were rotated by. The rest as in `Way`.
        """
        ctx.is_copy = copy is not None and backward != "dequantised"
        kept = copy if ctx.is_copy else weight
        ctx.save_for_backward(kept, scale, *(() if turn is None else (turn,)))
        ctx.kind, ctx.kernel = kind, backward
        if forward == "dequantised":
            return x @ dequantize(weight, scale, kind, x.dtype).t()
        numbers, rows = quantize_rows(x, kind) if turn is None else rotated_rows(x, turn)
        return _in(_multiplied(numbers, weight.t(), rows, scale, forward, x.dtype), x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of `x`; the weight's scales lie along the summed axis: in 8 bits they go into `grad`."""
        kept, scale, *turns = ctx.saved_tensors
        if ctx.kernel == "dequantised":
            # turning the weight back costs less than turning the gradient
            weight = (
                turned_back(kept, scale, turns[0], grad.dtype)
                if turns
                else dequantize_again(kept, scale, ctx.kind, grad.dtype)
            )
            return grad @ weight, *(None,) * 7
        numbers, rows = quantize_rows(grad.float() * scale, ctx.kind)
        right = kept.t() if ctx.is_copy else kept
        product = _in(_multiplied(numbers, right, rows, None, ctx.kernel, grad.dtype), grad.dtype)
        return rotated(product, turns[0]) if turns else product, *(None,) * 7


def _multiplied(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, kernel: str, dtype: torch.dtype) -> Tensor:
    """``(a @ b) * rows * columns`` (M, N) of 8-bit `a` (M, K) and `b` (K, N); rows (M, 1), columns (N,) or None.

    In `dtype`, float32 or bf16.
    """
    if kernel == "fused":
        return scaled_product(a, b, rows, columns, dtype)
    # torch 2.11 has no rowwise product on a CPU, where the other's is as good
    if kernel == "rowwise" and a.is_cuda:
        # bf16 is the one result that rowwise scaled kernels give on every GPU
        width = b.new_ones(1, b.shape[1], dtype=torch.float32) if columns is None else columns[None]
        return torch._scaled_mm(a, b, rows, width, out_dtype=torch.bfloat16, use_fast_accum=True)
    one = rows.new_ones(())
    # The sums are far below bf16's largest number: depth times 448 squared.
    sums = torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=a.is_cuda).float() * rows
    return sums if columns is None else sums * columns


def _in(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Compiled by torch 2.11, a conversion that changes nothing cuts a function's output off from its backward: the
    # gradient is zero. (Seen with fp8 products in bf16; 2.13 does not.)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def product(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    copy: Tensor | None,
    turn: Tensor | None,
    kind: str,
    kernels: tuple[str, str],
) -> Tensor:
    """``x @ W^T`` (rows, out) of `x` (rows, in) with the quantised weight (`weight`, `scale`) of format `kind`.

    copy: the weight's numbers transposed, where they are kept. turn: the matrix that the weight's rows were rotated by,
    None for none. kernels: forward's and backward's, as `backend.memory.product_ways.Way` names them. 8-bit products,
    which need a weight of their format, are for rows enough; fewer are multiplied by the dequantised weight.
    """
    forward, backward = kernels
    if x.shape[0] < MIN_ROWS or forward == "dequantised":
        x = x if turn is None else rotated(x, turn)
        return QuantizedProduct.apply(x, weight, scale, None, None, kind, "dequantised", "dequantised")
    return QuantizedProduct.apply(x, weight, scale, copy, turn, kind, forward, backward)
