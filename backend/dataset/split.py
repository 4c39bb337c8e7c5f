"""Holds validation pictures out of the training set, and finds those that are trained as well."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from backend.dataset.items import Finding, Item, Scan, count_of, name_files

HELD_OUT = "held out"


def hold_out(train: Scan, share: float, seed: int) -> tuple[Scan, Scan | None]:
    """`train` without a `share` of its pictures, and those; None when there are too few to split.

    Who is held out depends on each picture's content and `seed` alone: one added later changes at most the border.
    Copies of a picture stay together, so that none is measured that is also trained.
    """
    keys = sorted({item.key for item in train.items}, key=lambda key: _draw(seed, key))
    if len(keys) < 2:
        text = f"{count_of(len(keys), 'image')} can't be split: no validation images are kept"
        said = Finding("no_split", "warning", text, "Set validation_split to 0.", (), "dataset.validation_split")
        return replace(train, findings=(*train.findings, said)), None
    count = min(max(1, round(share * len(keys))), len(keys) - 1)
    held = set(keys[:count])
    out: dict[str, Item] = {}
    for item in train.items:
        if item.key in held:
            out.setdefault(item.key, replace(item, repeats=1))
    kept = tuple(item for item in train.items if item.key not in held)
    names = name_files([item.path.name for item in out.values()])
    text = f"{count_of(count, 'image')} kept for validation: {names}"
    files = tuple(str(item.path) for item in out.values())
    said = Finding("held_out", "note", text, "", files, "dataset.validation_split")
    return replace(train, items=kept, findings=(*train.findings, said)), Scan(items=tuple(out.values()), pictures=count)


def _draw(seed: int, key: str) -> str:
    return hashlib.sha256(f"held out:{seed}:{key}".encode()).hexdigest()


def trained_too(train: Scan, items: Sequence[Item], name: str, setting: str) -> list[Finding]:
    """A warning when pictures of the validation set `name` are also in the training set."""
    trained = {item.key for item in train.items}
    both = [item for item in items if item.key in trained]
    if not both:
        return []
    names = name_files([item.path.name for item in both])
    text = f"{count_of(len(both), 'image')} of the validation set {name} also trained: {names}"
    remedy = "Its loss then does not show overfitting; remove them from one of the two."
    return [Finding("leak", "warning", text, remedy, tuple(str(item.path) for item in both), setting)]
