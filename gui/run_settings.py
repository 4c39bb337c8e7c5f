"""Reads the settings of an earlier run for the form."""

from __future__ import annotations

from backend.config.load import Loaded, load
from backend.plan.further import from_file_changes
from backend.runs.folder import Run


def read_settings(run: Run, from_file: bool) -> tuple[Loaded, None, str]:
    """What the form takes: the settings, no preset, and what they are called.

    from_file: with the run's newest file as what a new run continues from. Refused where there is none.
    """
    loaded = load(run.config_path)
    if not from_file or loaded.config is None:
        return loaded, None, f"the settings of {run.name}"
    changed = load(run.config_path, from_file_changes(run, loaded.config))
    return changed, None, f"the settings of {run.name}, to continue from its newest file"
