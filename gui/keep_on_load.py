"""Keeps what a person has set when a preset for a GPU is loaded: the model, images and prompts."""

from __future__ import annotations

from backend.config.schema import by_path
from backend.families.table import FAMILIES
from gui import fields, form
from gui.draft import Snapshot

_KEPT_SETTINGS = (
    "model.base_model",
    *sorted(fields.part_settings()),
    "dataset.folders",
    "dataset.trigger_word",
    "sampling.prompts",
    "validation.validation_folders",
    "saving.output_name",
    "saving.output_dir",
)


def kept_values(now: Snapshot, built_in: bool, after: form.Values) -> form.Values:
    """Values of the form that ``after``, a preset's, has at their defaults, so that loading it would empty them.

    built_in: the preset that the form came from is built in, and what it set itself (the demo's images) is not a
    person's. A base model stays only with its family.
    """
    defaults = form.defaults()
    kept = {
        path: now.values[path]
        for path in _KEPT_SETTINGS
        if now.values[path] != defaults[path]
        and after[path] == defaults[path]
        and not (built_in and now.values[path] == now.base[path])
    }
    if now.values["model.family"] != after["model.family"]:
        kept = {path: value for path, value in kept.items() if not path.startswith("model.")}
    return kept


def family_of(preset: str) -> str | None:
    """The family that a built-in preset is for, by its name: ``flux_kontext-8gb``; None for the demo."""
    return max((name for name in FAMILIES if preset.startswith(f"{name}-")), key=len, default=None)


def labels(kept: form.Values) -> list[str]:
    """What these settings are called."""
    return [by_path()[path].label for path in kept]
