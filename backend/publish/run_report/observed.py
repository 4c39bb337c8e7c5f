"""Compares what was planned with what the run did, and lists what was compiled: rows of texts for a report."""

from __future__ import annotations

from typing import Any

from backend.publish.run_report.facts import ReportFacts
from backend.runs.events.compile_kinds import (
    AttentionEvent,
    CompiledShareEvent,
    CompileStateEvent,
    CudaGraphsEvent,
    GraphBreakEvent,
    GraphEvent,
    RecompileEvent,
)
from backend.runs.events.kinds import MemoryEstimateEvent, MemoryPeakEvent, PlanEvent, StepTotalEvent


def plan_rows(facts: ReportFacts) -> list[tuple[str, str, str]]:
    """(what, planned, observed)."""
    rows: list[tuple[str, str, str]] = []
    total, plan = facts.last(StepTotalEvent), facts.last(PlanEvent)
    if total is not None:
        rows.append(("Steps", f"{total.total:,}", f"{facts.status.step:,}"))
    if plan is not None:
        steps = plan.steps or {}
        if steps.get("sentence"):
            rows.append(("Length", str(steps["sentence"]), ""))
        planned = _number((plan.graphs or {}).get("total")) if plan.compile else None
        if planned is not None:
            recompiles = f", {facts.summary.recompiles} recompiles" if facts.summary.compiled else ""
            rows.append(("Graphs", f"{planned}", f"{facts.summary.graphs or 0}{recompiles}"))
    peak, estimate = facts.last(MemoryPeakEvent), facts.last(MemoryEstimateEvent)
    if peak is not None and peak.vram_estimated and peak.vram_compared:
        rows.append(("GPU memory", _gigabytes(peak.vram_estimated), _gigabytes(peak.vram_compared)))
    if peak is not None and peak.ram_estimated and peak.ram_peak:
        rows.append(("Main memory", _gigabytes(peak.ram_estimated), _gigabytes(peak.ram_peak)))
    elif estimate is not None and estimate.headline:
        rows.append(("Memory", estimate.headline, ""))
    return rows


def compile_rows(facts: ReportFacts) -> list[tuple[str, str]]:
    """(what, how it was)."""
    rows: list[tuple[str, str]] = []
    state, share = facts.last(CompileStateEvent), facts.last(CompiledShareEvent)
    attention, recorded = facts.last(AttentionEvent), facts.last(CudaGraphsEvent)
    if state is not None:
        rows.append(("State", " ".join(filter(None, (state.state, state.reason)))))
    if share is not None:
        rows.append(("Forward time that runs compiled", f"{share.share:.0%}"))
    if facts.summary.compile_seconds is not None:
        rows.append(("Seconds", f"{facts.summary.compile_seconds:.1f}"))
    for event in facts.all_of(RecompileEvent)[-10:]:
        rows.append(("Recompile", ": ".join(filter(None, (event.block, event.reason)))))
    for breaking in facts.all_of(GraphBreakEvent)[-10:]:
        rows.append(("Graph break", breaking.reason or ""))
    if attention is not None:
        rows.append(("Attention", " ".join(filter(None, (attention.route, attention.detail, f"({attention.how})")))))
    if recorded is not None and recorded.state:
        shapes = f"{recorded.shapes} shapes" if recorded.shapes else ""
        rows.append(("CUDA graphs", ", ".join(filter(None, (recorded.state, shapes, recorded.reason)))))
    return rows


def graph_rows(facts: ReportFacts) -> list[tuple[str, str, str, str, str]]:
    """(number, block class, tokens, seconds, what else) of each graph that was compiled."""
    return [
        (
            str(event.graph),
            event.block or "",
            " + ".join(str(count) for count in (event.text_tokens, event.image_tokens) if count is not None),
            "" if event.seconds is None else f"{event.seconds:.2f}",
            ", ".join(
                filter(
                    None,
                    (
                        "from the cache" if event.cached else "",
                        "no gradients" if event.gradients is False else "",
                        event.reason,
                    ),
                )
            ),
        )
        for event in facts.all_of(GraphEvent)[-60:]
    ]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.2f} GB"
