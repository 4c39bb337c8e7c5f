"""Runs ``python -m backend.runs status | stop | logs [RUN]``."""

from __future__ import annotations

import sys

from backend.runs.cli import main

# A run's name or log may hold letters that an old terminal or a pipe on Windows does not know.
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
sys.exit(main(sys.argv[1:]))
