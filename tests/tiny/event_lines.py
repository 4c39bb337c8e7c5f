"""Reads a run's events as plain JSON, as another program would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.runs.folder import Run


def event_lines(run: Run | Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of ``events.jsonl``, of one kind or all; none where there is no file."""
    path = run if isinstance(run, Path) else run.events_path
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [event for line in text.splitlines() if (event := json.loads(line)) and kind in (None, event["kind"])]
