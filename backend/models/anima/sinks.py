"""Computes attention to text whose zero padding is attended: rows of zeros act as attention sinks, and may be trimmed.

A zero row has a zero key and a zero value (no layer before them has a bias), so each adds exp(0) to the softmax's
denominator and nothing else. n of them weigh as much as one with the logit bias log(n), or as what a flash kernel's
sum is corrected by (`backend.shapes.flash_kernels`: removing a negative number of zero keys adds them). Both are exact
in output and gradients. How many rows a caption was trimmed to is data, not shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.families.anima.facts import PADDED_TO
from backend.shapes import padding
from backend.shapes.attention_routes import Route, Sink, plain_attention
from backend.shapes.shape_runtime import ShapeRuntime

KEYS = 8
"""Zero keys that carry the biases: their count keeps the keys a multiple of 8, as memory-efficient kernels like it, and
what one bias in bf16 rounds away the next ones give back."""


def prepare(shapes: ShapeRuntime, rows: Sequence[Tensor]) -> tuple[Tensor, Any, int]:
    """Text (B, T, D) of real rows (L_b, D), what `attend` needs to weigh it, and the tokens that the plan counts.

    Without trimming, and cut at the model's own length, rows are filled up with zeros and nothing needs weighing
    (None): any kernel takes that.
    """
    lengths = [row.shape[0] for row in rows]
    if shapes.caption_buckets is None and (shapes.text_length or PADDED_TO) == PADDED_TO >= max(lengths):
        return padding.pad_rows(rows, PADDED_TO, "right"), None, PADDED_TO
    # never more than captions are cut at, as the plan has it
    size = min(shapes.room(lengths), max(shapes.text_length or PADDED_TO, *lengths))
    runs = padding.ValidSpans((0,) * len(rows), tuple(lengths), size)
    words = padding.pad_rows(rows, size, "right", shapes.pad_fill)
    device = words.device
    if isinstance(shapes.route, Sink):
        real = padding.key_mask(runs, device).reshape(len(rows), size, 1, 1)
        pads = torch.tensor([float(size - max(PADDED_TO, length)) for length in lengths])
        return words, (real, pads.to(device, non_blocking=True)), size
    bias = torch.full((len(rows), size + KEYS), -torch.inf)
    for row, length in zip(bias, lengths, strict=True):
        row[:length] = 0.0
        row[size:] = torch.tensor(biases(max(0, PADDED_TO - length)))
    words = F.pad(words, (0, 0, 0, KEYS))
    return words, bias.to(device, words.dtype, non_blocking=True)[:, None, None, :], size


def attend(route: Route, q: Tensor, k: Tensor, v: Tensor, sink: Any) -> Tensor:
    """Attention of q (B, S, H, D) to k, v (B, T, H, D); `sink` as `prepare` gave it for the same route."""
    if sink is None or isinstance(sink, tuple):
        return route.attend(q, k, v, sink)
    # Varlen, segment and flex kernels take no bias; SDPA's memory-efficient one does, and text is short.
    return plain_attention(q, k, v, sink.to(q.dtype))


@functools.cache
def biases(count: int) -> tuple[float, ...]:
    """KEYS logit biases whose exponentials add up to `count` zero keys, each a number of bf16, fp16 and float32 alike.

    One bias would do in exact numbers; in bf16, log(448) is rounded by so much that its exponential is 1 % off.
    """
    found, left = [], float(count)
    for _ in range(KEYS):
        if left <= count * 1e-9:
            found.append(-math.inf)
            continue
        exact = math.log(left)
        # a step of bf16's 8 bits, rounded down: what is left over stays positive
        step = 2.0 ** (math.floor(math.log2(max(abs(exact), 1e-3))) - 7)
        found.append(math.floor(exact / step) * step)
        left -= math.exp(found[-1])
    return tuple(found)
