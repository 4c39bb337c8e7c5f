"""Compiles a training step's forward for fixed shapes, and steps down when the compiler or its CUDA graphs fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)
# On the first machine a step was bound by kernel launches: 83 ms eager, 50 ms compiled, 13 ms with CUDA graphs.
MODES = ("reduce-overhead", "default", None)


class Fast:
    """`function`, compiled in the first of MODES that works (None: as it is). `warm` chooses it."""

    def __init__(self, function: Callable[..., torch.Tensor], compiled: bool) -> None:
        self.function = function
        self.modes = list(MODES if compiled else MODES[-1:])
        self._call = function

    def __call__(self, *args: object) -> torch.Tensor:
        if self.modes[0] == MODES[0]:
            torch.compiler.cudagraph_mark_step_begin()
        return self._call(*args)

    def warm(self, step: Callable[[], None], repeats: int = 4) -> None:
        """Choose a mode by running `step`, a forward and backward that calls this object, a few times."""
        while True:
            begun, mode = time.monotonic(), self.modes[0]
            self._call = self.function if mode is None else torch.compile(self.function, dynamic=False, mode=mode)
            try:
                for _ in range(repeats):
                    step()
            except Exception as error:  # any failure of a compiler means the same here: go on without it
                if mode is None:
                    raise
                log.warning("compile mode %s failed and is left out: %s", mode, str(error).splitlines()[:1])
                self.modes.pop(0)
                torch._dynamo.reset()
                continue
            log.info("%s: %s in %.0f s", self.function.__name__, mode or "eager", time.monotonic() - begun)
            return
