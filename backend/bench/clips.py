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
    """`clip` at the least of `counts` that holds it; its own size where none near it has exactly so many tokens."""
    width, height, frames = clip
    unit, ratio = geometry.pixels_per_token, math.log(width / height)
    whole = next(count for count in counts if count >= geometry.image_tokens(*clip))
    sides = range(unit, 2 * max(width, height), unit)
    sizes = [(across, down) for across in sides for down in sides if abs(math.log(across / down) - ratio) < 1.0]
    fitting = [size for size in sizes if geometry.image_tokens(*size, frames) == whole]
    across, down = min(fitting, key=lambda size: abs(math.log(size[0] / size[1]) - ratio), default=(width, height))
    return across, down, frames
