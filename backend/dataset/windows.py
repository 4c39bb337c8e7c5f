"""Cuts clips into windows: which frames of each are trained on, how many seconds are used, and what is left out.

A clip's frames are first taken at the rate that the model was trained at, by time, so that motion keeps its speed; the
modes of extraction are those of musubi-tuner and count these frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from backend.config.sections.video import FrameExtraction
from backend.dataset.clips import ClipFacts
from backend.dataset.items import ClipReport, Window
from backend.families.spec import Geometry
from backend.families.table import family

if TYPE_CHECKING:
    from backend.config.schema import Config

# A file's rate this near to the one asked for is taken as it is, each frame once: 23.976 for 24, 29.97 for 30.
SAME_RATE = 0.01
# What a frame may lack of its time and still count: time stamps are rounded.
_ROUNDING = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipRule:
    """How clips are cut.

    lengths: in frames, ascending, each one that the family has; one for `full`, which is the most. rate: frames a
    second that are taken. stride, sample: of slide and uniform. source_rate: what each file's rate is taken to be; None
    for its own. asked: the lengths as the settings have them. geometry: of the family, which says what lengths there
    are. least: frames of the family's shortest clip.
    """

    lengths: tuple[int, ...]
    rate: float
    geometry: Geometry
    extraction: FrameExtraction = "head"
    stride: int = 1
    sample: int = 1
    source_rate: float | None = None
    asked: tuple[int, ...] = ()
    least: int = 1

    @classmethod
    def of(cls, cfg: Config) -> ClipRule | None:
        """That of a run; None for a family of pictures."""
        facts, settings = family(cfg.model.family), cfg.video
        if facts.video is None:
            return None
        geometry = facts.default_geometry
        asked = (
            [settings.max_frames]
            if settings.frame_extraction == "full"
            else settings.target_frames or [facts.video.frames]
        )
        return cls(
            lengths=tuple(sorted({geometry.whole_frames(length) for length in asked})),
            rate=settings.target_fps or facts.video.rate,
            geometry=geometry,
            extraction=settings.frame_extraction,
            stride=settings.frame_stride,
            sample=settings.frame_sample,
            source_rate=settings.source_fps,
            asked=tuple(asked),
            least=facts.video.least,
        )


def rate_within(seen: ClipFacts, rule: ClipRule) -> float:
    """Frames that are taken of each second of the file's own time."""
    own = rule.source_rate or seen.rate
    if not seen.variable and abs(own / rule.rate - 1) <= SAME_RATE:
        return seen.rate
    return rule.rate * seen.rate / own


def frames_within(seen: ClipFacts, rate: float) -> int:
    """How many frames the clip gives at `rate`, at least 1."""
    if rate == seen.rate and not seen.variable:
        return seen.frames
    return max(1, math.ceil(seen.seconds * rate - _ROUNDING))


def places(frames: int, rule: ClipRule) -> list[tuple[int, int]]:
    """(first frame, length) of each window of a clip of `frames`; at least one.

    Lengths that don't fit are left out; where none does, the longest that the family has and fits is taken from the
    beginning.
    """
    fitting = [length for length in rule.lengths if length <= frames]
    if not fitting:
        return [(0, rule.geometry.whole_frames(frames))]
    taken: dict[tuple[int, int], None] = {}
    for length in fitting:
        taken |= dict.fromkeys((first, length) for first in _starts(frames, length, rule))
    return list(taken)


def _starts(frames: int, length: int, rule: ClipRule) -> Iterable[int]:
    last = frames - length
    if rule.extraction == "chunk":
        return range(0, last + 1, length)
    if rule.extraction == "slide":
        return range(0, last + 1, rule.stride)
    if rule.extraction == "uniform" and rule.sample > 1:
        return [round(last * number / (rule.sample - 1)) for number in range(rule.sample)]
    return (0,)


def cut_clip(path: Path, seen: ClipFacts, rule: ClipRule) -> ClipReport:
    """The windows of one clip, and what is left of it."""
    rate = rate_within(seen, rule)
    frames = frames_within(seen, rate)
    if rule.extraction == "full":
        rule = replace(rule, lengths=(min(rule.lengths[-1], rule.geometry.whole_frames(frames)),))
    windows = tuple(Window(first / rate, length, rate) for first, length in places(frames, rule))
    return ClipReport(
        path=str(path),
        seconds=seen.seconds,
        rate=seen.rate,
        frames=frames,
        windows=windows,
        used=min(seen.seconds, _covered(windows)),
        too_short=frames < rule.lengths[0],
        too_long=tuple(length for length in rule.lengths if length > frames) if frames >= rule.lengths[0] else (),
        repeated=rate > seen.rate * (1 + SAME_RATE),
        retimed=abs(rate / seen.rate - 1) > SAME_RATE,
        variable=seen.variable,
        bits=seen.bits,
        hdr=seen.hdr,
    )


def _covered(windows: Iterable[Window]) -> float:
    """Seconds that lie in any window."""
    total, reached = 0.0, 0.0
    for begin, end in sorted((window.start, window.start + window.seconds) for window in windows):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
