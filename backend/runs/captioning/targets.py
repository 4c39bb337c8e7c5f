"""Says which images are captioned, and where their captions are written."""

from __future__ import annotations

from collections.abc import Iterable

from backend.base.errors import Refused
from backend.dataset.caption_changes import texts_of
from backend.dataset.captions import BadCaption
from backend.dataset.items import Item
from backend.runs.captioning.request import Existing, Target


def targets_of(items: Iterable[Item], extension: str, existing: Existing) -> list[Target]:
    """Where the caption of each image is written, without clips, and without images whose caption is to be left.

    A caption that can't be read is one that is to be left, since nothing may be written over it.
    """
    targets = list(dict.fromkeys(target_of(item, extension) for item in items if item.window is None))
    if existing != "leave":
        return targets
    old = old_captions(targets)
    return [each for each in targets if not has_words(old[each])]


def target_of(item: Item, extension: str) -> Target:
    """Where the caption of an image is: its file, its row of a table, or the file that is made."""
    if item.caption_path is None and item.row is not None:
        return Target(item.path, item.row.path, item.row.name)
    return Target(item.path, item.caption_path or item.path.with_suffix(extension))


def old_captions(targets: Iterable[Target]) -> dict[Target, str | None | Refused]:
    """What the caption files hold; None without a file, or without a row of the image; why one can't be read."""
    wanted = list(targets)
    texts = texts_of((each.file, each.entry) for each in wanted)
    return {each: _of(each, texts[each.file, each.entry]) for each in wanted}


def has_words(old: str | None | Refused) -> bool:
    """Whether there is a caption with words, or one that can't be read."""
    return isinstance(old, Refused) or bool((old or "").strip())


def _of(target: Target, text: str | None | BadCaption) -> str | None | Refused:
    if not isinstance(text, BadCaption):
        return text
    return Refused(f"{target.file} can't be used: {text}", "Correct the file, or leave its image out.")
