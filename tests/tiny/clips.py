"""Small real video files, made as a test needs them, and a family of clips that is not bound to any model's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from backend.families.flux.facts import FACTS as FLUX
from backend.families.spec import VideoRule
from backend.families.table import FAMILIES

FAMILY = type(FLUX).based_on(
    FLUX,
    name="clips",
    title="Clips",
    video=VideoRule(rate=16.0, frames=9),
    default_geometry=replace(FLUX.default_geometry, frame_step=4),
)


def add_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let settings name the family."""
    monkeypatch.setitem(FAMILIES, FAMILY.name, FAMILY)


def grey_of(number: int) -> int:
    """The grey of frame `number`, by which a frame is known again after lossy coding: steps of 10."""
    return 5 + number % 25 * 10


def number_of(grey: float) -> int:
    """The number, below 25, of a frame of this mean grey."""
    return round((grey - 5) / 10)


def write_clip(
    path: Path,
    frames: int = 20,
    rate: float = 16,
    size: tuple[int, int] = (64, 48),
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    times: Sequence[Fraction | float] | None = None,
    pictures: Sequence[Image.Image] | None = None,
    rotation: int = 0,
    gop: int = 8,
    **of_stream: Any,
) -> Path:
    """A clip of grey frames (`grey_of`), or of `pictures`. times: of each frame in seconds. rotation: a flag only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    base = Fraction(1, 12800)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(rate).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.gop_size = gop
        if times is not None:
            stream.time_base = stream.codec_context.time_base = base
        for name, value in of_stream.items():
            setattr(stream, name, value)
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            picture = pictures[number] if pictures else Image.new("RGB", size, (grey_of(number),) * 3)
            form = "rgba" if picture.mode == "RGBA" else "rgb24"
            frame = av.VideoFrame.from_ndarray(np.asarray(picture), format=form)
            frame.time_base = base if times is not None else 1 / Fraction(rate).limit_denominator(1001)
            frame.pts = round(Fraction(times[number]) / base) if times is not None else number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_animation(path: Path, frames: int = 12, ms: int | list[int] = 100, size: tuple[int, int] = (64, 48)) -> Path:
    """A GIF, WebP or APNG animation of grey frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [Image.new("RGB", size, (grey_of(number),) * 3) for number in range(frames)]
    lossless = {"lossless": True} if path.suffix == ".webp" else {}
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=ms, loop=0, **lossless)
    return path
