"""A script of this repository, run as `python SCRIPT` runs it, in this process."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest


def run_script(script: Path, *arguments: str) -> None:
    """Run the script as the main module, with its folder first on the path as Python puts it there.

    What it imports beyond its own modules (torch, diffusers) is here already, which a process takes seconds for. What
    it sets of torch for all is set back.
    """
    import torch

    backends = torch.backends
    before = backends.cudnn.benchmark, torch.get_float32_matmul_precision(), backends.cuda.cudnn_sdp_enabled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.syspath_prepend(str(script.parent))
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            backends.cudnn.benchmark = before[0]
            torch.set_float32_matmul_precision(before[1])
            backends.cuda.enable_cudnn_sdp(before[2])
