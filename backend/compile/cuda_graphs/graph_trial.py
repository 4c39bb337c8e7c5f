"""Finds out whether recording a run's passes as CUDA graphs pays on this GPU, by timing some plain ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from backend.compile.cuda_graphs import capture

ROOM = 2.3
"""Free memory that recording needs, in what a pass needs: recordings keep that much, and a shape that comes later runs
plainly beside them first."""
SPARE = 8 << 30
"""Bytes that must be free besides, where large kernels make recording a small gain: samples may need them later."""
_PASSES = 3
_SHARE = 0.3
"""Least part of a forward pass that the processor needs for launching it, for recording to be tried at all. On an H200
it is most of a pass of SDXL, which a replay shortens by nearly four fifths."""
_LONG_S = 1.0
"""Seconds of a forward pass from which on recording is not tried. Launching one of FLUX or Wan takes a tenth to a third
of a second, and goes on while the GPU computes; of longer passes a trial takes a minute and more."""
_GAIN = 0.03
"""Least part of a forward and backward pass that a replay has to save. FLUX's 4 + 8 compiled blocks gain 2 to 7 % on an
H200. Launching also waits where a slow GPU has many kernels queued, so that the share alone does not decide."""


class Trial:
    """Runs some passes as they are, waits for each, and says whether the processor is what they wait for.

    spare: bytes that must be free besides what recording takes. against: why nothing is to be recorded, once that is
    found. words: what was found, as a sentence's second half. gain: the part of a forward and backward pass that the
    first recording's replay saves, once it is known.
    """

    def __init__(self, spare: int = 0) -> None:
        self.spare = spare
        self.against = ""
        self.words = ""
        self.gain: float | None = None
        self._shares: list[float] = []

    @property
    def decided(self) -> bool:
        """Whether it has seen enough."""
        return bool(self.words)

    def __call__(self, function: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        capture.wait()
        began = time.perf_counter()
        out = function(*inputs, **named)
        launched = time.perf_counter()
        capture.wait()
        seconds = time.perf_counter() - began
        self._shares.append((launched - began) / seconds)
        if seconds > _LONG_S:
            self.words = f"a forward pass takes {seconds:.1f} s"
            self.against = f"the GPU does not wait for the processor: {self.words}"
        elif len(self._shares) == _PASSES:
            share = statistics.median(self._shares)
            self.words = f"launching takes {share:.0%} of a forward pass"
            if share < _SHARE:
                self.against = f"the GPU does not wait for the processor: {self.words}"
        return out

    def pays(self, gain: float) -> bool:
        """Whether a replay that saves this part of a forward and backward pass saves enough."""
        self.gain = gain
        self.words = f"a replay saves {gain:.0%} of a forward and backward pass"
        if gain < _GAIN:
            self.against = f"it hardly pays on this GPU: {self.words}"
        return not self.against
