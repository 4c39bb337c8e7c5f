"""Loads large libraries in less time, and lets a process that holds them end at once."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BITSANDBYTES = "bitsandbytes"


@contextmanager
def library_imports() -> Iterator[None]:
    """Load torch and what builds on it, or Gradio, without looking for garbage, and without what nobody uses of them.

    They make a million objects that stay to the end. Looking through them took a seventh of their loading, longer than
    all else each time a run gives memory back, and a second at the end of a process: what they hold is left out of
    every later search, and what the process holds at its end out of the last ones. Where torch is there already,
    nothing is done.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        with without_bitsandbytes():
            yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.freeze)


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Hide bitsandbytes from peft and diffusers while they load; where it is there already, nothing is done.

    Both import it, where it is installed, for models that it quantized, and it imports all of torch.compile's compiler:
    a second of each start. A base model's quantized layers are our own here (`backend.memory.quantized_linear`), files
    of bitsandbytes' format are refused, and nf4, optimizers and captioning models import it themselves, later.
    """
    if _BITSANDBYTES in sys.modules:
        yield
        return
    # Python's own means: a name that stands for None there can't be imported.
    sys.modules[_BITSANDBYTES] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_BITSANDBYTES]
