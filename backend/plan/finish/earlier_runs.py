"""Tells how long a run takes by what was measured before: a probe of its settings, or a finished run of the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.config import load
from backend.config.schema import Config
from backend.plan.finish.pace import pace_settings, read_pace
from backend.plan.finish.reckoning import comparison, finish_time
from backend.runs.folder import Run
from backend.runs.status import RunStatus

_MOST_COMPARED = 60


def expected_seconds(config: Config, runs: Sequence[Run]) -> tuple[float, str] | None:
    """Seconds from start to end, and what they are taken from; None where nothing was measured.

    A probe of the settings counts first. Else the newest finished run of the same settings: names, saves, seed and
    length may differ, its seconds a step are taken times the steps of `config`, and what it took besides (loading,
    caching, samples, saves) once.
    """
    pace = read_pace(config)
    expected = None if pace is None else finish_time(config, pace)
    if expected is not None:
        return expected.seconds, "a probe of these settings"
    wanted = pace_settings(config)
    for run in runs[:_MOST_COMPARED]:
        made = _finished(run.path)
        if made is None or made[0] != wanted:
            continue
        status, theirs = made[1], made[2]
        steps = config.training.step_limit
        if steps is None:  # epochs rule: as many steps as that run made of as many epochs
            same = theirs.training.max_train_epochs == config.training.max_train_epochs
            steps = status.total_steps if same else None
        if steps is None or status.s_per_step is None or status.elapsed_s is None:
            continue
        besides = max(0.0, status.elapsed_s - status.s_per_step * status.step)
        return besides + status.s_per_step * steps, run.name
    return None


def compared(run: Run, status: RunStatus) -> str:
    """A finished run beside the finish time that a probe gave before its start; empty without one.

    Only of a run that was trained in one go to its length.
    """
    if status.state != "done" or status.generation or status.elapsed_s is None or status.step != status.total_steps:
        return ""
    config = _config(run.config_path)
    pace = None if config is None else read_pace(config)
    if config is None or pace is None or status.started is None or pace.measured > status.started:
        return ""
    expected = finish_time(config, pace, status.total_steps)
    return "" if expected is None else comparison(expected.seconds, status.elapsed_s)


@lru_cache(maxsize=256)
def _finished_at(path: Path, written_ns: int) -> tuple[dict[str, Any], RunStatus, Config] | None:
    run = Run(path)
    status = run.status()
    config = load.load(run.config_path).config if status.state == "done" and status.generation == 0 else None
    return None if config is None else (pace_settings(config), status, config)


def _finished(path: Path) -> tuple[dict[str, Any], RunStatus, Config] | None:
    """A run that was trained in one go, with its settings; None for any other."""
    try:
        return _finished_at(path, Run(path).record_path.stat().st_mtime_ns)
    except OSError:
        return None


def _config(path: Path) -> Config | None:
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=64)
def _read(path: Path, written_ns: int) -> Config | None:
    return load.load(path).config
