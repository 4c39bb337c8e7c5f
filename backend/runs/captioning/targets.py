"""Says which images are captioned, and where their captions are written."""

from __future__ import annotations

from collections.abc import Iterable

from backend.base.errors import Refused
from backend.dataset.caption_changes import text_of
from backend.dataset.captions import BadCaption
from backend.dataset.items import Item
from backend.runs.captioning.request import Existing, Target


def targets_of(items: Iterable[Item], extension: str, existing: Existing) -> list[Target]:
    """Where the caption of each image is written, without clips, and without images whose caption is to be left."""
    images = [item for item in items if item.window is None]
    targets = list(dict.fromkeys(target_of(item, extension) for item in images))
    return [each for each in targets if existing != "leave" or not has_caption(each)]


def target_of(item: Item, extension: str) -> Target:
    """Where the caption of an image is: its file, its row of a table, or the file that is made."""
    if item.caption_path is None and item.row is not None:
        return Target(item.path, item.row.path, item.row.name)
    return Target(item.path, item.caption_path or item.path.with_suffix(extension))


def old_caption(target: Target) -> str | None:
    """What the caption file holds; None without one, or without a row of the image.

    Raises Refused where the file is there and can't be read.
    """
    try:
        return text_of(target.file, target.entry)
    except (BadCaption, OSError) as error:
        why = error.strerror or error if isinstance(error, OSError) else error
        raise Refused(f"{target.file} can't be read: {why}", "Correct the file, or leave its image out.") from None


def has_caption(target: Target) -> bool:
    """Whether there is a caption with words; one that can't be read counts, since nothing may be written over it."""
    try:
        return bool((old_caption(target) or "").strip())
    except Refused:
        return True
