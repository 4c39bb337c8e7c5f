"""Runs one of the other processes of a run that trains with several: ``python -m backend.training.ranks DIR RANK``."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TextIO

from backend.base.library_imports import library_imports
from backend.config.schema import Config, by_path, get
from backend.runs.diagnose import explain
from backend.runs.folder import Run
from backend.runs.logsetup import configure_logging
from backend.training.environment import set_environment
from backend.training.ranks.others import Go

log = logging.getLogger(__name__)


def main() -> int:
    """Train beside the first process until it ends; the exit code: 0, or 1 with the reason on the standard output."""
    run, rank = Run(sys.argv[1]), int(sys.argv[2])
    report = _own_output()
    _ignore_signals()
    line = sys.stdin.readline()
    if not line:
        return 0
    cfg = Config.model_validate_json(line)
    # its own log, and no other file of the folder, is written by this process
    run.log_path = run.rank_log_path(rank)
    configure_logging(run, cfg.logging.log_level)
    set_environment(cfg)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), name="first process", daemon=True).start()
    try:
        with library_imports():
            from backend.training.ranks.follow import follow
        go = Go(**json.loads(lines.get()))
        with ExitStack() as stack:
            follow(run, cfg, rank, go, stack)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the first process has to know
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())
        diagnosis = explain(error, {path: get(cfg, path) for path in by_path()})
        fields = {name: getattr(diagnosis, name) for name in ("text", "remedy", "cause", "kind")}
        report.write(json.dumps(fields))
        report.flush()
        return 1
    return 0


def _own_output() -> TextIO:
    """The standard output for this module alone; what anything else writes there goes to the log."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _ignore_signals() -> None:
    """A signal to the whole group is the first process's to answer; this one ends with it."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _read(lines: SimpleQueue[str]) -> None:
    """Hand on what the first process says, and end with it."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # a library's threads must not keep it
    sys.stderr.flush()
    os._exit(code)
