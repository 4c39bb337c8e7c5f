"""Computes how long a run will still take from its recent steps; and says durations in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

# The first steps of a process warm up caches, kernels and the data loader, compiled or not.
FIRST_STEPS = 3
RECENT = 60
# What `step_seconds` looks at.
TIMING = ("step", "generation", "s_per_step", "compile_seconds", "graphs", "recompiles")


def step_seconds(rows: Sequence[Mapping], start_step: int = 0) -> float | None:
    """Median seconds of a step over recent rows, leaving out a start's first steps and steps that compiled.

    Args:
        rows: consecutive metric rows, oldest first, as `MetricsReader.tail` gives them.
        start_step: the step after which the present process began.

    Returns:
        Seconds, or None while no row says anything yet. Saving, sampling and validation are not part of a row's time.
    """
    taken = []
    for before, row in zip([None, *rows], rows, strict=False):
        seconds = row.get("s_per_step")
        if seconds is None or row["step"] <= start_step + FIRST_STEPS or _compiled(before, row):
            continue
        taken.append(seconds)
    return median(taken[-RECENT:]) if taken else None


def _compiled(before: Mapping | None, row: Mapping) -> bool:
    if before is None or before.get("generation") != row.get("generation"):
        # The row before is unknown: keep it out, unless nothing was ever compiled.
        return bool(row.get("compile_seconds"))
    return any((row.get(name) or 0) > (before.get(name) or 0) for name in ("compile_seconds", "graphs", "recompiles"))


def spoken(seconds: float) -> str:
    """A duration for people: ``45 s``, ``12 min``, ``1 h 05 min``, ``2 d 3 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{round(whole / 60)} min" if whole >= 600 else f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
