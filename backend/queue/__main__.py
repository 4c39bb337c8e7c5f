"""Runs ``python -m backend.queue [add | start | pause | ...]``."""

from __future__ import annotations

import sys

from backend.queue.cli import main

# A run's name may hold letters that an old terminal or a pipe on Windows does not know.
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
sys.exit(main(sys.argv[1:]))
