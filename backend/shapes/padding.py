"""Pads rows of unequal length to one rectangle, with one contiguous valid span a row.

Text is padded on the left and image on the right, so that joint attention sees [pad | text | image | pad]. The run's
bounds are data, not shape: whatever the lengths, the tensors keep their sizes and one graph serves them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import register_pytree_node

FLEX_BLOCK = 128


@dataclass(frozen=True)
class ValidSpans:
    """Valid runs of a batch: row b holds real tokens in [start[b], end[b]) of `length` positions."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    length: int

    @property
    def padded(self) -> bool:
        """True where at least one position of one row is padding."""
        return any(start > 0 or end < self.length for start, end in zip(self.start, self.end, strict=True))


def joint_spans(
    text_lengths: Sequence[int], image_lengths: Sequence[int], text_size: int, image_size: int
) -> ValidSpans:
    """Runs of [pad | text | image | pad] rows, from the real lengths and the padded sizes, in tokens."""
    return ValidSpans(
        tuple(text_size - length for length in text_lengths),
        tuple(text_size + length for length in image_lengths),
        text_size + image_size,
    )


def pad_rows(rows: Sequence[Tensor], size: int, side: str, fill: float = 0.0) -> Tensor:
    """Stack rows (n_b, D) of one dtype into (B, size, D), padded on the `side` "left" or "right" with `fill`.

    Rows that fit already are stacked as they are. ValueError when a row is longer than `size`.
    """
    longest = max(row.shape[0] for row in rows)
    if longest > size:
        raise ValueError(f"a row of {longest} tokens does not fit {size}")
    if all(row.shape[0] == size for row in rows):
        return torch.stack(list(rows))
    first = rows[0]
    out = first.new_full((len(rows), size, *first.shape[1:]), fill)
    for index, row in enumerate(rows):
        begin = size - row.shape[0] if side == "left" else 0
        out[index, begin : begin + row.shape[0]] = row
    return out


def _bounds(runs: ValidSpans, device: torch.device) -> tuple[Tensor, Tensor]:
    """Start and end of each row's run, (B,) int32 on `device`; copied without waiting for the device."""
    both = torch.tensor([runs.start, runs.end], dtype=torch.int32)
    both = both.to(device, non_blocking=True)
    return both[0], both[1]


def key_mask(runs: ValidSpans, device: torch.device) -> Tensor:
    """(B, 1, 1, S) bool, True on real tokens. Every query sees the run, so no row of scores is masked whole."""
    start, end = _bounds(runs, device)
    at = torch.arange(runs.length, device=device)
    return ((at >= start[:, None]) & (at < end[:, None]))[:, None, None, :]


def cu_seqlens(runs: ValidSpans, device: torch.device) -> Tensor:
    """(3B + 1,) int32: cumulative bounds of pad, run, pad of each row, for varlen kernels on (B * S, H, D).

    Segments may be empty. Padding attends padding only, so it stays finite and touches nothing real.
    """
    bounds = [0]
    for row, (start, end) in enumerate(zip(runs.start, runs.end, strict=True)):
        base = row * runs.length
        bounds += [base + start, base + end, base + runs.length]
    return torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True)


def pad_counts(runs: ValidSpans, device: torch.device) -> Tensor:
    """(B,) float32: padded positions of each row."""
    counts = [runs.length - (end - start) for start, end in zip(runs.start, runs.end, strict=True)]
    return torch.tensor(counts, dtype=torch.float32).to(device, non_blocking=True)


class SpanMask:
    """Flex attention's mask of a batch, with the bounds that it follows from; made outside of compiled regions.

    A BlockMask is no tensor, and torch takes none apart. This is a pytree of its bounds, so that a pass that is given
    one can be recorded as a CUDA graph, which makes the BlockMask again out of the bounds of the batch at hand.

    start, end: (B,) int32, of each row's valid span of `length` positions.
    """

    def __init__(self, start: Tensor, end: Tensor, length: int) -> None:
        self.start, self.end, self.length = start, end, length
        # Whoever only looks at the parts of a pytree puts other things in their places.
        whole = isinstance(start, Tensor) and isinstance(end, Tensor)
        self.block_mask = _block_mask(start, end, length) if whole else None


def span_mask(runs: ValidSpans, device: torch.device) -> SpanMask:
    """The mask of flex attention for these runs."""
    return SpanMask(*_bounds(runs, device), runs.length)


register_pytree_node(
    SpanMask, lambda mask: ([mask.start, mask.end], mask.length), lambda bounds, length: SpanMask(*bounds, length)
)


def block_mask(runs: ValidSpans, device: torch.device) -> BlockMask:
    """BlockMask of flex attention for these runs; build it outside of compiled regions."""
    return _block_mask(*_bounds(runs, device), runs.length)


def _block_mask(start: Tensor, end: Tensor, length: int) -> BlockMask:
    """A query block visits the key blocks of its row's run: the inner ones whole, the (at most two) edge ones masked.

    Written from the bounds, since `create_block_mask` would first write the whole S x S mask.
    """
    device = start.device
    blocks = -(-length // FLEX_BLOCK)
    first = torch.arange(blocks, device=device, dtype=torch.int32) * FLEX_BLOCK
    touched = ((first < end[:, None]) & (first + FLEX_BLOCK > start[:, None]))[:, None, :]
    inner = ((first >= start[:, None]) & (first + FLEX_BLOCK <= end[:, None]))[:, None, :]
    # A last query block that sticks out of the sequence has no whole key blocks, as in `create_block_mask`.
    whole = inner & (first + FLEX_BLOCK <= length)[None, :, None]

    def listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Counts (B, 1, Q) and indices (B, 1, Q, K) of the chosen key blocks, chosen ones first."""
        order = torch.argsort((~blocks).to(torch.int32), dim=-1, stable=True).to(torch.int32)
        return blocks.sum(dim=-1, dtype=torch.int32)[:, None].contiguous(), order[:, None].contiguous()

    partial_count, partial_order = listed(touched & ~whole)
    whole_count, whole_order = listed(whole)

    def inside(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv >= start[b]) & (kv < end[b])

    return BlockMask.from_kv_blocks(
        partial_count,
        partial_order,
        whole_count,
        whole_order,
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=inside,
        seq_lengths=(length, length),
    )
