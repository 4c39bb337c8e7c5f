"""Shows the progress of a run in the foreground, read from the run's folder as the page does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from backend.base.problems import sentences
from backend.runs.events import read_events
from backend.runs.events.kinds import (
    AttentionEvent,
    CheckpointEvent,
    CudaGraphsEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    GraphBreakEvent,
    MemoryEstimateEvent,
    MemoryPeakEvent,
    PictureLossesEvent,
    RecompileEvent,
    ResumedEvent,
    SampleEvent,
    StoppedEvent,
    ValidationEvent,
    WarningEvent,
)
from backend.runs.events.validation import AverageEvent, BestEvent, EarlyStopEvent, OverfitEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.status_reader import StatusReader
from backend.runs.validation_words import average_words, best_words, early_stop_words, overfit_words

_EVERY_S = 0.25


@contextmanager
def show(run: Run, console: Console | None = None) -> Iterator[None]:
    """Show how `run` gets on until the block ends: a bar with a step's numbers, and a line for each rare event."""
    console = console or Console(stderr=True, highlight=False)
    display = _Display(run, console)
    with display.bar:
        thread = threading.Thread(target=display.follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            display.ended.set()
            thread.join(5)
            display.update()


class _Display:
    """A bar over the run's status, and its events as lines above it."""

    def __init__(self, run: Run, console: Console) -> None:
        self.ended = threading.Event()
        self._run = run
        self._console = console
        self._status = StatusReader(run)
        self._metrics = MetricsReader(run)
        _, self._offset = read_events(run.events_path)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            transient=True,
        )
        self._task = self.bar.add_task("Starting", total=None, numbers="")

    def follow(self) -> None:
        """Update until `ended`."""
        while not self.ended.wait(_EVERY_S):
            self.update()

    def update(self) -> None:
        """Read what is new and show it."""
        events, self._offset = read_events(self._run.events_path, self._offset)
        for event in events:
            line = event_line(event)
            if line:
                self._console.print(line, markup=False)
        status = self._status.read()
        row = self._metrics.last() if status.phase == "train" else None
        self.bar.update(
            self._task,
            description=status.text,
            total=status.total or 1,
            completed=status.done or 0,
            numbers=step_numbers(row),
        )


def step_numbers(row: dict[str, Any] | None) -> str:
    """Loss, rate, speed, memory and graphs of a step's row in a few words."""
    if row is None:
        return ""
    parts = []
    for name, form in (("loss", "loss {:.4f}"), ("loss_smooth", "({:.4f})"), ("lr", "lr {:.2e}")):
        if row.get(name) is not None:
            parts.append(form.format(row[name]))
    if row.get("s_per_step") is not None:
        parts.append(f"{row['s_per_step']:.2f} s/step")
    memory = row.get("vram_allocated") or row.get("ram")
    if memory:
        parts.append(f"{'VRAM' if row.get('vram_allocated') else 'RAM'} {memory / 1e9:.1f} GB")
    if row.get("graphs"):
        parts.append(f"graphs {row['graphs']:.0f}, recompiles {row.get('recompiles') or 0:.0f}")
    return "  ".join(parts)


def event_line(event: Event) -> str:
    """One line for a rare event; empty for what the bar shows."""
    match event:
        case ValidationEvent():
            losses = (event.sigma_losses or {}).items()
            levels = ", ".join(f"{sigma}: {_loss(loss, 4)}" for sigma, loss in losses)
            return f"step {event.step}: validation {event.set} {_loss(event.loss, 5)} ({levels})"
        case BestEvent():
            return f"step {event.step}: {best_words(event)}"
        case EarlyStopEvent():
            return early_stop_words(event)
        case AverageEvent():
            return average_words(event)
        case OverfitEvent():
            notice = sentences(*overfit_words(event))
            return notice if event.state == "ended" else f"warning: {notice}"
        case PictureLossesEvent():
            return f"step {event.step}: losses of {event.pictures} images ({event.moment}) in {event.file}"
        case CheckpointEvent() | SampleEvent():
            return f"step {event.step}: {event.kind} {event.file}"
        case WarningEvent():
            return f"warning: {sentences(event.text, event.remedy)}"
        case ErrorEvent():
            return f"error: {sentences(event.text, event.cause, event.remedy)}"
        case RecompileEvent():
            return f"recompile: {event.reason}"
        case AttentionEvent():
            return _attention_line(event)
        case CudaGraphsEvent():
            times = event.state == "recorded" and event.shapes == 1 and event.plain_ms and event.replay_ms
            return f"CUDA graphs: {event.replay_ms:.0f} ms a pass, {event.plain_ms:.0f} before" if times else ""
        case GraphBreakEvent():
            return f"graph break: {event.reason} ({event.file}:{event.line})"
        case MemoryEstimateEvent():
            return f"memory: {event.headline}"
        case MemoryPeakEvent():
            return f"memory: {event.words}" if event.words else ""
        case ResumedEvent():
            return f"resumed at step {event.step}"
        case StoppedEvent():
            return f"stopped at step {event.step}"
        case DoneEvent():
            return f"done: {event.step} steps, {event.lora}"
    return ""


def _attention_line(event: AttentionEvent) -> str:
    times = ", ".join(f"{name} {each:.3g} ms" for name, each in (event.milliseconds or {}).items())
    return f"attention: {event.route}, measured: {times}" if times else ""


def _loss(value: float | None, digits: int) -> str:
    return "not finite" if value is None else f"{value:.{digits}f}"
