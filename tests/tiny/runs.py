"""Toy trainers, and waiting for what they do."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from backend.runs import record, supervise
from backend.runs.folder import Run

TOYS = Path(__file__).parents[1] / "runs" / "toys"
ROOT = Path(__file__).resolve().parents[2]


def toy(name: str, run: Run, *arguments: object) -> list[str]:
    """The command line of a toy trainer."""
    return [sys.executable, str(TOYS / f"{name}.py"), str(run.path), *map(str, arguments)]


def start(name: str, run: Run, *arguments: object) -> Run:
    """Start a toy trainer as the page starts a real one."""
    return supervise.start(None, run, command=toy(name, run, *arguments), environment={"PYTHONPATH": str(ROOT)})


def set_fields(path: Path, **fields: object) -> None:
    """Set fields of the record at a path."""
    record.update(path, lambda current: current | fields)


def save_state(run: Run, step: int) -> Path:
    """A whole state on the disk, as far as anybody who does not load it looks."""
    state = run.state_dir / f"step-{step:08d}"
    state.mkdir()
    (state / "position.json").write_text(json.dumps({"position": {"step": step}}))
    (run.state_dir / "latest").write_text(state.name)
    return state


def eventually(condition: Callable[[], object], what: str, limit_s: float = 60.0) -> object:
    """Wait until ``condition()`` is true and return it; the limit is there only so that a failure ends."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"it never came to pass that {what}")
