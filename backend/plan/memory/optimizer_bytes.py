"""Computes the bytes that a LoRA's training state takes besides its weights, by optimizer, without torch.

The figures are those of the classes behind the names in `backend.config.sections.optimizer.OPTIMIZERS`, for float32
weights; a test compares them with the optimizers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FLOAT = 4
"""Bytes of a float32."""

SMALLEST_8BIT = 4096
"""Elements below which bitsandbytes keeps a tensor's state in float32."""

BLOCK_8BIT = 256
"""Elements that share one float32 scale in bitsandbytes' 8-bit states."""

SMALLEST_PAGED = 100_000
"""Elements below which bitsandbytes does not page a tensor's state."""


@dataclass(frozen=True)
class StateKind:
    """What an optimizer keeps of a tensor (rows, columns)."""

    full: int = 0
    """float32 copies of the tensor's size."""
    eight_bit: int = 0
    """Copies in 8 bits."""
    factored: int = 0
    """Pairs of one number a row and one a column."""
    paged: bool = False
    """The driver may move it to the host when the GPU is full."""


KINDS: dict[str, StateKind] = {
    "adamw": StateKind(full=2),
    "adam": StateKind(full=2),
    "adafactor": StateKind(factored=1),
    "sgd": StateKind(),
    "rmsprop": StateKind(full=1),
    "lion": StateKind(full=1),
    "came": StateKind(full=1, factored=2),
    "prodigy": StateKind(full=4),
    "adamw_schedulefree": StateKind(full=2),
    "radam_schedulefree": StateKind(full=2),
    "adamw8bit": StateKind(eight_bit=2),
    "lion8bit": StateKind(eight_bit=1),
    "paged_adamw": StateKind(full=2, paged=True),
    "paged_adamw8bit": StateKind(eight_bit=2, paged=True),
    "paged_lion8bit": StateKind(eight_bit=1, paged=True),
}

UNKNOWN = StateKind(full=2)
"""What is assumed of a class given by its path: as much as Adam."""

_MORE_COPIES = {"amsgrad": 1, "momentum": 1, "centered": 1, "ams_bound": 1}
"""Arguments that make an optimizer keep a further float32 copy of each tensor."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes of optimizer state."""

    total: int
    pageable: int = 0
    """The part of `total` that may leave the GPU when it is full."""


def state_bytes(
    optimizer: str, shapes: Iterable[tuple[int, int]], arguments: Mapping[str, Any] | None = None
) -> StateBytes:
    """State of `optimizer` (a name of KINDS, else a class path) over tensors of these (rows, columns).

    arguments: the optimizer's further arguments, of which amsgrad, momentum and the like cost a copy each.
    """
    kind = KINDS.get(optimizer, UNKNOWN)
    copies = kind.full + sum(n for name, n in _MORE_COPIES.items() if (arguments or {}).get(name))
    total = pageable = 0
    for rows, columns in shapes:
        count = rows * columns
        size = copies * count * FLOAT + kind.factored * (rows + columns) * FLOAT
        if kind.eight_bit:
            blocks = -(-count // BLOCK_8BIT)
            each = count + blocks * FLOAT if count >= SMALLEST_8BIT else count * FLOAT
            size += kind.eight_bit * each
        total += size
        pageable += size if kind.paged and count >= SMALLEST_PAGED else 0
    return StateBytes(total, pageable)


def streamed_bytes(optimizer: str, arguments: Mapping[str, Any] | None = None) -> int:
    """Bytes a number of a matrix that `optimizer` keeps in tensors as large as it, which swapped blocks take along.

    None of what the driver pages by itself.
    """
    kind = KINDS.get(optimizer, UNKNOWN)
    if kind.paged:
        return 0
    copies = kind.full + sum(n for name, n in _MORE_COPIES.items() if (arguments or {}).get(name))
    return copies * FLOAT + kind.eight_bit


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """A tensor's shape as optimizers that keep rows and columns apart count it: of a vector, one column."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def trained_bytes(
    optimizer: str,
    shapes: Iterable[tuple[int, int]],
    arguments: Mapping[str, Any] | None = None,
    weight_dtype: str = "fp32",
    ema: bool = False,
) -> dict[str, int]:
    """Bytes on the GPU of all that belongs to the trained weights: ``weights``, ``gradients``, ``optimizer``, ``ema``.

    weight_dtype: ``network.lora_weight_dtype``; bf16 keeps float32 masters beside the weights, and float32 gradients
    beside the 16-bit ones until the backward pass ends. ema: their running mean, in float32.
    """
    shapes = list(shapes)
    count = sum(rows * columns for rows, columns in shapes)
    width = FLOAT if weight_dtype == "fp32" else FLOAT + 2
    return {
        "weights": count * width,
        "gradients": count * width,
        "optimizer": state_bytes(optimizer, shapes, arguments).total,
        "ema": count * FLOAT if ema else 0,
    }
