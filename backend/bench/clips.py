"""Reads the clip sizes that a video model is measured at, and finds their static and their exact token counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from backend.families.spec import Geometry

Clip = tuple[int, int, int]
"""Width and height in px, and frames."""

_LEAST_FILLED = 0.9
"""Share of a static count that a clip must fill to be padded to it: a smaller one gets a count of its own."""


def parse_clips(text: str) -> tuple[Clip, ...]:
    """``832x480x81,832x480x49`` as clips. ValueError for another form."""
    clips = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        numbers = part.split("x")
        if len(numbers) != 3 or not all(number.isdigit() and int(number) for number in numbers):
            raise ValueError(f"--clips has {part!r}; write WIDTHxHEIGHTxFRAMES by comma, such as 832x480x81")
        width, height, frames = map(int, numbers)
        clips.append((width, height, frames))
    return tuple(clips)


def bucket_name(bucket: Iterable[int]) -> str:
    """``832x480x81``."""
    return "x".join(map(str, bucket))


def static_counts(tokens: Sequence[int]) -> tuple[int, ...]:
    """The token counts that clips of these `tokens` are padded to, ascending: each clip to the least that holds it."""
    counts: list[int] = []
    for count in sorted(set(tokens), reverse=True):
        if not counts or count < _LEAST_FILLED * counts[-1]:
            counts.append(count)
    return tuple(reversed(counts))


def exact_clips(clips: Sequence[Clip], geometry: Geometry) -> list[Clip]:
    """For each clip the size nearest in proportion that has exactly a static count of tokens."""
    counts = static_counts([geometry.image_tokens(*clip) for clip in clips])
    return [_exact(clip, counts, geometry) for clip in clips]


def _exact(clip: Clip, counts: Sequence[int], geometry: Geometry) -> Clip:
    """`clip` at the least of `counts` that holds it."""
    width, height, frames = clip
    unit = geometry.pixels_per_token
    whole = next(count for count in counts if count >= geometry.image_tokens(*clip))
    count = whole // geometry.latent_frames(frames)
    sides = [(across, count // across) for across in range(1, count + 1) if count % across == 0]
    across, down = min(sides, key=lambda side: abs(math.log(side[0] / side[1]) - math.log(width / height)))
    return across * unit, down * unit, frames
