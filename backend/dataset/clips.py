"""Reads clips: what a video file or animation holds, and its frames by their time stamps, upright, as RGB.

Videos are decoded by PyAV, animations (GIF, WebP, PNG, AVIF) by Pillow. A frame is asked for by its time in seconds
after the first one and found as a player would: it is the last one that began by then. One frame at a time is kept, so
a long video needs no more memory than a short one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from backend.config.endings import CLIPS
from backend.dataset import video_stream
from backend.dataset.images import BadImage, animation_frames
from backend.dataset.video_stream import BadClip, Timeline

log = logging.getLogger(__name__)

__all__ = ["VERSION", "BadClip", "ClipFacts", "hash_of", "is_video", "probe", "read_frames"]

T = TypeVar("T")

# Part of every cache's key of a clip. Raise it when the same window of a file gives other pixels.
VERSION = 1
# Frames whose distances differ by more than this share of their mean are of a variable rate.
_UNEVEN = 0.25
_CHUNK = 1 << 20
# Frames of animations last for whole milliseconds, 10 at least.
_ANIMATION_TICK_S = 0.001
_ANIMATION_SLACK_S = 0.0015


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What a clip is: width and height in px as seen (turned, with square pixels), and its frames in time.

    seconds: until its last frame ends. rate: mean frames a second. variable: frames are not evenly spaced. tick: what
    its time stamps are rounded to, in seconds. bits: of a colour. hdr: its colours are for bright displays.
    """

    width: int
    height: int
    frames: int
    seconds: float
    rate: float
    variable: bool = False
    tick: float = 0.001
    has_alpha: bool = False
    bits: int = 8
    hdr: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which the class takes as arguments."""
        return asdict(self)


def is_video(path: Path) -> bool:
    """Whether the file's ending is that of a video; an animation may have a picture's ending."""
    return path.suffix.lower() in CLIPS


def hash_of(path: Path) -> str:
    """SHA-256 (hex) of the file's bytes, a piece at a time."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def probe(path: Path) -> ClipFacts:
    """Measure a clip. All time stamps are read; a short one is decoded whole, of a long one both ends are.

    Raises BadClip, which says why, for what can't be decoded, has no frames or ends too early; OSError when the file
    can't be read.
    """
    if _is_animation(path):
        times, alpha, size, ends = [], False, (0, 0), 0.0
        for begins, lasts, picture in _animation(path, "white"):
            times.append(begins)
            ends, size = begins + lasts, picture.size
            alpha = alpha or bool(picture.info.get("alpha"))
        return _facts(Timeline(tuple(times), ends, _ANIMATION_TICK_S), size, has_alpha=alpha)
    measures = video_stream.measure(path)
    return _facts(measures.timeline, measures.size, has_alpha=measures.has_alpha, bits=measures.bits, hdr=measures.hdr)


def _facts(timeline: Timeline, size: tuple[int, int], **more: Any) -> ClipFacts:
    times = timeline.times
    if not times:
        raise BadClip("it has no frames")
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    mean = sum(gaps) / len(gaps) if gaps else timeline.seconds
    if mean <= 0:
        raise BadClip("its frames have no time stamps")
    uneven = any(abs(gap - mean) > _UNEVEN * mean + timeline.tick for gap in gaps)
    return ClipFacts(*size, len(times), timeline.seconds, 1 / mean, uneven, timeline.tick, **more)


def read_frames(path: Path, times: Sequence[float], transparency: str = "white") -> Iterator[Image.Image]:
    """The frames that the clip shows at `times`, RGB and upright, one for each, which may be the same one again.

    They have the px of the file, whose `ClipFacts` say the size as seen: it differs where pixels are not square. times:
    ascending, in seconds after the first frame. transparency: backing of what is transparent. Raises as `probe`.
    """
    if _is_animation(path):
        shown = ((begins, picture) for begins, _, picture in _animation(path, transparency))
        return _shown(shown, times, _ANIMATION_SLACK_S)
    return _from_video(path, times, transparency, video_stream.slack_of(path))


def _from_video(path: Path, times: Sequence[float], transparency: str, slack: float) -> Iterator[Image.Image]:
    done = 0
    # a seek may land behind the frame: then from the beginning
    for from_start in (times[0] < video_stream.WORTH_A_SEEK_S, True):
        with contextlib.closing(video_stream.frames(path, 0.0 if from_start else times[0])) as decoded:
            upright = ((begins, video_stream.Shown(frame, transparency)) for begins, frame in decoded)
            try:
                for picture in _shown(upright, times[done:], slack):
                    yield picture.image()
                    done += 1
                return
            except video_stream.BehindSeek:
                if from_start:
                    raise BadClip("its frames can't be found by their times") from None
                log.debug("%s has no frame at its seek point for %s s", path, times[done])


def _shown(timeline: Iterable[tuple[float, T]], times: Sequence[float], slack: float) -> Iterator[T]:
    """What is shown at each of `times`, of a timeline of (begin in s, frame). BehindSeek where it begins later."""
    held: T | None = None
    at = 0
    for begins, frame in timeline:
        while at < len(times) and begins > times[at] + slack:
            if held is None:
                raise video_stream.BehindSeek
            yield held
            at += 1
        if at == len(times):
            return
        held = frame
    if held is None:
        raise BadClip("it has no frames")
    for _ in times[at:]:
        yield held


def _is_animation(path: Path) -> bool:
    return not is_video(path) or path.suffix.lower() == ".gif"


def _animation(path: Path, transparency: str) -> Iterator[tuple[float, float, Image.Image]]:
    """Begin and length in s, and picture, of each frame."""
    begins = 0.0
    try:
        for lasts, picture in animation_frames(path, transparency):
            yield begins, lasts, picture
            begins += lasts
    except BadImage as error:
        raise BadClip(str(error)) from error
