"""Continues a run from a terminal: ``python -m backend.training.resume RUN [--steps N] [--schedule constant]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from backend.base.errors import Refused, WriteFailed
from backend.base.paths import resolve
from backend.config.schema import Config
from backend.plan.further import SCHEDULES, Further, Wish, plan_further, ruled
from backend.runs.errors import RunError
from backend.runs.folder import Run, find
from backend.runs.logsetup import configure_logging
from backend.training.command_line import complain
from backend.training.process import DONE, WRONG_INPUT, run_trainer


def main(arguments: Sequence[str] | None = None) -> int:
    """Continue the run in this terminal; the exit codes are those of ``train``."""
    options = _parser().parse_args(arguments)
    asks = (options.steps, options.epochs, options.schedule, options.learning_rate)
    try:
        run = find(resolve(Config().saving.output_dir), options.run, paths=True)
        further = None
        if any(ask is not None for ask in asks):
            wish = Wish(
                steps=options.steps,
                epochs=options.epochs,
                schedule=options.schedule or "stretch",
                learning_rate=options.learning_rate,
            )
            further = plan_further(run, wish)
    except (Refused, RunError, WriteFailed) as error:
        complain(error)
        return WRONG_INPUT
    if further is not None:
        _show(run, further)
    if options.dry_run:
        return DONE
    changed = None if further is None else further.config
    return run_trainer(run, resume=True, foreground=True, logs=configure_logging, changed=changed)


def _show(run: Run, further: Further) -> None:
    lines = [run.name, *further.sentences()]
    if bars := ruled(further.rates()):
        lines.append(f"Learning rate over the whole run: [{bars}]")
    sys.stderr.write("\n".join(lines) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py resume",
        description="Continue a run exactly from its saved state: one that was stopped, or with --steps a finished one "
        "for longer. How the learning rate continues is shown first.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's name, the beginning of it, 'latest', or the path of its folder")
    add("--steps", type=int, metavar="N", help="new length of the whole run in steps")
    add("--epochs", type=int, metavar="N", help="new length of the whole run in epochs")
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in SCHEDULES.items())
    add("--schedule", choices=list(SCHEDULES), help=f"how the learning rate continues. {meanings} (default: stretch)")
    add("--learning-rate", type=float, metavar="RATE", help="another learning rate from here on")
    add("--dry-run", action="store_true", help="show what would be done, and train nothing")
    return parser


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
