"""Finds the settings with which a run ends soonest: `python -m backend.plan.tune CONFIG.toml`, then the options.

With `--json` one document a line on stdout: `{"kind": "progress", "text": ..., "share": ..., "probes": ..., "planned":
..., "left": ...}` lines, a `{"kind": "tune", ...}` document after each candidate and at the end, or `{"kind":
"problems", "problems": [...]}`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
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
from backend.config.schema import Config, with_values
from backend.config.toml_io import dump
from backend.dataset.items import DatasetScan
from backend.dataset.scan import scan_dataset
from backend.plan.finish.machine import device_words
from backend.plan.finish.probe import SECONDS, measure
from backend.plan.make_plan import plan_for
from backend.plan.start_check import start_problems
from backend.plan.tune.factors import ALLOWED
from backend.plan.tune.report import changed, render, sentence, tuned_dict
from backend.plan.tune.search import MOST_PROBES, Options, Report, tune
from backend.plan.tune.trials import Tuned
from backend.runs.errors import RunError
from backend.runs.eta import spoken

_OWN = ("json", "write", "allow", "probes", "seconds", "by-class", "again", "help")


def main(arguments: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Tune and write the result; 0 when something ran, 1 when not, 2 for wrong arguments."""
    parser = _parser()
    try:
        own, overrides = split(sys.argv[1:] if arguments is None else arguments, _OWN)
    except Refused as refused:
        parser.error(str(refused))
    options = parser.parse_args(own)
    out = write or stdout_writer()
    loaded = load.load(options.config, overrides)
    problems = loaded.problems if loaded.config is None else [*loaded.problems, *start_problems(loaded.config)]
    problems = [*problems, *_unwritable(options.write)]
    if loaded.config is None or errors(problems):
        return _refuse(out, options.json, errors(problems))
    config = loaded.config
    scan = scan_dataset(config, scan_documents(out) if options.json else progress_of(out, False, False))
    plan = plan_for(config, scan)
    if errors(plan.problems) or not plan.steps.steps:
        return _refuse(out, options.json, errors(plan.problems))
    try:
        tuned = _tuned(config, scan, options, out)
        if options.write is not None and tuned.chosen is not None:
            _write_choice(config, tuned, options.write)
    except (RunError, WriteFailed) as error:
        return _refuse(out, options.json, [Problem(None, None, str(error), "")])
    _show(config, tuned, options, out)
    return 0 if tuned.chosen is not None else 1


def _unwritable(path: Path | None) -> list[Problem]:
    """Why the result could not be written, found before minutes of measuring."""
    if path is None:
        return []
    if path.exists():
        return [Problem(None, None, f"{path} exists already", "Choose another name for --write.")]
    if not path.resolve().parent.is_dir():
        return [Problem(None, None, f"There is no folder {path.resolve().parent}", "Make it, or choose another one.")]
    return []


def _tuned(config: Config, scan: DatasetScan, options: argparse.Namespace, out: Write) -> Tuned:
    asked = Options(
        allow=frozenset(options.allow), probes=options.probes, by_class=options.by_class, again=options.again
    )
    work = partial(measure, seconds=options.seconds)
    # the page ends this process with it: the best so far is told, and the probe's folder removed
    signal.signal(signal.SIGTERM, _stop)
    if options.json:
        return tune(config, scan, work, _documents(out), asked)
    with _bar() as bar:
        return tune(config, scan, work, _following(bar), asked)


def _stop(*_: object) -> None:
    # a second request must not keep the first one from being carried out
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _documents(out: Write) -> Report:
    last: list[Any] = []

    def report(tuned: Tuned, text: str, share: float) -> None:
        if text and [text, share] != last:
            last[:] = [text, share]
            facts = {"probes": tuned.probes, "planned": max(tuned.planned, tuned.probes), "left": tuned.left}
            write_json(out, {"kind": "progress", "text": text, "share": share, **facts})
        elif not text:
            write_json(out, {"kind": "tune", **tuned_dict(tuned)})

    return report


def _bar() -> bars.Progress:
    columns = (bars.BarColumn(), bars.TimeElapsedColumn(), bars.TextColumn("{task.description}"))
    return bars.Progress(*columns, console=Console(stderr=True), transient=True)


def _following(bar: bars.Progress) -> Report:
    """A bar of the probe at work, and a line for each candidate that is done."""
    task = bar.add_task("Looking at what fits", total=1.0)
    listed: set[int] = set()

    def report(tuned: Tuned, text: str, share: float) -> None:
        if text:
            planned = max(tuned.planned, tuned.probes)
            left = "" if tuned.left is None else f", at most {spoken(tuned.left)} left"
            words = f"probe {tuned.probes} of at most {planned}{left}: {text}"
            bar.update(task, description=escape(words), completed=share)
        for trial in tuned.trials:
            if trial.number not in listed:
                listed.add(trial.number)
                took = trial.reason if trial.finish is None else f"finishes in {spoken(trial.seconds)}"
                bar.console.print(f"{trial.number} {trial.name}: {took}", markup=False, soft_wrap=True)

    return report


def _write_choice(config: Config, tuned: Tuned, path: Path) -> None:
    best = tuned.chosen
    assert best is not None
    comment = f"Tuned on {device_words()}. {sentence(tuned)}"
    dump(with_values(config, best.values), path, comment=" ".join(comment.split()))


def _show(config: Config, tuned: Tuned, options: argparse.Namespace, out: Write) -> None:
    rows = changed(tuned, config)
    if not options.json:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        with console.capture() as capture:
            console.print(render(tuned))
        out(capture.get())
        for label, now, after in rows:
            out(f"  {label}: {now} -> {after}\n")
    if options.write is not None and tuned.chosen is not None:
        text = f"Written to {options.write}.\n"
        sys.stderr.write(text) if options.json else out(text)


def _refuse(out: Write, as_json: bool, problems: Sequence[Problem]) -> int:
    write_problems(out, as_json, problems)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py tune", description="Finds the settings with which this run ends soonest, by short probes."
    )
    parser.add_argument("config", type=Path, help="settings file (TOML); settings can follow as --name value")
    parser.add_argument("--write", type=Path, metavar="FILE.toml", help="write the best settings to this new file")
    parser.add_argument(
        "--allow",
        action="append",
        choices=ALLOWED,
        default=[],
        help="try also what changes the training: precision (formats of base weights and products), crops",
    )
    parser.add_argument("--probes", type=_count, default=MOST_PROBES, help="trainings at most (default: %(default)d)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="time for which steps are measured (default: %(default)g)"
    )
    parser.add_argument("--by-class", action="store_true", help="measure also what compiling each block class saves")
    parser.add_argument("--again", action="store_true", help="measure also what was measured on this machine before")
    parser.add_argument("--json", action="store_true", help="one JSON document a line, with progress")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
