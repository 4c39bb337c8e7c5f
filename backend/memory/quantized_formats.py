"""Quantizes weights to 8 and 4 bits: rowwise scaled fp8 and int8, and NF4.

fp8 and int8: ``weight (out, in) = 8-bit number * scale (out,)``, one scale a row, so that no row's outlier costs
another row its precision, and so that a matrix product of the 8-bit numbers is scaled after it. NF4 (Dettmers et al.,
arXiv 2305.14314) by bitsandbytes' registered operators: 16 levels, a scale for each 64 weights.
Scales are numbers that bf16 holds exactly: dequantising to bf16 rounds once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.config.packages import install_remedy, load_problem
from backend.plan.memory.weight_bytes import MULTIPLE, NF4_BLOCK

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
INT8_MAX = 127
# Of an all-zero row, which must not divide by zero.
_SMALLEST = 1e-12
_AT_ONCE = 1 << 20


def quantize(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """`weight` (out, in), any floating format, as (numbers, scale), on its device.

    fp8: (out, in) float8_e4m3fn. int8: (out, in) int8. Both with a scale (out,) float32. nf4: two weights a byte,
    (out, in / 2) int8, with a scale (out * in / 64,) bf16. Refused for nf4 without bitsandbytes.
    """
    rows, columns = weight.shape
    if kind == "nf4":
        require_bitsandbytes()
        numbers = weight.new_empty(rows, columns // 2, dtype=torch.int8)
        scale = weight.new_empty(rows * columns // NF4_BLOCK, dtype=torch.bfloat16)
    else:
        numbers = weight.new_empty(rows, columns, dtype=FP8 if kind == "fp8" else torch.int8)
        scale = weight.new_empty(rows, dtype=torch.float32)
    # by some rows at a time: the float32 copies would else be larger than all that is made
    step = max(MULTIPLE, _AT_ONCE // columns // MULTIPLE * MULTIPLE)
    for start in range(0, rows, step):
        part, end = weight[start : start + step].float(), min(start + step, rows)
        scales = slice(start * scale.numel() // rows, end * scale.numel() // rows)
        numbers[start:end], scale[scales] = _nf4_of(part) if kind == "nf4" else _rows_of(part, kind)
    return numbers, scale


def _rows_of(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    top = FP8_MAX if kind == "fp8" else INT8_MAX
    scale = (weight.abs().amax(dim=1) / top).clamp(min=_SMALLEST).bfloat16().float()
    return rounded(weight / scale[:, None], kind), scale


def _nf4_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    packed, scale = torch.ops.bitsandbytes.quantize_4bit(weight, NF4_BLOCK, "nf4", torch.uint8)
    # int8 and not uint8: transformers' T5 casts its activations to the format of any weight but int8
    return packed.view(torch.int8).view(weight.shape[0], -1), scale.bfloat16()


def rounded(numbers: Tensor, kind: str) -> Tensor:
    """float32 `numbers`, already scaled, as the nearest 8-bit ones."""
    if kind == "fp8":
        return numbers.clamp(-FP8_MAX, FP8_MAX).to(FP8)
    return numbers.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)


def quantize_rows(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Activations `x` (rows, features) as (8-bit numbers of that shape, scale (rows, 1) float32), row by row.

    A row knows nothing of the others: padding, whatever is in it, changes no real token.
    """
    x = x.float()
    top = FP8_MAX if kind == "fp8" else INT8_MAX
    scale = (x.abs().amax(dim=1, keepdim=True) / top).clamp(min=_SMALLEST)
    return rounded(x / scale, kind), scale


def dequantize(numbers: Tensor, scale: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """The weight (out, in) in `dtype`."""
    if kind == "nf4":
        return _nf4(numbers, scale, [numbers.shape[0], numbers.shape[1] * 2], dtype)
    return numbers.to(dtype) * scale.to(dtype)[:, None]


def dequantize_again(numbers: Tensor, scale: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """As `dequantize`, for the backward: in other operations, on purpose.

    Compiled, forward and backward are one graph first, in which equal operations are made once. The dequantised weight
    would then be kept from the forward to the backward, in every layer: what quantising was to save.
    """
    if kind == "nf4":
        return _nf4(numbers.reshape(-1, 1), scale[:, None], [numbers.shape[0], numbers.shape[1] * 2], dtype)
    return (numbers.t().to(dtype) * scale.to(dtype)).t()


def _nf4(packed: Tensor, scale: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    return torch.ops.bitsandbytes.dequantize_4bit(
        packed.view(torch.uint8), scale.float().reshape(-1), NF4_BLOCK, "nf4", shape, dtype
    )


def require_bitsandbytes() -> None:
    """Load bitsandbytes' operators. Refused, with the fix, where it is missing or can't be loaded."""
    if problem := load_problem("bitsandbytes"):
        remedy = f"{install_remedy('bitsandbytes', problem)}; or choose int8."
        raise Refused(f"nf4 needs the package bitsandbytes, which {problem}", remedy, "memory.base_quantization")
