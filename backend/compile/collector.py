"""Lets Python's garbage collector run seldom while torch compiles, which makes millions of objects that live on.

At its usual pace the collector goes over them 400 times in a warm start of two block classes, a sixth of its compile
time (docs/tried.md). It is not off: what a long compile leaves is still collected.
"""

from __future__ import annotations

import gc
import threading

_SELDOM = (100_000, 20, 100)
"""Objects more than before at which it runs, and how many runs of a generation lead to one of the next."""

_lock = threading.Lock()
_compiles = 0
_usual = gc.get_threshold()


def seldom() -> None:
    """A compile begins; they may nest and run side by side."""
    global _compiles, _usual
    with _lock:
        if not _compiles:
            _usual = gc.get_threshold()
            gc.set_threshold(*_SELDOM)
        _compiles += 1


def as_usual() -> None:
    """A compile has ended."""
    global _compiles
    with _lock:
        _compiles = max(0, _compiles - 1)
        if not _compiles:
            gc.set_threshold(*_usual)
