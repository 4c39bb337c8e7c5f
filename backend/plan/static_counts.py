"""Chooses the token counts that static pads to: one for pictures, and one for clips of each length in use.

With a single count a picture would be padded to the tokens of the longest clip; with one a length, pictures and clips
can be mixed in a run for a graph each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Sample sizes up to this much above a count raise it: one graph less for little padding.
_RAISE_FOR_SAMPLES = 1.05
# A sample that would be padded by more than this has a count of its own, and so a graph of its own.
_MUCH_PADDING = 1.25


def padded_size(tokens: int, counts: Sequence[int]) -> int:
    """Image tokens of a row as the blocks see it: the least of `counts`, ascending, that holds it, else its own."""
    return next((count for count in counts if count >= tokens), tokens)


def static_counts(asked: int | None, rows: Iterable[tuple[int, int]], samples: Iterable[int]) -> tuple[int, ...]:
    """The counts, ascending; none where there is nothing to train.

    asked: as the settings have it, of one latent frame. rows: (latent frames, image tokens) of all that is trained and
    measured. samples: image tokens of each sample.
    """
    largest: dict[int, int] = {}
    for frames, tokens in rows:
        largest[frames] = max(tokens, largest.get(frames, 0))
    if asked is not None:
        # rows of a model of sections have more tokens than their latent frames say
        lengths = (largest or {1: 0}).items()
        return tuple(sorted({asked if frames == 1 else max(asked * frames, most) for frames, most in lengths}))
    counts = set(largest.values())
    for drawn in sorted(samples):
        near = [count for count in counts if count < drawn <= count * _RAISE_FOR_SAMPLES]
        above = [count for count in counts if count >= drawn]
        if near:
            counts = counts - {max(near)} | {drawn}
        elif above and drawn > min(counts) and min(above) > drawn * _MUCH_PADDING:
            counts = counts | {drawn}
    return tuple(sorted(counts))
