"""Stands a few keys in for the many equal ones of padding that a model attends, so that text may be trimmed.

What a model sees behind its caption is one and the same row many times over, so each block makes one and the same key k
and value v of all of them. n such keys add n exp(q k) to a softmax's denominator and n exp(q k) v to its sum, as one
with the logit bias log(n) does. Exact in output and gradients; how many rows a caption lacks is data, not shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

KEYS = 8
"""Keys that carry the biases: their count keeps the keys a multiple of 8, as memory-efficient kernels like it, and
what one bias in bf16 rounds away the next ones give back."""


def with_sinks(words: Tensor, lengths: Sequence[int], padded_to: int) -> tuple[Tensor, Tensor]:
    """Text (B, T + KEYS, D) with zero rows behind it, and the bias (B, 1, 1, T + KEYS) of its keys, in its dtype.

    words: (B, T, D), of which the first of `lengths` are real; the others are masked. Those behind weigh as many zero
    rows as a caption has less than `padded_to`.
    """
    size = words.shape[1]
    bias = torch.full((len(lengths), size + KEYS), -torch.inf)
    for row, length in zip(bias, lengths, strict=True):
        row[:length] = 0.0
        row[size:] = torch.tensor(biases(max(0, padded_to - length)))
    on_device = bias.to(words.device, words.dtype, non_blocking=True)
    return F.pad(words, (0, 0, 0, KEYS)), on_device[:, None, None, :]


@functools.cache
def biases(count: int) -> tuple[float, ...]:
    """KEYS logit biases whose exponentials add up to `count` keys, each a number of bf16, fp16 and float32 alike.

    One bias would do in exact numbers; in bf16, log(448) is rounded by so much that its exponential is 1 % off.
    """
    result, left = [], float(count)
    for _ in range(KEYS):
        if left <= count * 1e-9:
            result.append(-math.inf)
            continue
        exact = math.log(left)
        # a step of bf16's 8 bits, rounded down: what is left over stays positive
        step = 2.0 ** (math.floor(math.log2(max(abs(exact), 1e-3))) - 7)
        result.append(math.floor(exact / step) * step)
        left -= math.exp(result[-1])
    return tuple(result)
