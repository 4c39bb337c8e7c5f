"""Computes attention to text whose zero padding is attended: rows of zeros act as attention sinks, and may be trimmed.

A zero row has a zero key and a zero value (no layer before them has a bias), so each adds exp(0) to the softmax's
denominator and nothing else. n of them weigh as much as one with the logit bias log(n), or as what a flash kernel's
sum is corrected by (`backend.shapes.flash_kernels`: removing a negative number of zero keys adds them). Both are exact
in output and gradients. How many rows a caption was trimmed to is data, not shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backend.families.anima.facts import PADDED_TO
from backend.models.common.sink_keys import with_sinks
from backend.shapes import padding
from backend.shapes.attention_routes import Route, Sink, plain_attention
from backend.shapes.shape_runtime import ShapeRuntime


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
    words, bias = with_sinks(words, lengths, PADDED_TO)
    return words, bias, size


def attend(route: Route, q: Tensor, k: Tensor, v: Tensor, sink: Any) -> Tensor:
    """Attention of q (B, S, H, D) to k, v (B, T, H, D); `sink` as `prepare` gave it for the same route."""
    if sink is None or isinstance(sink, tuple):
        return route.attend(q, k, v, sink)
    # Varlen, segment and flex kernels take no bias; SDPA's memory-efficient one does, and text is short.
    return plain_attention(q, k, v, sink.to(q.dtype))
