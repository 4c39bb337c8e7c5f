"""The demo's words and its picture, from records written by hand."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from backend.demo.report import draw_before_after, outcome_lines, percent, read_outcome
from backend.runs.events import EventWriter
from backend.runs.events.kinds import (
    CompileStateEvent,
    Event,
    GraphEvent,
    RecompileEvent,
    SampleEvent,
    ValidationEvent,
)
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter

BEFORE, AFTER = {"0.05": 0.4, "0.35": 0.2}, {"0.05": 0.3, "0.35": 0.15}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run without any record yet."""
    return Run.create_empty(tmp_path, "demo")


def write(run: Run, *events: Event) -> None:
    writer = EventWriter(run)
    for event in events:
        writer.write(event)


def validation(step: int, losses: dict[str, float], name: str = "concept") -> Event:
    mean = sum(losses.values()) / len(losses)
    return ValidationEvent(step=step, set=name, sigma_losses=losses, loss=mean)


def compiled(graphs: int, planned: int = 2, state: str = "compiled", reason: str | None = None) -> list[Event]:
    made = [GraphEvent(graph=n + 1, block="double", seconds=1.0) for n in range(graphs)]
    return [CompileStateEvent(state=state, reason=reason, planned=planned), *made]


def report_texts(run: Run) -> tuple[str, str]:
    """The report as plain text, and as a terminal with colours gets it."""
    plain, coloured = StringIO(), StringIO()
    for file, colours in ((plain, False), (coloured, True)):
        console = Console(file=file, width=100, force_terminal=colours, color_system="standard" if colours else None)
        for line in outcome_lines(read_outcome(run)):
            console.print(line)
    return plain.getvalue(), coloured.getvalue()


def row(text: str, *first: str) -> list[str]:
    """The words of the line that begins with these words."""
    rows = [line.split() for line in text.splitlines() if line.split()[: len(first)] == list(first)]
    assert len(rows) == 1, text
    return rows[0]


def test_losses_are_told_for_every_set_and_noise_level(run: Run) -> None:
    write(run, validation(0, BEFORE), validation(0, BEFORE, "base"))
    write(run, validation(5, {"0.05": 0.9, "0.35": 0.9}), validation(9, AFTER), validation(9, BEFORE, "base"))
    text, _ = report_texts(run)
    assert row(text, "concept") == ["concept", "all", "0.30000", "0.22500", "-25.0", "%"]
    assert row(text, "base") == ["base", "all", "0.30000", "0.30000", "+0.0", "%"]
    assert ["0.05", "0.40000", "0.30000", "-25.0", "%"] in [line.split() for line in text.splitlines()]


def test_a_set_that_was_measured_once_has_no_change(run: Run) -> None:
    write(run, validation(9, AFTER))
    assert read_outcome(run).changes == ()
    assert "Validation" not in report_texts(run)[0]


def test_percent_falls_below_zero() -> None:
    assert percent(0.4, 0.3) == pytest.approx(-25)
    assert percent(0.2, 0.21) == pytest.approx(5)


def test_graphs_as_planned_are_told_in_plain(run: Run) -> None:
    write(run, *compiled(2))
    with MetricsWriter(run) as metrics:
        metrics.add(1, compile_seconds=41.26, graphs=2)
    text, coloured = report_texts(run)
    assert "Graphs: 2 planned, 2 compiled; 0 recompiles, 0 graph breaks" in text
    assert "Compile time: 41.3 s" in text
    assert "\x1b[33m" not in coloured


def test_a_graph_too_many_is_amber(run: Run) -> None:
    write(run, *compiled(3), RecompileEvent(reason="image tokens", block="double"))
    text, coloured = report_texts(run)
    assert "Graphs: 2 planned, 3 compiled; 1 recompiles, 0 graph breaks" in text
    assert "\x1b[33mGraphs" in coloured


def test_without_a_compiler_it_says_so_in_amber(run: Run) -> None:
    write(run, *compiled(0, state="fallback", reason="compile was asked for, but the run is eager: no C++ compiler"))
    text, coloured = report_texts(run)
    assert "no C++ compiler" in text
    assert "\x1b[33mCompile: " in coloured


def test_compile_switched_off_is_no_alarm(run: Run) -> None:
    write(run, CompileStateEvent(state="off", planned=0))
    text, coloured = report_texts(run)
    assert text.strip() == "Compile: off"
    assert "\x1b[33m" not in coloured


def test_first_and_last_sample_of_each_prompt_lie_side_by_side(run: Run) -> None:
    colours = {(0, 0): "red", (0, 1): "lime", (5, 0): "grey", (9, 0): "blue", (9, 1): "yellow"}
    for (step, prompt), colour in colours.items():
        size = (64, 64) if prompt == 0 else (96, 48)
        path = run.samples_dir / f"step{step}-{prompt}.png"
        Image.new("RGB", size, colour).save(path)
        write(run, SampleEvent(step=step, prompt_index=prompt, file=path.name, prompt=f"p{prompt} 猫"))
    sheet = draw_before_after(read_outcome(run), run.path / "sheet.png")
    assert sheet is not None
    with Image.open(sheet) as picture:
        pixels = picture.convert("RGB")
        assert pixels.getpixel((20, 60)) == (255, 0, 0)
        assert pixels.getpixel((20 + 96 + 16, 60)) == (0, 0, 255)
        counted = {colour: count for count, colour in pixels.getcolors(100_000)}
    assert counted[(0, 255, 0)] == counted[(255, 255, 0)] == 96 * 48
    assert (128, 128, 128) not in counted or counted[(128, 128, 128)] < 64
    assert run.samples() and sheet not in [sample.path for sample in run.samples()]


def test_nothing_drawn_makes_no_picture(run: Run) -> None:
    assert draw_before_after(read_outcome(run), run.path / "sheet.png") is None
    assert not (run.path / "sheet.png").exists()
