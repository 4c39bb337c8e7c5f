"""Tells when a run will end: `python -m backend.plan.finish CONFIG.toml`, then the options.

It trains the settings for about 20 seconds first, unless `--known` asks for what was measured before. With `--json` one
document a line on stdout: `{"kind": "progress", "text": ..., "share": ...}` lines, then `{"kind": "finish", ...}` or
`{"kind": "problems", "problems": [...]}`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

from backend.base.command_output import (
    Write,
    progress_of,
    scan_documents,
    stdout_writer,
    write_json,
    write_problems,
)
from backend.base.errors import Refused, WriteFailed
from backend.base.problems import Problem, errors
from backend.config import load
from backend.config.arguments import split
from backend.config.schema import Config
from backend.dataset.scan import scan_dataset
from backend.plan.finish.pace import Pace, keep_pace, read_pace
from backend.plan.finish.probe import SECONDS, measure
from backend.plan.finish.probe import Progress as Report
from backend.plan.finish.reckoning import FinishTime, cost_words, finish_time
from backend.plan.make_plan import plan_for
from backend.plan.plan import Plan
from backend.plan.start_check import start_problems
from backend.runs.errors import RunError

_INTERRUPTED = 130
_OWN = ("json", "known", "seconds", "price-per-hour", "price-per-kwh", "watts", "help")


def main(arguments: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Measure and write the finish time; 0 when it is known, 1 when not, 2 for wrong arguments."""
    parser = _parser()
    try:
        own, overrides = split(sys.argv[1:] if arguments is None else arguments, _OWN)
    except Refused as refused:
        parser.error(str(refused))
    options = parser.parse_args(own)
    out = write or stdout_writer()
    # so that the probe's folder is removed too where the page ends this process
    signal.signal(signal.SIGTERM, _end)
    loaded = load.load(options.config, overrides)
    problems = loaded.problems if loaded.config is None else [*loaded.problems, *start_problems(loaded.config)]
    if loaded.config is None or errors(problems):
        return _refuse(out, options.json, errors(problems))
    config = loaded.config
    progress = scan_documents(out) if options.json else progress_of(out, False, False)
    plan = plan_for(config, scan_dataset(config, progress))
    if errors(plan.problems) or not plan.steps.steps:
        return _refuse(out, options.json, errors(plan.problems))
    try:
        pace = read_pace(config) if options.known else _measured(config, plan, options, out)
    except (RunError, WriteFailed) as error:
        return _refuse(out, options.json, [Problem(None, None, str(error), "")])
    except KeyboardInterrupt:
        sys.stderr.write("Cancelled. What was trained is removed; the caches that it filled are kept.\n")
        return _INTERRUPTED
    expected = None if pace is None else finish_time(config, pace, plan.steps.steps)
    if pace is None or expected is None:
        out("Nothing was measured for these settings yet: run it without --known.\n")
        return 1
    cost = cost_words(expected.seconds, options.price_per_hour, options.price_per_kwh, options.watts)
    _show(out, options.json, expected, pace, cost)
    return 0


def _end(*_: object) -> None:
    # a second request must not keep the first one from being carried out
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _measured(config: Config, plan: Plan, options: argparse.Namespace, out: Write) -> Pace:
    if options.json:
        pace = measure(config, plan, _lines(out), options.seconds)
    else:
        with _bar() as bar:
            task = bar.add_task("Starting", total=1.0)

            def show(text: str, share: float) -> None:
                bar.update(task, description=escape(text), completed=share)

            pace = measure(config, plan, show, options.seconds)
    keep_pace(config, pace)
    return pace


def _lines(out: Write) -> Report:
    last: list[Any] = []

    def line(text: str, share: float) -> None:
        if [text, share] != last:
            last[:] = [text, share]
            write_json(out, {"kind": "progress", "text": text, "share": share})

    return line


def _bar() -> bars.Progress:
    columns = (bars.BarColumn(), bars.TimeElapsedColumn(), bars.TextColumn("{task.description}"))
    return bars.Progress(*columns, console=Console(stderr=True), transient=True)


def _show(out: Write, as_json: bool, expected: FinishTime, pace: Pace, cost: str) -> None:
    if as_json:
        parts = asdict(expected) | {"seconds": expected.seconds, "groups": pace.groups}
        write_json(out, {"kind": "finish", "text": expected.sentence(), "cost": cost, **parts})
        return
    out(expected.sentence() + "\n")
    for name, seconds in sorted((pace.groups or {}).items()):
        out(f"  {name}: {seconds:.3g} s a step\n")
    out(cost + "\n" if cost else "")


def _refuse(out: Write, as_json: bool, problems: Sequence[Problem]) -> int:
    write_problems(out, as_json, problems)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launcher.py finish", description="When a run of these settings will end.")
    parser.add_argument("config", type=Path, help="settings file (TOML); settings can follow as --name value")
    parser.add_argument("--known", action="store_true", help="measure nothing: use what was measured before")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="time for which steps are measured (default: %(default)g)"
    )
    parser.add_argument("--price-per-hour", type=float, help="price of the machine an hour, for the cost")
    parser.add_argument("--price-per-kwh", type=float, help="price of a kWh, for the cost; needs --watts")
    parser.add_argument("--watts", type=float, help="power that the machine takes while it trains, in W")
    parser.add_argument("--json", action="store_true", help="one JSON document a line, with progress")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
