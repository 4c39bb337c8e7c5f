"""Holds validation pictures out of the training set, and finds those that are trained as well."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from backend.dataset.items import Finding, Item, Scan, Window, count_of, name_files

HELD_OUT = "held out"


def hold_out(train: Scan, share: float, seed: int) -> tuple[Scan, Scan | None]:
    """`train` without a `share` of its pictures, and those; None when there are too few to split.

    Who is held out depends on each picture's content and `seed` alone: one added later changes at most the border.
    Copies of a picture, and windows of a clip, stay together, so that none is measured that is also trained.
    """
    # one of regularization images says nothing of what is learned
    keys = sorted({item.key for item in train.items if not item.is_reg}, key=lambda key: _draw(seed, key))
    if len(keys) < 2:
        text = f"{count_of(len(keys), 'image')} can't be split: no validation images are kept"
        finding = Finding("no_split", "warning", text, "Set validation_split to 0.", (), "dataset.validation_split")
        return replace(train, findings=(*train.findings, finding)), None
    count = min(max(1, round(share * len(keys))), len(keys) - 1)
    held = set(keys[:count])
    # all windows of a clip, and of copies one
    once: dict[tuple[str, Window | None], Item] = {}
    for item in train.items:
        if item.key in held and not item.is_reg:
            once.setdefault((item.key, item.window), replace(item, repeats=1))
    kept = tuple(item for item in train.items if item.key not in held)
    paths = list({item.key: item.path for item in reversed(once.values())}.values())[::-1]
    text = f"{count_of(count, 'image')} kept for validation: {name_files([path.name for path in paths])}"
    files = tuple(map(str, paths))
    note = Finding("held_out", "note", text, "", files, "dataset.validation_split")
    gone = {str(item.path) for item in train.items if item.key in held}
    clips = [[clip for clip in train.clips if (clip.path in gone) is out] for out in (False, True)]
    rest = replace(train, items=kept, findings=(*train.findings, note), clips=tuple(clips[0]))
    return rest, Scan(items=tuple(once.values()), pictures=count, clips=tuple(clips[1]))


def _draw(seed: int, key: str) -> str:
    return hashlib.sha256(f"held out:{seed}:{key}".encode()).hexdigest()


def trained_too(train: Scan, items: Sequence[Item], name: str, setting: str) -> list[Finding]:
    """A warning when pictures of the validation set `name` are also in the training set."""
    trained = {item.key for item in train.items}
    both = list(dict.fromkeys(item.path for item in items if item.key in trained))
    if not both:
        return []
    names = name_files([path.name for path in both])
    text = f"{count_of(len(both), 'image')} of the validation set {name} also trained: {names}"
    remedy = "Its loss then does not show overfitting; remove them from one of the two."
    return [Finding("leak", "warning", text, remedy, tuple(map(str, both)), setting)]
