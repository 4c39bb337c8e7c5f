"""Decodes the video stream of a file with PyAV: its time stamps, and its frames upright, in RGB.

PyAV is imported where a file is opened: a run on pictures needs none of its 18 MB.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from backend.dataset.images import BACKING

# Nearer to the beginning than this, frames are decoded from there.
WORTH_A_SEEK_S = 2.0
# A clip of up to so many px, all frames together, is decoded whole to be measured: 81 frames of 720p are 75 million.
_CHEAP_PIXELS = 150_000_000
# Of an unmarked video up to this height, colours are taken to be as on old television (BT.601), else as BT.709.
_HD_ROWS = 720
_UNMARKED = 2
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


class BadClip(ValueError):
    """A file that is no usable clip; the message says why, without the path."""


class BehindSeek(Exception):
    """The first frame that was decoded begins after the one that is wanted."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each frame begins, in s after the first one; `seconds` until the last one ends; `tick`: see ClipFacts."""

    times: tuple[float, ...]
    seconds: float
    tick: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a stream holds; `size` in px as seen."""

    timeline: Timeline
    size: tuple[int, int]
    has_alpha: bool
    bits: int
    hdr: bool


def measure(path: Path) -> Measured:
    """Measure the video stream of `path`; BadClip when it has none that can be decoded, OSError when unreadable."""
    from av.video.reformatter import ColorTrc

    with _stream_of(path) as (container, stream):
        packets = _Packets.read(container, stream)
        missing = packets.announced - packets.seen
        if missing > 0:
            raise BadClip(f"the file is cut off: {packets.seen:,} of its {packets.announced:,} frames are there")
        # what the file tells is when the stream ends, however late it begins
        whole, there = _stated_seconds(stream), packets.begin + packets.timeline.seconds
        if whole is not None and there < whole - 0.1 - 2 * packets.timeline.seconds / packets.count:
            raise BadClip(f"the file is cut off: {there:.1f} of its {whole:.1f} seconds are there")
        ratio = float(stream.sample_aspect_ratio or 1)
    counted = packets.count
    with contextlib.closing(frames(path)) as decoded:
        first = next((frame for _, frame in decoded), None)
        if first is None:
            raise BadClip("it has no frames")
        if first.width * first.height * packets.count <= _CHEAP_PIXELS:
            counted = 1 + sum(1 for _ in decoded)
    timeline = packets.timeline
    if counted < packets.count:
        # what edits of the file leave out is among the packets, and is never shown
        timeline = Timeline(timeline.times[:counted], timeline.seconds, timeline.tick)
    elif timeline.times[-1] >= WORTH_A_SEEK_S:
        with contextlib.closing(frames(path, timeline.times[-1])) as decoded:
            for _ in decoded:
                pass
    width, height = max(1, round(first.width * ratio)), first.height
    return Measured(
        timeline=timeline,
        size=(height, width) if _turn_of(first) in (90, 270) else (width, height),
        has_alpha=_has_alpha(first),
        bits=max(part.bits for part in first.format.components),
        hdr=first.color_trc in (ColorTrc.SMPTE2084, ColorTrc.ARIB_STD_B67),
    )


def slack_of(path: Path) -> float:
    """Seconds that a frame may begin after the time it is asked for, as time stamps are rounded. Raises as `frames`."""
    with _stream_of(path) as (_, stream):
        tick = float(stream.time_base or 0)
        rate = float(stream.average_rate or stream.guessed_rate or 25)
    return max(1e-6, min(1.5 * tick, 0.25 / rate))


@dataclass(frozen=True, slots=True)
class _Packets:
    """Time stamps of a stream in the order in which frames are shown, without decoding.

    stamps: of each frame, in units of the stream. last: length of the last one, in the same. announced: frames that the
    file says it has, where that can be relied on; 0 else. seen: those that came.
    """

    stamps: tuple[int, ...]
    last: int
    unit: float
    announced: int
    seen: int

    @property
    def count(self) -> int:
        return len(self.stamps)

    @property
    def begin(self) -> float:
        """When the first frame is shown, in s after the beginning of the file."""
        return max(0.0, self.stamps[0] * self.unit)

    @property
    def timeline(self) -> Timeline:
        times = tuple((stamp - self.stamps[0]) * self.unit for stamp in self.stamps)
        return Timeline(times, times[-1] + self.last * self.unit, self.unit)

    @classmethod
    def read(cls, container: Any, stream: Any) -> _Packets:
        shown: list[int | None] = []
        decoded: list[int | None] = []
        last, seen = (-1, 0), 0
        for packet in container.demux(stream):
            if packet.pts is None and packet.dts is None and not packet.size:
                continue
            seen += 1
            if packet.is_corrupt:
                raise BadClip(f"the file is damaged or cut off after {len(shown):,} frames")
            if not packet.size or packet.is_discard:
                continue
            shown.append(packet.pts)
            decoded.append(packet.dts)
            last = max(last, (packet.pts or 0, packet.duration or 0))
        # where some lack the time at which they are shown, those at which they are decoded are as far from each other
        stamps = decoded if None in shown else shown
        if not stamps:
            raise BadClip("it has no frames")
        unit = float(stream.time_base or 0)
        step = 1 / float(stream.average_rate or stream.guessed_rate or 25)
        if None in stamps or unit <= 0:
            # a raw stream: nothing but the order is known
            unit = 1e-6
            stamps = [round(number * step / unit) for number in range(len(stamps))]
            last = (0, 0)
        known = sorted(stamp for stamp in stamps if stamp is not None)
        mean = (known[-1] - known[0]) / (len(known) - 1) if len(known) > 1 else step / unit
        announced = stream.frames if "avi" in container.format.name else 0
        return cls(tuple(known), last[1] or round(mean) or 1, unit, announced, seen)


@contextlib.contextmanager
def _stream_of(path: Path) -> Iterator[tuple[Any, Any]]:
    """The opened file and its video stream. Raises BadClip for all that FFmpeg says against it."""
    import av

    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise BadClip("the file is empty")
        with av.open(str(path), metadata_errors="replace") as container:
            # a cover picture is a video stream to FFmpeg
            streams = [each for each in container.streams.video if not _is_cover(each)]
            if not streams:
                raise BadClip("it has no video stream")
            # without a decoder of its format, a stream has no context
            streams = [each for each in streams if each.codec_context is not None]
            if not streams:
                raise BadClip("its video is in a format that can't be decoded here")
            streams[0].thread_type = "AUTO"
            yield container, streams[0]
    except av.error.FFmpegError as error:
        if isinstance(error, OSError):
            raise
        text = "it is not a video in a known format, or its beginning is damaged"
        raise BadClip(text if "Invalid data" in str(error) else f"it can't be decoded ({_words(error)})") from error


def _stated_seconds(stream: Any) -> float | None:
    """How long Matroska and WebM files say the stream is; None where nothing says so."""
    match = re.match(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    return None if match is None else int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _is_cover(stream: Any) -> bool:
    import av

    return bool(stream.disposition & av.stream.Disposition.attached_pic)


def frames(path: Path, start: float = 0.0) -> Iterator[tuple[float, Any]]:
    """(begin in s, frame of PyAV) from the key frame at or before `start`, in s after the first frame.

    Where a file's time stamps don't follow the order of its frames (AVI), from the beginning, and with the stamps put
    in order. BadClip for a frame that can't be decoded.
    """
    with _stream_of(path) as (container, stream):
        if "avi" in container.format.name or "mpeg" in container.format.name or not stream.time_base:
            times = _Packets.read(container, stream).timeline.times
            container.seek(0)
            for number, frame in enumerate(_decoded(container, stream)):
                if number < len(times):
                    yield times[number], frame
            return
        unit = float(stream.time_base)
        first = None
        for frame in _decoded(container, stream):
            if first is None:
                first = frame.pts or 0
                if start >= WORTH_A_SEEK_S:
                    break
            yield (_stamp(frame) - first) * unit, frame
        if first is None or start < WORTH_A_SEEK_S:
            return
        container.seek(first + int(start / unit), stream=stream, backward=True)
        for frame in _decoded(container, stream):
            yield (_stamp(frame) - first) * unit, frame


def _stamp(frame: Any) -> int:
    if frame.pts is None:
        raise BadClip("a frame has no time stamp")
    return frame.pts


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    """Frames from where the container is. BadClip for one that can't be decoded."""
    import av

    decoder = _alpha_decoder(stream)
    number = 0
    try:
        for packet in container.demux(stream):
            if packet.is_discard:
                continue
            empty = not packet.size
            for frame in stream.decode(packet) if decoder is None else decoder.decode(None if empty else packet):
                if frame.is_corrupt and number:
                    raise BadClip(f"its data is damaged near {float(frame.time or 0):.1f} s")
                number += 1
                yield frame
    except av.error.FFmpegError as error:
        if isinstance(error, OSError):
            raise
        raise BadClip(f"it can't be decoded after {number:,} frames ({_words(error)})") from error


