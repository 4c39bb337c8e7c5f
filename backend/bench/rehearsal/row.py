"""Computes the figures of a rehearsal from what its run wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, TypeVar

from backend.bench.rehearsal.trial import Process, Row, Trial
from backend.plan.finish.timings import warm_from
from backend.runs.events.kinds import (
    CompileStateEvent,
    CudaGraphsEvent,
    Event,
    MemoryEstimateEvent,
    MemoryPeakEvent,
)

Kind = TypeVar("Kind", bound=Event)

_GB = 2**30


def figures(trial: Trial) -> dict[str, Any]:
    """What the run's events and step rows say: phases, steps, graphs, memory, resume.

    Seconds unless a name says GB (2**30 bytes) or percent; None for what the run did not tell (on a CPU
    the memory of a GPU).
    """
    first, resumed = trial.first, trial.resumed
    row: dict[str, Any] = {
        "device": _device(first),
        "total_s": round((resumed or first).ended - first.began, 1),
        "phases_s": phases(first),
        **_steps(first.rows),
        **_graphs(first),
        **_memory(first),
        "resumed_from": None,
        "resume_first_step_s": None,
        "resume_cache_misses": None,
    }
    if resumed is not None and resumed.rows:
        row |= {
            "resumed_from": int(resumed.rows[0]["step"]) - 1,
            "resume_first_step_s": round(resumed.rows[0]["t"] - resumed.began, 1),
            "resume_cache_misses": resumed.rows[-1]["cache_misses"],
        }
    return row | {"error": trial.error}


def phases(process: Process) -> dict[str, float]:
    """Seconds that each phase took, in the order in which they began; "start" is what comes before the first."""
    return {name: round(took, 1) for name, took in process.phases().items()}


def _steps(rows: Sequence[Row]) -> dict[str, Any]:
    warm = warm_from(rows)
    times = [row["s_per_step"] for row in rows[warm:] if row["s_per_step"] is not None]
    return {
        "steps": len(rows),
        "warm_up_steps": warm,
        "s_per_step": round(median(times), 4) if times else None,
        "compile_s": round(rows[-1]["compile_seconds"] or 0.0, 1) if rows else None,
        "loss": rows[-1]["loss_smooth"] if rows else None,
    }


def _graphs(process: Process) -> dict[str, Any]:
    """Graphs as planned and as made, and what became of the recorded passes."""
    last = process.rows[-1] if process.rows else {}
    compiled, recorded = _last(process, CompileStateEvent), _last(process, CudaGraphsEvent)
    outcome = [] if recorded is None else [recorded.state, recorded.reason]
    return {
        "compile_state": None if compiled is None else compiled.state,
        "planned_graphs": None if compiled is None else compiled.planned,
        "graphs": last.get("graphs"),
        "recompiles": last.get("recompiles"),
        "breaks": last.get("breaks"),
        "cache_misses": last.get("cache_misses"),
        "recorded": " ".join(filter(None, outcome)) or None,
    }


def _memory(process: Process) -> dict[str, Any]:
    """The peak and the estimate, in percent of what the run compares it with at its end."""
    memory = _last(process, MemoryPeakEvent) or MemoryPeakEvent()
    recorded = _last(process, CudaGraphsEvent)
    kept = None if recorded is None else recorded.kept
    peak, estimated, compared = memory.vram_peak, memory.vram_estimated, memory.vram_compared
    percent = round(100 * estimated / compared, 1) if compared and estimated else None
    return {
        "peak_allocated_gb": _gb(peak),
        "peak_reserved_gb": _gb(memory.vram_reserved_peak),
        "recordings_gb": _gb(kept),
        "estimated_gb": _gb(estimated),
        "estimate_percent": percent,
        "memory_words": memory.words,
        "ram_peak_gb": _gb(memory.ram_peak),
        "ram_estimated_gb": _gb(memory.ram_estimated),
    }


def _device(process: Process) -> str:
    estimate = _last(process, MemoryEstimateEvent)
    return str(estimate.card["name"]) if estimate is not None and estimate.card else "CPU"


def _last(process: Process, kind: type[Kind]) -> Kind | None:
    """The last event of a class; None where there is none."""
    return next((event for event in reversed(process.events) if isinstance(event, kind)), None)


def _gb(size: float | None) -> float | None:
    return None if size is None else round(size / _GB, 2)
