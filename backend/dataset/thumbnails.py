"""Makes small JPEGs of pictures in a process of its own with a limit on memory: `python -m backend.dataset.thumbnails`.

One request a line on stdin, `{"path": ..., "to": ..., "px": 300}`, for a strip of a clip's frames with `"times": [0.0,
1.5]` in seconds, with `"mask"` the path of a mask that is drawn over the picture, and one reply a line on stdout,
`{"fault": null}` or what is wrong. The process ends when stdin does, so it never outlives the page.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from backend.base.files import write_atomic
from backend.dataset.clips import is_video, read_frames
from backend.dataset.images import open_image
from backend.dataset.masks import grey_of

log = logging.getLogger(__name__)

# Enough for a picture of 300 megapixels; what needs more has no preview, and the page continues.
LIMIT_BYTES = 2_000_000_000
_QUALITY = 85
# What is outside of a mask, and how much of the picture it covers, in percent.
_OUTSIDE = (200, 30, 40)
_COVER = 65
# Frames of a strip that are further from each other are sought, not decoded to.
_NEAR_S = 3.0


def limit_memory(limit: int = LIMIT_BYTES) -> None:
    """Give this process so many bytes of address space, where the system has such limits (not Windows)."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, AttributeError, ValueError, OSError) as error:
        log.debug("no limit of memory here: %s", error)


def make(path: Path, target: Path, px: int, times: Sequence[float] = (), mask: Path | None = None) -> None:
    """Write a JPEG of `path` to `target`, its longer side at most `px`. OSError or ValueError when it can't be made.

    times: of a clip, the frames that are shown side by side as a strip, in ascending seconds after its first frame.
    mask: of a picture, drawn over it: what is outside is red; the picture itself where its opacity is the mask.
    """
    if times or is_video(path):
        picture = _strip(_frames(path, times or (0.0,)), px)
    else:
        # Half again as much as is kept: a JPEG decoded smaller is still scaled down, never up.
        picture = open_image(path, "grey", at_least=px + px // 2)
        picture.thumbnail((px, px), Image.Resampling.LANCZOS)
        if mask is not None:
            picture = _masked(picture, grey_of(path, mask))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, buffer.getvalue())


def _masked(picture: Image.Image, mask: Image.Image) -> Image.Image:
    """`picture` with red over what is outside of `mask`."""
    outside = mask.resize(picture.size).point(lambda value: (255 - value) * _COVER // 100)
    return Image.composite(Image.new("RGB", picture.size, _OUTSIDE), picture, outside)


def _frames(path: Path, times: Sequence[float]) -> Iterator[Image.Image]:
    """A clip's frames: of those that are far from each other each is sought by itself."""
    if times[-1] - times[0] <= _NEAR_S * len(times):
        return read_frames(path, times, "grey")
    return (next(read_frames(path, [time], "grey")) for time in times)


def _strip(frames: Iterable[Image.Image], px: int) -> Image.Image:
    """`frames` side by side, each with its longer side at most `px`; pixels are taken to be square."""
    small = []
    for frame in frames:
        copy = frame.copy()
        copy.thumbnail((px, px), Image.Resampling.LANCZOS)
        small.append(copy)
    width, height = small[0].size
    strip = Image.new("RGB", (width * len(small), height))
    for number, frame in enumerate(small):
        strip.paste(frame, (number * width, 0))
    return strip


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request."""
    try:
        times = [float(time) for time in request.get("times") or ()]
        mask = Path(request["mask"]) if request.get("mask") else None
        make(Path(request["path"]), Path(request["to"]), int(request["px"]), times, mask)
    except (OSError, ValueError, MemoryError) as error:
        return {"fault": str(error) or type(error).__name__}
    return {"fault": None}


def main() -> int:
    """Serve until stdin ends."""
    limit_memory()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(reply_to(json.loads(line))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