def _alpha_decoder(stream: Any) -> Any:
    """The decoder that reads the transparency of VP8 and VP9, which FFmpeg's own leave out; None for other streams."""
    import av

    kinds = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
    name = kinds.get(stream.codec_context.name)
    tags = {key.lower(): value for key, value in stream.metadata.items()}
    if name is None or tags.get("alpha_mode") != "1":
        return None
    decoder = av.CodecContext.create(name, "r")
    decoder.extradata = stream.codec_context.extradata
    return decoder


class Shown:
    """A frame as it is seen, converted when it is asked for, once."""

    def __init__(self, frame: Any, transparency: str) -> None:
        self._frame = frame
        self._transparency = transparency

    def image(self) -> Image.Image:
        """RGB, upright, of as many px as the file has, of which a size as seen differs if they are not square."""
        return self._image

    @cached_property
    def _image(self) -> Image.Image:
        frame = self._frame
        options: dict[str, Any] = {}
        if not frame.format.is_rgb and frame.colorspace == _UNMARKED:
            options["src_colorspace"] = "itu709" if frame.height >= _HD_ROWS else "itu601"
        alpha = _has_alpha(frame)
        picture = Image.fromarray(frame.reformat(format="rgba" if alpha else "rgb24", **options).to_ndarray())
        if alpha:
            ground = Image.new("RGBA", picture.size, (*BACKING[self._transparency], 255))
            picture = Image.alpha_composite(ground, picture).convert("RGB")
        turn = _TURNS.get(_turn_of(frame))
        return picture if turn is None else picture.transpose(turn)


def _has_alpha(frame: Any) -> bool:
    """Whether it can have transparent parts."""
    return any(part.is_alpha for part in frame.format.components)


def _turn_of(frame: Any) -> int:
    """Degrees, counter-clockwise, by which the frame is turned to be upright: a multiple of 90."""
    return round(frame.rotation / 90) * 90 % 360
