"""``python -m backend.runs status | stop | logs | watch [RUN]``."""

from __future__ import annotations

import sys

from backend.runs.cli import main

sys.exit(main(sys.argv[1:]))
