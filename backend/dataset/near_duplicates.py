"""Finds images that are nearly the same, in a process of its own: `python -m backend.dataset.near_duplicates FILE`.

FILE is JSON: `{"cache_dir": ..., "images": [[key, path, width, height], ...]}`. On stdout one JSON document a line:
`{"kind": "progress", "done": 12, "total": 300}`, and at the end `{"kind": "result", "groups": [[3, 17], ...],
"unread": 0}` with the images by their number.

Two images are compared by difference hashes of 9 x 9 grey px, across and down: 128 bits, each saying whether a pixel is
brighter than its neighbour. All pairs are compared, a row of them at a time, which takes 20,000 images seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.base.command_output import progress_lines, stdout_writer, write_json
from backend.dataset.known_looks import looks_of
from backend.dataset.looks import SIDE
from backend.dataset.scan_cache import ScanCache

# Bits of 128 that may differ.
_MOST_BITS = 8
# Neighbours this close say nothing: rounding, and what JPEG changes, decide which is brighter.
_CLOSE = 3
# Mean difference of the pixels, brightness aside, at most, and as a share of the contrast: images that are flat in most
# places have hardly a bit that says something, and small things on white differ little. What JPEG changes stays below.
_MOST_DIFFERENCE, _SHARE_OF_CONTRAST, _LEAST_DIFFERENCE = 10.0, 0.3, 1.5
# Pairs that are compared at once.
_BLOCK = 1_000_000

Progress = Callable[[int, int], None]


def groups_of(greys: NDArray[np.uint8], progress: Progress | None = None) -> list[list[int]]:
    """Images that are nearly the same, in ascending order. greys: (N, 9, 9).

    A group is connected by its pairs: its first and its last may differ more than two of a pair do.
    """
    count = len(greys)
    bits, known = _hashes(greys)
    flat = greys.reshape(count, -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    contrast = np.abs(flat).mean(axis=1)
    groups = np.arange(count)
    rows = max(1, _BLOCK // max(count, 1))
    for first in range(0, count, rows):
        last = min(first + rows, count)
        distance = np.zeros((last - first, count - first), np.uint8)
        for half in range(bits.shape[1]):
            differing = bits[first:last, None, half] ^ bits[None, first:, half]
            differing &= known[first:last, None, half] & known[None, first:, half]
            distance += np.bitwise_count(differing)
        alike = distance <= _MOST_BITS
        for row in np.flatnonzero(alike.sum(axis=1) > 1):
            one = first + int(row)
            others = first + np.flatnonzero(alike[row])
            # thousands of frames of a clip make one group, not millions of pairs
            others = others[groups[others] != groups[one]]
            allowed = np.maximum(_LEAST_DIFFERENCE, _SHARE_OF_CONTRAST * np.minimum(contrast[others], contrast[one]))
            differs = np.abs(flat[others] - flat[one]).mean(axis=1)
            near = others[differs <= np.minimum(_MOST_DIFFERENCE, allowed)]
            if len(near):
                groups[np.isin(groups, groups[near])] = groups[one]
        if progress is not None:
            progress(last, count)
    members: dict[int, list[int]] = {}
    for number, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(number)
    return sorted(sorted(group) for group in members.values() if len(group) > 1)


def _hashes(greys: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The bits of each image (N, 2), and which of them say something."""
    values = greys.astype(np.int16)
    across = values[:, :-1, 1:] - values[:, :-1, :-1]
    down = values[:, 1:, :-1] - values[:, :-1, :-1]
    steps = np.stack([across, down], axis=1).reshape(len(greys), 2, -1)
    packed = (np.packbits(which, axis=2) for which in (steps > 0, np.abs(steps) >= _CLOSE))
    bits, known = (np.ascontiguousarray(each).view(np.uint64)[..., 0] for each in packed)
    return bits, known


def find(
    images: Sequence[tuple[str, str, int, int]], memory: ScanCache, progress: Progress
) -> tuple[list[list[int]], int]:
    """Groups of images by their number, and how many can't be read. images: content key, path, width and height."""
    files = {key: (Path(path), width, height) for key, path, width, height in images}
    looks = looks_of(files, memory, progress)
    seen = [number for number, (key, *_) in enumerate(images) if key in looks]
    greys = np.array([np.frombuffer(looks[images[n][0]].grey, np.uint8) for n in seen]).reshape(-1, SIDE, SIDE)
    groups = groups_of(greys.astype(np.uint8))
    return [[seen[number] for number in group] for group in groups], len(images) - len(seen)


def main(argv: Sequence[str] | None = None) -> int:
    """Find the groups of the file's images, and write them."""
    arguments = sys.argv[1:] if argv is None else argv
    request = json.loads(Path(arguments[0]).read_text("utf-8"))
    out = stdout_writer()
    tell = progress_lines(out, True)
    memory = ScanCache(Path(request["cache_dir"]))
    groups, unread = find(
        [tuple(image) for image in request["images"]], memory, lambda done, total: tell(done, total, "")
    )
    write_json(out, {"kind": "result", "groups": groups, "unread": unread})
    return 0


if __name__ == "__main__":
    sys.exit(main())
