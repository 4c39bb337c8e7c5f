"""Decides from the settings whether a run's passes are recorded as CUDA graphs, and inductor's mode. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from backend.config.schema import Config

RECORDING_MODES = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes of torch.compile that record CUDA graphs -> the mode of inductor that compiles the same without them.

torch's own recordings are a pair a block, which several backward passes between two steps overwrite. Ours are of whole
training passes (`backend.compile.cuda_graphs.recording`), so these two modes mean: this mode of inductor, recorded by
us.
"""


def mode_records(compiles: bool, mode: str, backend: str) -> bool:
    """Whether the compile options alone turn on recorded passes: only inductor has modes."""
    return compiles and mode in RECORDING_MODES and backend == "inductor"


def recording_of(cfg: Config) -> Literal["auto", "on", "off"]:
    """Whether training passes are recorded: `cuda_graphs`, which is on with a mode that records where it is auto."""
    section = cfg.compile
    if section.cuda_graphs == "auto" and mode_records(section.compile, section.compile_mode, section.compile_backend):
        return "on"
    return section.cuda_graphs
