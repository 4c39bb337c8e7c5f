"""After how many steps a compile has paid for itself. Torch-free: the page shows it."""

from __future__ import annotations

import math
from pathlib import Path

from backend.bench.record import read_rows
from backend.bench.table import groups

RECORDS = Path(__file__).parents[2] / "docs" / "benchmarks"


def measured_speedup(checkpointing: bool, record: Path = RECORDS / "flux-compile") -> float | None:
    """How many times faster than eager our default (static, auto attention) ran in the bench; None without a record."""
    if not (record / "results.csv").is_file():
        return None
    found = {g.variant: g.median("s_per_step") for g in groups(read_rows(record)) if g.checkpointing is checkpointing}
    eager, ours = found.get("eager"), found.get("static:sdpa")
    return eager / ours if eager and ours else None


def steps_to_pay(compile_seconds: float, s_per_step: float, speedup: float) -> int | None:
    """Steps until the time saved equals `compile_seconds`; None when a compiled step saves nothing.

    s_per_step: seconds of a compiled step. speedup: eager seconds a step by compiled ones.
    """
    saved = s_per_step * (speedup - 1)
    return math.ceil(compile_seconds / saved) if saved > 0 else None
