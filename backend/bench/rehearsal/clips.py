"""Draws random captioned clips as MP4 files, as a person's folder of videos holds them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from PIL import Image

from backend.bench.clips import Clip
from backend.bench.rehearsal.pictures import CAPTIONS, COARSE

_SPARE = 3
"""Frames that a file has more than a clip: none is ever of the exact length."""
_STEP = 3
"""Pixels that the picture moves in a frame."""


def draw_clips(folder: Path, count: int, clip: Clip, rate: float) -> None:
    """Write `count` MP4 files with a caption each into `folder` (made if missing), the same ones at each call.

    clip: width and height in px, and frames of what is trained on; each file has a few frames more. rate: frames a
    second. Width and height must be even.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(0)
    for number in range(count):
        coarse = Image.frombytes("RGB", (COARSE, COARSE), source.randbytes(3 * COARSE * COARSE))
        picture = np.asarray(coarse.resize(clip[:2], Image.Resampling.BICUBIC))
        _write(folder / f"clip_{number:03d}.mp4", picture, clip[2] + _SPARE, rate)
        caption = f"{CAPTIONS[number % len(CAPTIONS)]}, number {number}"
        (folder / f"clip_{number:03d}.txt").write_text(caption, encoding="utf-8")


def _write(path: Path, picture: np.ndarray, frames: int, rate: float) -> None:
    """One file: `picture` (H, W, 3) uint8 moves across, round and round."""
    import av

    with av.open(str(path), "w") as container:
        # mpeg4 is in every build of FFmpeg; H.264 is what people have
        known = "libx264" in av.codecs_available
        stream = container.add_stream("libx264" if known else "mpeg4", rate=round(rate))
        stream.height, stream.width = picture.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.options = {"preset": "ultrafast"} if known else {}
        for number in range(frames):
            moved = np.ascontiguousarray(np.roll(picture, number * _STEP, axis=1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
        container.mux(stream.encode())
