"""Makes the pictures of a published LoRA from the samples of its run, without the texts that sample files hold."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from backend.base.errors import Refused
from backend.runs.samples import Sample

_MOST_COLUMNS = 4
_GAP = 8
_CELL_PX = 768
"""Longest side of a sample on the sheet, and of the preview."""


def samples_of(samples: Sequence[Sample], step: int | None) -> list[Sample]:
    """The newest samples that were drawn at or before `step`, one of each prompt, in the order of the prompts."""
    usable = [each for each in samples if each.picture is not None and each.step is not None]
    usable = [each for each in usable if step is None or each.step <= step]
    newest = max((each.step for each in usable), default=None)
    by_prompt = {each.prompt_index: each for each in usable if each.step == newest}
    return [by_prompt[index] for index in sorted(by_prompt, key=lambda index: (index is None, index or 0))]


def preview_png(sample: Sample) -> bytes:
    """One sample as a PNG that programs show beside the file of its name."""
    return _png(_opened(sample))


def sheet_png(samples: Sequence[Sample]) -> bytes:
    """All samples as one PNG, in rows of at most four. At least one sample."""
    pictures = [_opened(sample) for sample in samples]
    columns = min(_MOST_COLUMNS, len(pictures))
    width = max(picture.width for picture in pictures) + _GAP
    height = max(picture.height for picture in pictures) + _GAP
    sheet = Image.new("RGB", (columns * width + _GAP, math.ceil(len(pictures) / columns) * height + _GAP), "white")
    for number, picture in enumerate(pictures):
        sheet.paste(picture, (_GAP + number % columns * width, _GAP + number // columns * height))
    return _png(sheet)


def _opened(sample: Sample) -> Image.Image:
    path: Path | None = sample.picture
    assert path is not None
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise Refused(f"The sample {path.name} can't be read: {error}", "Remove it from the run's samples.") from error
    picture.thumbnail((_CELL_PX, _CELL_PX))
    return picture


def _png(picture: Image.Image) -> bytes:
    # a new image: what the file said in texts, EXIF or colour profiles is not in it
    plain = Image.new("RGB", picture.size)
    plain.paste(picture)
    buffer = io.BytesIO()
    plain.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
