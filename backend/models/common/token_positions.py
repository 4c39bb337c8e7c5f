"""Places tokens on the axes of a rotary embedding, and looks their cos and sin up in a model's own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from backend.shapes.rotary_embedding import Rope

Sizes = Sequence[Sequence[tuple[int, ...]]]
"""Of each row the latents' (h, w), of clips (f, h, w): of what is made first, then of its control pictures."""


def picture_places(sizes: Sizes, text: int, image: int, patch: int, most: int | None = None) -> Tensor:
    """(B, text + image, 3) int64 on the CPU: picture, row and column of each image token; 0 for text and padding.

    The picture that is made has number 0, control pictures 1, 2, ... behind it, at most `most`. patch: side of a token
    in latent cells.
    """
    ids = torch.zeros(len(sizes), text + image, 3, dtype=torch.long)
    for index, pictures in enumerate(sizes):
        start = text
        for number, (height, width) in enumerate(pictures):
            rows, columns = height // patch, width // patch
            end = start + rows * columns
            ids[index, start:end, 0] = number if most is None else min(number, most)
            ids[index, start:end, 1] = torch.arange(rows).repeat_interleave(columns)
            ids[index, start:end, 2] = torch.arange(columns).repeat(rows)
            start = end
    return ids


def look_up(tables: Rope, places: Tensor, axes: Sequence[int]) -> Rope:
    """cos and sin (B, S, D) of `places` (B, S, 3), from tables (positions, D) whose D numbers belong to `axes`."""
    bounds = [0, *accumulate(axes)]

    def part(table: Tensor) -> Tensor:
        spans = [table[places[..., axis], bounds[axis] : bounds[axis + 1]] for axis in range(len(axes))]
        return torch.cat(spans, dim=-1)

    return part(tables[0]), part(tables[1])


def kept_tables(denoiser: nn.Module, device: torch.device, count: int, make: Callable[[], Rope]) -> Rope:
    """The model's tables of at least `count` positions on `device`, made once and again where they don't suffice."""
    tables: Rope | None = denoiser.__dict__.get("_monotile_rope")
    if tables is None or tables[0].shape[0] < count or tables[0].device != device:
        tables = make()
        denoiser._monotile_rope = tables
    return tables
