"""Writes sample clips: an MP4 that browsers play, and beside it a PNG with some of its frames."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from backend.base.files import atomic_path, write_atomic
from backend.runs.samples import sheet_of

log = logging.getLogger(__name__)

# The sheet is a square of so many frames a side at most, and has the proportions of the clip: a player can show it.
_MOST_A_SIDE = 3
_LONGEST_SHEET_PX = 1536
# Constant quality of x264, where 0 is lossless and 51 the worst: one that hides nothing of a LoRA's faults.
_QUALITY = "16"
_BT709 = 1


def frames_of(pixels: Tensor) -> Iterator[np.ndarray]:
    """Frames (H, W, 3) uint8 of a clip (3, F, H, W) in [-1, 1], one by one, as converting all doubles what is held.

    Values beyond are cut off. ValueError when they are not finite.
    """
    for number in range(pixels.shape[1]):
        frame = pixels[:, number].float().cpu()
        if not torch.isfinite(frame).all():
            raise ValueError("the sample holds NaN")
        values = ((frame / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        yield values.permute(1, 2, 0).contiguous().numpy()


def write_clip(path: Path, frames: Sequence[np.ndarray], rate: float, texts: Mapping[str, str]) -> Path:
    """Save frames (H, W, 3) as MP4 (H.264), and the sheet beside it, whose path is returned.

    rate: frames a second. texts: how it was made, by name: all of them are text chunks of the sheet; ``monotile`` is
    the clip's comment, ``parameters`` its description. WriteFailed when the disk refuses.
    """
    sheet = sheet_of(path)
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_itxt(name, text)
    buffer = io.BytesIO()
    contact_sheet(frames).save(buffer, "PNG", pnginfo=info)
    write_atomic(sheet, buffer.getvalue())
    # here, as a run without clips needs none of it
    import av

    with atomic_path(path) as temporary:
        try:
            _encode(temporary, frames, rate, {"comment": texts["monotile"], "description": texts["parameters"]})
        except av.error.FFmpegError as error:
            if isinstance(error, OSError):
                raise
            raise ValueError(f"the clip can't be encoded: {error}") from error
    return sheet


def contact_sheet(frames: Sequence[np.ndarray]) -> Image.Image:
    """Frames spread evenly over the clip, the first and the last among them, in rows: 9 of them, or 4, or the first.

    As large as they are, but for a longer side of 1536 px at most.
    """
    side = min(_MOST_A_SIDE, math.isqrt(len(frames)))
    height, width = frames[0].shape[:2]
    scale = min(1.0, _LONGEST_SHEET_PX / (side * max(width, height)))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    sheet = Image.new("RGB", (side * size[0], side * size[1]))
    places = np.linspace(0, len(frames) - 1, side * side).round().astype(int)
    for number, place in enumerate(places):
        cell = Image.fromarray(frames[place], "RGB")
        cell = cell if cell.size == size else cell.resize(size, Image.Resampling.LANCZOS)
        sheet.paste(cell, (number % side * size[0], number // side * size[1]))
    return sheet


def read_comment(path: Path) -> str:
    """The comment of a clip, which says how it was made.

    OSError or ValueError for a file that is no clip or holds no frame, KeyError for one without a comment.
    """
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video or next(container.decode(video=0), None) is None:
                raise OSError("it holds no frame")
            return container.metadata["comment"]
    except av.error.FFmpegError as error:
        raise ValueError(str(error)) from error


def _encode(path: Path, frames: Sequence[np.ndarray], rate: float, metadata: Mapping[str, str]) -> None:
    """Write an MP4 whose index is at its front, so that a browser begins to play before it has all of it."""
    # here, as a run without clips needs none of it
    import av
    from av.video.reformatter import Colorspace

    height, width = frames[0].shape[:2]
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        container.metadata.update(metadata)
        stream = container.add_stream(
            "libx264", rate=Fraction(rate).limit_denominator(1001), options={"crf": _QUALITY, "preset": "medium"}
        )
        # Colours at half the resolution, which is all that browsers play, need even sides.
        stream.width, stream.height, stream.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
        stream.codec_context.colorspace = stream.codec_context.color_primaries = _BT709
        stream.codec_context.color_trc = _BT709
        for pixels in frames:
            even = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)))
        container.mux(stream.encode())
