"""Sums up a run for a comparison or a report: curves, held-out losses, pace, memory and compiling."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from backend.runs.events import read_events
from backend.runs.events.compile_kinds import GraphEvent, RecompileEvent
from backend.runs.events.event import Event
from backend.runs.events.kinds import MemoryPeakEvent, ValidationEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader, finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values over the steps of a run, and when each step ended."""

    steps: list[int]
    seconds: list[float]
    """Of training since the first step; the time between a stop and a resume does not count."""
    losses: list[float | None]
    rates: list[float | None] = field(default_factory=list)
    """The learning rate."""

    @property
    def trained(self) -> float | None:
        """Seconds of training until its last step; None before the first."""
        return self.seconds[-1] if self.seconds else None

    def seconds_at(self, step: int) -> float:
        """When a step ended; the nearest known time where it is not on the curve."""
        if not self.steps:
            return 0.0
        return self.seconds[min(bisect_left(self.steps, step), len(self.steps) - 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a run came to. None: nothing says it."""

    held_out: list[tuple[int, float]]
    """(step, loss) of the validation sets that were not trained; of several their mean."""
    s_per_step: float | None
    """The median, so that the first steps, which compile, do not count."""
    vram_peak: int | None
    """Bytes."""
    ram_peak: int | None
    graphs: int | None
    compile_seconds: float | None
    recompiles: int
    compiled: bool
    """Whether any graph was compiled, so that 0 recompiles means something."""

    @property
    def final(self) -> tuple[int, float] | None:
        """The newest held-out loss."""
        return self.held_out[-1] if self.held_out else None

    @property
    def best(self) -> tuple[int, float] | None:
        """The lowest held-out loss."""
        return min(self.held_out, key=lambda point: point[1]) if self.held_out else None


def summarise(run: Run, events: Sequence[Event] | None = None) -> Summary:
    """Sum up a run. events: its own, where they were read already."""
    if events is None:
        events, _ = read_events(run.events_path)
    graphs = [event for event in events if isinstance(event, GraphEvent)]
    peaks = [event for event in events if isinstance(event, MemoryPeakEvent)]
    reader = MetricsReader(run)
    row = reader.last() or {}
    known = [event.seconds for event in graphs if event.seconds is not None]
    return Summary(
        held_out=held_out(events),
        s_per_step=_pace(reader),
        vram_peak=_most([peak.vram_peak for peak in peaks]),
        ram_peak=_most([peak.ram_peak for peak in peaks]),
        graphs=len(graphs) or None,
        compile_seconds=sum(known) if known else None,
        recompiles=max(int(row.get("recompiles") or 0), sum(isinstance(event, RecompileEvent) for event in events)),
        compiled=bool(graphs),
    )


def held_out(events: Sequence[Event]) -> list[tuple[int, float]]:
    """(step, loss) of validation sets that were not trained, by step; a step that was measured again counts once."""
    by_step: dict[int, dict[str, float]] = {}
    for event in events:
        if isinstance(event, ValidationEvent) and not event.trained and (loss := finite(event.loss)) is not None:
            by_step.setdefault(event.step, {})[event.set] = loss
    return [(step, fmean(losses.values())) for step, losses in sorted(by_step.items())]


def curve(run: Run, width: int = 500) -> Curve:
    """Loss, learning rate and time over the steps, as means of at most `width` parts."""
    reader = MetricsReader(run)
    bounds = reader.query("SELECT MIN(step), MAX(step) FROM steps")
    if not bounds or not isinstance(bounds[0][0], int):
        return Curve(steps=[], seconds=[], losses=[])
    size = reader.bucket_size(bounds[0][0], bounds[0][1], width)
    rows = reader.query(
        "SELECT MAX(step), MAX(t), MAX(generation), COUNT(*), AVG(s_per_step), AVG(loss), AVG(lr) FROM steps "
        "GROUP BY step / ? ORDER BY step / ?",
        (size, size),
    )
    seconds: list[float] = []
    for index, (_, t, generation, count, pace, *_) in enumerate(rows):
        worked = (pace or 0.0) * count
        # a resume comes hours later, and is no work
        if index and generation == rows[index - 1][2] and t is not None and rows[index - 1][1] is not None:
            worked = max(0.0, t - rows[index - 1][1])
        seconds.append((seconds[-1] if seconds else 0.0) + worked)
    return Curve(
        steps=[row[0] for row in rows],
        seconds=[round(value, 3) for value in seconds],
        losses=[finite(row[5]) for row in rows],
        rates=[finite(row[6]) for row in rows],
    )


def _pace(reader: MetricsReader) -> float | None:
    count = reader.query("SELECT COUNT(s_per_step) FROM steps WHERE s_per_step > 0")
    if not count or not count[0][0]:
        return None
    sql = "SELECT s_per_step FROM steps WHERE s_per_step > 0 ORDER BY s_per_step LIMIT 1 OFFSET ?"
    rows = reader.query(sql, (count[0][0] // 2,))
    return finite(rows[0][0]) if rows else None


def _most(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value]
    return max(known) if known else None
