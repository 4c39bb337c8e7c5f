"""Reads what a finished run changed from its records: losses before and after, compiling, samples side by side."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from backend.base.files import write_atomic
from backend.runs.events import read_events
from backend.runs.events.kinds import (
    CompileStateEvent,
    DoneEvent,
    Event,
    GraphBreakEvent,
    GraphEvent,
    RecompileEvent,
    ValidationEvent,
)
from backend.runs.folder import Run, Sample
from backend.runs.metrics import MetricsReader
from backend.runs.samples import is_clip, sheet_of

_AMBER = "yellow"
_GAP = 16
_TEXT_PX = 15


@dataclass(frozen=True)
class Measured:
    """One validation of a set."""

    step: int
    sigma_losses: dict[str, float]
    """Loss at each noise level, by the setting's text ("0.05")."""
    loss: float
    """Their mean."""


@dataclass(frozen=True)
class Change:
    """A validation set at the run's first and last measurement."""

    name: str
    before: Measured
    after: Measured


@dataclass(frozen=True)
class Compiling:
    """What was compiled."""

    state: str
    """``off``, ``compiled``, ``partly`` or ``fallback``, the last two with a reason."""
    reason: str | None
    planned: int
    """Graphs of the shape plan."""
    graphs: int
    recompiles: int
    breaks: int
    seconds: float
    """Wall time spent compiling, from the last step's row."""


@dataclass(frozen=True)
class Pair:
    """A prompt's first and last sample: two different images or clips."""

    prompt: str
    before: Path
    after: Path


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    changes: tuple[Change, ...]
    compiling: Compiling
    samples: tuple[Pair, ...]
    lora: Path | None
    """The file of the finished LoRA, if there is one."""


def read_outcome(run: Run) -> Outcome:
    """Read the records of `run`; what it did not measure, draw or compile is left out."""
    events, _ = read_events(run.events_path)
    loras = [event.lora for event in events if isinstance(event, DoneEvent)]
    lora = Path(loras[-1]) if loras and loras[-1] else None
    return Outcome(_changes(events), _compiling(events, run), _pairs(run.samples()), lora)


def percent(before: float, after: float) -> float:
    """The change from `before` to `after` in percent of `before`; below 0 is a fall. `before` must not be 0."""
    return (after / before - 1) * 100


def outcome_lines(outcome: Outcome) -> Iterable[RenderableType]:
    """Losses and compiling for a terminal, top to bottom."""
    if outcome.changes:
        yield loss_table(outcome.changes)
    compiling = outcome.compiling
    if compiling.state == "off":
        yield Text("Compile: off")
        return
    if compiling.state in ("fallback", "partly"):
        yield Text(f"Compile: {compiling.reason}. The LoRA is just as good; training took longer.", _AMBER)
    counts = (
        f"Graphs: {compiling.planned} planned, {compiling.graphs} compiled; "
        f"{compiling.recompiles} recompiles, {compiling.breaks} graph breaks"
    )
    as_planned = compiling.graphs == compiling.planned and not compiling.recompiles and not compiling.breaks
    yield Text(counts, "" if as_planned else _AMBER)
    yield Text(f"Compile time: {compiling.seconds:.1f} s")


def loss_table(changes: Sequence[Change]) -> Table:
    """Validation loss before and after for every set, as the mean and at each noise level."""
    table = Table(title="Validation loss", title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("Set")
    table.add_column("Noise level")
    for name in ("Before", "After", "Change"):
        table.add_column(name, justify="right")
    for change in changes:
        rows = [("all", change.before.loss, change.after.loss)]
        rows += [(s, change.before.sigma_losses[s], change.after.sigma_losses[s]) for s in change.before.sigma_losses]
        for number, (sigma, before, after) in enumerate(rows):
            name = change.name if number == 0 else ""
            moved = f"{percent(before, after):+.1f} %" if before else ""
            table.add_row(
                Text(name),
                sigma,
                f"{before:.5f}",
                f"{after:.5f}",
                moved,
                style="" if number else "bold",
                end_section=False,
            )
    return table


def draw_before_after(outcome: Outcome, path: Path) -> Path | None:
    """Write a PNG with each prompt's first and last sample side by side; None when no prompt has two.

    Of a clip, some of its frames.
    """
    if not outcome.samples:
        return None
    rows = [(pair.prompt, _open(pair.before), _open(pair.after)) for pair in outcome.samples]
    font = ImageFont.load_default(_TEXT_PX)
    column = max(max(before.width, after.width) for _, before, after in rows)
    heights = [max(before.height, after.height) for _, before, after in rows]
    line = _TEXT_PX + _GAP // 2
    size = (2 * column + 3 * _GAP, sum(heights) + len(rows) * (line + _GAP) + line + 2 * _GAP)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for number, title in enumerate(("before", "after")):
        pen.text((_GAP + number * (column + _GAP), _GAP), title, "black", font=font)
    y = _GAP + line
    for (prompt, before, after), height in zip(rows, heights, strict=True):
        sheet.paste(before, (_GAP, y))
        sheet.paste(after, (2 * _GAP + column, y))
        # the built-in font knows Latin letters only
        shown = prompt.encode("latin-1", "replace").decode("latin-1")
        pen.text((_GAP, y + height + 4), shown, "black", font=font)
        y += height + line + _GAP
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    write_atomic(path, buffer.getvalue())
    return path


def _open(path: Path) -> Image.Image:
    with Image.open(sheet_of(path) if is_clip(path) else path) as picture:
        return picture.convert("RGB")


def _changes(events: Sequence[Event]) -> tuple[Change, ...]:
    measured: dict[str, list[Measured]] = {}
    for event in events:
        if isinstance(event, ValidationEvent) and event.loss is not None:
            validation = Measured(event.step, dict(event.sigma_losses or {}), event.loss)
            measured.setdefault(event.set, []).append(validation)
    return tuple(Change(name, losses[0], losses[-1]) for name, losses in measured.items() if len(losses) > 1)


def _compiling(events: Sequence[Event], run: Run) -> Compiling:
    states = [event for event in events if isinstance(event, CompileStateEvent)]
    row = MetricsReader(run).last() or {}

    def count(kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in events)

    last = states[-1] if states else CompileStateEvent(state="off")
    return Compiling(
        state=last.state or "off",
        reason=last.reason,
        planned=last.planned or 0,
        graphs=count(GraphEvent),
        recompiles=count(RecompileEvent),
        breaks=count(GraphBreakEvent),
        seconds=float(row.get("compile_seconds") or 0.0),
    )


def _pairs(samples: Iterable[Sample]) -> tuple[Pair, ...]:
    drawn: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.step is not None and sample.prompt_index is not None and sample.picture is not None:
            drawn.setdefault(sample.prompt_index, []).append(sample)
    return tuple(
        Pair(same[0].prompt or "", same[0].path, same[-1].path) for _, same in sorted(drawn.items()) if len(same) > 1
    )
