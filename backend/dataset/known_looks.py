"""Gives the look of each of many files: from the scan's memory, else by decoding it, which is then remembered."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from backend.dataset.decode_budget import BUDGET
from backend.dataset.images import look_of
from backend.dataset.looks import Look
from backend.dataset.scan_cache import ScanCache

# Files whose looks are remembered at once: a cancelled job loses no more than these.
_AT_ONCE = 256


def looks_of(
    files: Mapping[str, tuple[Path, int, int]],
    memory: ScanCache,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> dict[str, Look]:
    """The looks of `files` by content key; those that can't be decoded are left out.

    files: content key -> path, width and height in px. progress: called with how many are done, and of how many.
    """
    known = memory.looks()
    looks = {key: known[key] for key in files if key in known}
    missing = iter([(key, *files[key]) for key in files if key not in looks])
    done = len(looks)
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1), thread_name_prefix="looks") as pool:
        while part := list(islice(missing, _AT_ONCE)):
            fresh = {}
            for key, look in _each(pool, part):
                done += 1
                if look is not None:
                    fresh[key] = look
                if progress is not None:
                    progress(done, len(files))
            memory.put_looks(fresh)
            looks |= fresh
    return looks


def _each(pool: ThreadPoolExecutor, part: list[tuple[str, Path, int, int]]) -> Iterator[tuple[str, Look | None]]:
    yield from zip((key for key, *_ in part), pool.map(_decoded, part), strict=True)


def _decoded(file: tuple[str, Path, int, int]) -> Look | None:
    _, path, width, height = file
    try:
        with BUDGET.room(width, height):
            return look_of(path)
    except (OSError, ValueError):
        return None
