"""Reads a list of pictures and clips with their captions: JSON lines, as musubi-tuner and Hugging Face datasets have.

A line is an object with the path of a file, absolute or from the list's own folder, and its caption.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backend.config.endings import CLIPS
from backend.dataset.caption_sources import row_name
from backend.dataset.images import EXTENSIONS
from backend.dataset.walk import Walk

ENDINGS = frozenset({".jsonl", ".ndjson"})
_PATHS = ("image_path", "video_path", "file_name", "path", "image", "video")
_CAPTIONS = ("caption", "text", "prompt")
# Larger lists are no lists of a person's pictures.
_LARGEST_BYTES = 1_000_000_000


@dataclass
class FileList:
    """What a list says. captions: by path, of lines that have one. rows: the name of such a line, as `row_name` has it.

    faults: what is wrong with a line, by its number.
    """

    walk: Walk = field(default_factory=Walk)
    captions: dict[Path, str] = field(default_factory=dict)
    rows: dict[Path, str] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)


def is_list(path: Path) -> bool:
    """Whether a chosen path is such a list, by its ending."""
    return path.suffix.lower() in ENDINGS and path.is_file()


def read_list(path: Path, caption_extensions: Sequence[str], clips: bool) -> FileList:
    """All lines of the list at `path`. OSError when it can't be read, ValueError when it is no text or too large.

    caption_extensions: of caption files, which count before the list where they lie next to a picture. clips: are
    wanted.
    """
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError("it is larger than 1 GB")
    result, endings = FileList(), EXTENSIONS | CLIPS if clips else EXTENSIONS
    # JSON may have separators such as U+2028 as they are, at which splitlines() would cut
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            name, caption = _row(json.loads(line))
        except (ValueError, RecursionError) as error:
            result.faults[number] = f"it is not valid JSON ({error})"
            continue
        if name is None:
            result.faults[number] = f"it names no file ({', '.join(_PATHS[:3])})"
            continue
        file = Path(os.path.normpath(path.parent / name))
        if file.suffix.lower() not in endings:
            result.walk.other[file.suffix.lower() or "without ending"] += 1
            continue
        result.walk.pictures.setdefault(file.parent, []).append(file)
        if caption is not None:
            result.captions[file], result.rows[file] = caption, row_name(name)
        for ending in caption_extensions:
            text = file.with_suffix(ending)
            if text.is_file() and str(text) not in result.walk.texts:
                result.walk.texts.add(str(text))
                result.walk.other[ending.lower()] += 1
    return result


def _row(row: object) -> tuple[str | None, str | None]:
    """Path and caption of a line, None for each that is missing."""
    if not isinstance(row, dict):
        return None, None
    name = next((row[key] for key in _PATHS if isinstance(row.get(key), str) and row[key]), None)
    return name, next((row[key] for key in _CAPTIONS if isinstance(row.get(key), str)), None)
