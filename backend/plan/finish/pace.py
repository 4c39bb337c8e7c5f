"""Holds what a probe measured, and keeps it for runs of the same settings on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from backend.base.files import write_atomic
from backend.base.jsonable import dumps
from backend.base.paths import resolve
from backend.config import toml_io
from backend.config.schema import Config
from backend.plan.finish.machine import machine_words

# What may differ between two runs of the same pace.
_FREE_SECTIONS = ("saving", "logging")
_FREE_SETTINGS = {"training": ("max_train_steps", "max_train_epochs", "seed")}
# What a probe's seconds are counted for, however often it is asked for.
_COUNTED = {
    "sampling": ("sample_every_n_steps", "sample_every_n_epochs", "sample_at_start", "sample_at_end"),
    "validation": (
        *("validate_every_n_steps", "validate_every_n_epochs", "validate_at_start", "validate_at_end"),
        *("early_stop_patience", "early_stop_min_gain", "picture_losses"),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What one process of a run took when its caches were filled. Seconds throughout."""

    measured: float
    """Unix seconds."""
    before: float
    """From the start of the process to its first step: libraries, scan, caches, loading."""
    warm_up: float
    """What the first steps took above the usual, compiling included."""
    step: float
    """Mean of a step over the batches of an epoch."""
    steps_per_epoch: float
    after: float
    """From the last save to the end of the process."""
    save: float = 0.0
    """File and state."""
    state: float = 0.0
    """Of `save`, the state to resume from; 0 where it is off."""
    sample: float = 0.0
    """All prompts together; 0 without prompts."""
    validation: float = 0.0
    """All validation sets together; 0 without sets."""
    groups: Mapping[str, float] | None = None
    """Seconds of a step by what the pictures of its batch have in common, where that could be told apart."""
    compiling: float = 0.0
    """Of compiling and recording in the first process; 0 where nothing was compiled."""
    compiled_anew: bool = False
    """Graphs of `compiling` were not in the cache."""
    classes: Mapping[str, float] | None = None
    """Of `compiling`, by block class."""
    peak: int | None = None
    """Bytes at most: of the GPU in torch's allocator, or of RAM where the run has no GPU; None where not known."""
    attention: str = ""
    """The kernel that computed attention, as the setting names it."""


def pace_settings(config: Config, counted: bool = False) -> dict[str, Any]:
    """The settings that two runs of one pace share. counted: without those that say how often something is done."""
    free = dict(_FREE_SETTINGS)
    if counted:
        free |= _COUNTED
    return {
        section: {name: value for name, value in values.items() if name not in free.get(section, ())}
        for section, values in toml_io.to_data(config, whole=True).items()
        if section not in _FREE_SECTIONS and isinstance(values, dict)
    }


def probes_folder(config: Config) -> Path:
    """Where probes run, and what they measured is kept."""
    return resolve(config.saving.output_dir) / ".probes"


def read_pace(config: Config) -> Pace | None:
    """What a probe of these settings measured on this machine; None without one."""
    try:
        data = json.loads(_path(config).read_text(encoding="utf-8"))
        known = {field.name for field in fields(Pace)}
        return Pace(**{name: value for name, value in data.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def keep_pace(config: Config, pace: Pace) -> None:
    """Keep what a probe measured. WriteFailed where the folder can't be written."""
    path = _path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dumps(asdict(pace)))


def _path(config: Config) -> Path:
    settings = pace_settings(config, counted=True)
    words = json.dumps([machine_words(), settings], sort_keys=True, default=str)
    return probes_folder(config) / f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.json"
