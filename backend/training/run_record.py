"""Writes how a run ended into its record; a disk that refuses it costs the record and not the run."""

from __future__ import annotations

import logging

from backend.runs.errors import RunError
from backend.runs.folder import FinalState, Run

log = logging.getLogger(__name__)


def finish(run: Run, state: FinalState, **fields: object) -> None:
    """`Run.finish`; a record that can't be written is a warning in the log, and the events tell the end."""
    try:
        run.finish(state, **fields)
    except (RunError, OSError) as error:
        log.warning("The end of the run could not be written into its record: %s", error)
