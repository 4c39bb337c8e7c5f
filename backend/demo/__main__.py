"""Trains the demo's LoRA as a run like any other, and shows what it changed: ``python -m backend.demo.__main__``.

The run is the preset ``demo``, or with ``--video`` the preset ``demo-video``, started as the page starts it: a process
of its own with a folder of its own. This process only reads that folder, so that every number it shows is one the run
wrote down.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from backend.base.errors import Refused, WriteFailed
from backend.base.paths import BUILTIN_PRESETS
from backend.base.problems import errors
from backend.config.load import load, ready
from backend.config.schema import Config
from backend.demo.report import Outcome, draw_before_after, outcome_lines, read_outcome
from backend.runs.errors import RunError
from backend.runs.eta import spoken
from backend.runs.folder import Run
from backend.runs.status import Failure, RunStatus
from backend.runs.status_reader import StatusReader
from backend.runs.supervise import start, stop
from backend.training.terminal import show

PRESET, VIDEO = BUILTIN_PRESETS / "demo.toml", BUILTIN_PRESETS / "demo-video.toml"
SHEET = "before-after.png"
DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
_EVERY_S = 0.3
# Time for the waiting thread to record the exit code of a process that has just ended.
_EXIT_CODE_S = 2.0


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the demo; returns 0, 1 when the run failed or was stopped, 2 when it can't start, 130 after Ctrl+C."""
    begun = time.monotonic()
    options = _parser().parse_args(arguments)
    console = console or Console(highlight=False)
    try:
        cfg = settings(options.preset or (VIDEO if options.video else PRESET), options.steps, options.runs)
        run = start(cfg)
    except (Refused, RunError, WriteFailed) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return WRONG_INPUT
    console.print(f"Training a LoRA for a small base model, on {cfg.dataset.folders[0].path}.")
    _print(console, "Run", str(run.path))
    try:
        status = follow(run, console)
    except KeyboardInterrupt:
        console.print("Stopping. The run saves first. Press Ctrl+C again to stop waiting for it.")
        result = stop(run)
        console.print(result.sentence(), markup=False, soft_wrap=True)
        return INTERRUPTED
    if status.state != "done":
        _print_failure(console, status)
        return FAILED
    return _print_result(console, run, time.monotonic() - begun)


def settings(preset: Path = PRESET, steps: int | None = None, runs: str | None = None) -> Config:
    """The preset's settings, with another length or folder of the run. Raises Refused with all problems."""
    changes = {"max_train_steps": steps, "output_dir": runs}
    loaded = load(preset, {name: str(value) for name, value in changes.items() if value is not None})
    problems = list(loaded.problems)
    if loaded.config is not None:
        problems += ready(loaded.config)
    if loaded.config is None or errors(problems):
        raise Refused.of(errors(problems))
    return loaded.config


def follow(run: Run, console: Console) -> RunStatus:
    """Show the run's progress until its process has ended; its status then."""
    reader = StatusReader(run)
    with show(run, console):
        status = reader.read()
        while status.active:
            time.sleep(_EVERY_S)
            status = reader.read()
    patience = time.monotonic() + _EXIT_CODE_S
    while status.state == "dead" and status.exit_code is None and time.monotonic() < patience:
        time.sleep(_EVERY_S)
        status = reader.read()
    return status


def _print_result(console: Console, run: Run, seconds: float) -> int:
    outcome = read_outcome(run)
    sheet = _sheet(console, run, outcome)
    console.print()
    for line in outcome_lines(outcome):
        console.print(line)
    if outcome.lora is not None:
        _print(console, "LoRA", str(outcome.lora))
    for sample in outcome.samples:
        _print(console, "Sample", f"{sample.prompt!r}: before {sample.before}, after {sample.after}")
    if sheet is not None:
        _print(console, "Before and after", str(sheet))
    _print(console, "Time", f"{spoken(seconds)} in total")
    return DONE


def _sheet(console: Console, run: Run, outcome: Outcome) -> Path | None:
    """The samples before and after in one image; None when there are none or, with a warning, when writing fails."""
    try:
        return draw_before_after(outcome, run.path / SHEET)
    except (OSError, WriteFailed) as error:
        console.print(f"warning: {SHEET} is missing: {error}", style="yellow", markup=False, soft_wrap=True)
        return None


def _print_failure(console: Console, status: RunStatus) -> None:
    error = status.error or Failure("It was stopped before its end.")
    lines = [f"The demo did not finish: {status.text}", error.cause, error.remedy, error.exception or ""]
    for line in filter(None, lines):
        console.print(line, style="red", markup=False, soft_wrap=True)
    _print(console, "Log", str(status.path / "log.txt"))


def _print(console: Console, name: str, value: str) -> None:
    """Print one line that a narrow terminal does not cut, so that a path in it can be copied."""
    console.print(Text.assemble((f"{name}: ", "bold"), value), soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo", description="Train the demo's LoRA and show what it changed.", allow_abbrev=False
    )
    parser.add_argument("--steps", type=int, metavar="N", help="train N steps instead of the preset's number")
    parser.add_argument("--runs", metavar="DIR", help="folder for the run's own folder (default: runs)")
    parser.add_argument(
        "--video", action="store_true", help="train a tiny video model with random weights on short clips instead"
    )
    parser.add_argument("--preset", type=Path, metavar="FILE", help="use these settings instead of the demo's")
    return parser


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
