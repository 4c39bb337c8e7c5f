"""Runs the trainer's process: ``python -m backend.train --run DIR``, or a TOML in the foreground.

A run's folder holds all that it needs and gets all that it makes; page and terminal read it from there. In the
foreground the same events and metrics feed a progress display.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from backend.base.errors import Refused, WriteFailed
from backend.runs.errors import RunError
from backend.runs.logsetup import configure_logging
from backend.training.command_line import complain, open_run, read_arguments
from backend.training.process import WRONG_INPUT, run_trainer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trainer; returns the exit code: 0 done or stopped, 1 failed, 2 the settings can't be used."""
    try:
        command = read_arguments(sys.argv[1:] if arguments is None else arguments)
        opened = open_run(command)
    except (Refused, RunError, WriteFailed) as error:
        complain(error)
        return WRONG_INPUT
    return run_trainer(
        opened.run,
        resume=opened.resume,
        new=opened.new,
        foreground=command.run is None,
        logs=configure_logging,
        changed=opened.changed,
    )


if __name__ == "__main__":
    # A LoRA of a path with an umlaut is written to a terminal that may not know it.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
