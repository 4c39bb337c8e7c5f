"""Takes the other program's defaults over where a file has no value and ours differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.importers import tables
from backend.importers.names import setting_of
from backend.importers.notes import Note, shown
from backend.importers.values import READERS, is_off
from backend.importers.work import Work

_PICTURES = ("image_directory", "image_jsonl_file", "video_directory", "video_jsonl_file")


def take_unsaid(work: Work) -> None:
    """Take the defaults of the program over, each with a word; after all that the files say."""
    defaults = dict(tables.DEFAULTS.get(work.kind, {}))
    if work.kind == "sd-scripts":
        defaults |= tables.FAMILY_DEFAULTS.get(work.family, {})
        if work.family == "flux" and "model_prediction_type" not in work.values:
            why = (
                "not in the file: sd-scripts uses sigma_scaled, but FLUX is trained on the velocity, "
                "as in its pretraining"
            )
            work.notes.append(Note("model_prediction_type", "default", why))
    if defaults and not is_off(work.values.get("full_bf16")):
        defaults["save_precision"] = "bf16"
    for key, value in defaults.items():
        _take(work, key, value, work.kind, defaults)
    program = _program_of(work)
    if not program:
        return
    for key, value in tables.DATASET_DEFAULTS[program].items():
        if "bucket" not in key or not is_off(work.all_values.get("enable_bucket")):
            _take(work, key, value, program, defaults)
    if "enable_bucket" not in work.all_values:
        why = "not in the file: the other program crops all images to one size; in Monotile they keep their shape"
        work.notes.append(Note("enable_bucket", "default", why))


def _take(work: Work, key: str, value: Any, program: str, defaults: Mapping[str, Any]) -> None:
    known = setting_of(key)
    assert known is not None, f"{key} is not a known name"
    goal, reader = known
    if goal in work.ours or (goal == "training.max_train_steps" and "training.max_train_epochs" in work.ours):
        return
    near = READERS[reader](key, value, {**defaults, **work.values})
    work.take(goal, near.value, key)
    why = f"not in the file: {shown(key, value)} is what {program} uses"
    if near.near:
        why = f"not in the file: {shown(key, value)} is what {program} uses; {near.near}"
    work.notes.append(Note(key, "default", why, None, goal))


def _program_of(work: Work) -> str:
    """Whose data set it is; empty where its file is not here, and for a preset, which leaves out nothing."""
    if work.kind == "kohya_ss" or (work.dataset is None and "dataset.folders" not in work.ours):
        return ""
    if work.kind != "dataset" or work.dataset is None:
        return work.kind
    rows = [row for row in work.dataset.values.get("datasets", []) if isinstance(row, Mapping)]
    return "musubi-tuner" if any(name in row for row in rows for name in _PICTURES) else "sd-scripts"
