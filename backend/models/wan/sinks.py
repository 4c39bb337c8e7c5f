"""Makes the text of Wan's blocks: a caption's own rows, and the zero rows behind it that stand there without a mask.

The text embedder makes one and the same row of every zero row, so that they may be trimmed exactly
(`backend.models.common.sink_keys`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from backend.families.wan.facts import PADDED_TO
from backend.models.common.sink_keys import with_sinks
from backend.shapes import padding
from backend.shapes.attention_routes import Route, plain_attention
from backend.shapes.shape_runtime import ShapeRuntime


def prepare(shapes: ShapeRuntime, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, int]:
    """Text (B, T, D) of real rows (L_b, D), the bias of its keys, and the tokens that the plan counts.

    Without trimming, and cut at the model's own length, rows are filled up with zeros and nothing needs weighing
    (None): any kernel takes that.
    """
    lengths = [row.shape[0] for row in rows]
    if shapes.caption_buckets is None and (shapes.text_length or PADDED_TO) == PADDED_TO >= max(lengths):
        return padding.pad_rows(rows, PADDED_TO, "right"), None, PADDED_TO
    # never more than captions are cut at, as the plan has it
    size = min(shapes.room(lengths), max(shapes.text_length or PADDED_TO, *lengths))
    return *with_sinks(padding.pad_rows(rows, size, "right", shapes.pad_fill), lengths, PADDED_TO), size


def attend(route: Route, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attention of q (B, S, H, D) to k, v (B, T, H, D); `bias` as `prepare` gave it."""
    if bias is None:
        return route.attend(q, k, v, None)
    # No flash kernel takes a bias; SDPA's memory-efficient one does, and text is short.
    return plain_attention(q, k, v, bias.to(q.dtype))
