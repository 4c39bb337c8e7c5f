"""Puts pictures into batches and batches into the order of an epoch, in one place for plan and loader alike.

Everything follows from the arguments alone, on every machine and Python: no hash(), no global random state. Shuffling
sorts by `random.Random.random()`, the one sequence that Python's documentation promises to keep.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from backend.config.family_defaults import ShapeMode
from backend.dataset.buckets import Bucket, Fit

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Pictures that may share a batch: `indices` into the items, each as often as its repeats.

    name: what they have in common, in words ("4032 tokens", "1024x1024").
    """

    name: str
    indices: tuple[int, ...]


def group(
    mode: ShapeMode,
    fits: Sequence[Fit],
    repeats: Sequence[int],
    beside: Sequence[int] | None = None,
    padded: Sequence[int] | None = None,
) -> tuple[Group, ...]:
    """Groups of a shape mode, in a fixed order; `fits` and `repeats` go by item, as do `beside` and `padded`.

    static: all pictures, since each row of a padded batch carries its own length. exact_buckets: by token count (aspect
    ratios mix). dynamic and off: by size. beside: image tokens of control pictures, equal too except in static. Clips
    share a batch with those of as many frames alone. padded: in static, where rows are padded to several counts, that
    of each, which is then equal.
    """
    members: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for index, fit in enumerate(fits):
        extra = beside[index] if mode != "static" and beside is not None else 0
        count = None if padded is None else padded[index]
        members.setdefault((_key(mode, fit.bucket, count), extra), []).extend([index] * repeats[index])
    sizes = [key for key, _ in members]
    return tuple(
        Group(_name(mode, key, extra if sizes.count(key) > 1 else None), tuple(members[key, extra]))
        for key, extra in sorted(members)
    )


def _key(mode: ShapeMode, bucket: Bucket, padded: int | None) -> tuple[int, ...]:
    """What is equal of all pictures or clips of a group."""
    if mode == "static":
        return () if padded is None else (padded,)
    key = (bucket.tokens,) if mode == "exact_buckets" else (bucket.width, bucket.height)
    return key if bucket.frames == 1 else (*key, bucket.frames)


def kept(size: int, batch_size: int, drop_last: bool, sample_ratio: float) -> int:
    """How many of a group's `size` entries one epoch uses; the same number in every epoch.

    sample_ratio: share that is used, at least one entry. drop_last: only whole batches.
    """
    if size == 0:
        return 0
    count = size if sample_ratio >= 1.0 else max(1, round(size * sample_ratio))
    return count // batch_size * batch_size if drop_last else count


def epoch_batches(
    groups: Iterable[Sequence[int]],
    batch_size: int,
    seed: int,
    epoch: int,
    drop_last: bool = True,
    sample_ratio: float = 1.0,
) -> list[list[int]]:
    """The batches of an epoch (from 0), each a list of item indices, in training order.

    Each group is a sequence of item indices. Of a group of n entries an epoch uses k (see `kept`): a window that moves
    on by k each epoch through one seeded order, so what falls out changes from epoch to epoch, and everything falls out
    equally often. What is used is shuffled within its group, and the batches of all groups among each other.
    """
    batches: list[list[int]] = []
    for number, members in enumerate(groups):
        size = len(members)
        use = kept(size, batch_size, drop_last, sample_ratio)
        if not use:
            continue
        order = _shuffled(range(size), seed, f"group {number}")
        start = epoch * use % size
        window = [order[(start + step) % size] for step in range(use)]
        used = [members[place] for place in _shuffled(sorted(window), seed, f"group {number} epoch {epoch}")]
        batches += [used[at : at + batch_size] for at in range(0, use, batch_size)]
    return _shuffled(batches, seed, f"batches of epoch {epoch}")


def _shuffled(values: Iterable[T], seed: int, purpose: str) -> list[T]:
    values = list(values)
    digest = hashlib.blake2b(f"{seed}:{purpose}".encode(), digest_size=8).digest()
    draw = random.Random(int.from_bytes(digest, "big")).random
    keys = [draw() for _ in values]
    return [values[place] for place in sorted(range(len(values)), key=keys.__getitem__)]


def _name(mode: ShapeMode, key: tuple[int, ...], extra: int | None) -> str:
    if not key:
        return "all sizes"
    if mode == "static":
        return f"up to {key[0]} tokens"
    if mode == "exact_buckets":
        name = f"{key[0]} tokens" + (f" of {key[1]} frames" if len(key) > 1 else "")
    else:
        name = "x".join(map(str, key))
    return name if extra is None else f"{name} with {extra} tokens of control images"
