"""Bounds the memory of pictures that are decoded at one time, over all threads of a process.

A small file may hold a huge picture: 2 MB of PNG can be 24,000 x 24,000 px. Such pictures wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

# As decoded: four bytes a pixel cover every mode with the copy that a conversion makes being part of the next picture.
BYTES_A_PIXEL = 4
_BUDGET_BYTES = 1_000_000_000


class DecodeBudget:
    """So many bytes of decoded pictures at one time; a picture above the whole budget is decoded alone."""

    def __init__(self, total: int = _BUDGET_BYTES) -> None:
        self._total = total
        self._used = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def room(self, width: int, height: int) -> Iterator[None]:
        """Wait until a picture of this size in px may be decoded, and hold its place. Not to be nested in a thread."""
        wanted = min(self._total, max(0, width) * max(0, height) * BYTES_A_PIXEL)
        with self._changed:
            self._changed.wait_for(lambda: self._used + wanted <= self._total)
            self._used += wanted
        try:
            yield
        finally:
            with self._changed:
                self._used -= wanted
                self._changed.notify_all()


BUDGET = DecodeBudget()
