"""Reads the settings that sd-scripts and musubi-tuner write into a LoRA file's metadata (``ss_*``) as arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from backend.config.file_kinds import names
from backend.importers.notes import Note, shown

_CALLED = {
    "num_epochs": "max_train_epochs",
    "batch_size_per_device": "train_batch_size",
    "sd_model_name": "pretrained_model_name_or_path",
    "vae_name": "vae",
    "optimizer": "optimizer_type",
}
"""Names there that an argument of the trainer has another name for."""
_FACTS = names(
    "epoch steps num_epochs session_id training_started_at training_finished_at num_train_images num_reg_images "
    "num_batches_per_epoch total_batch_size num_validation_images bucket_info tag_frequency dataset_dirs "
    "reg_dataset_dirs datasets sd_model_hash new_sd_model_hash vae_hash new_vae_hash sd_scripts_commit_hash "
    "sshs_model_hash sshs_legacy_hash format"
)
"""Names there that no argument has."""
_CLASS = re.compile(r"(?:[\w.]+\.)?(\w+)(?:\((.*)\))?", re.DOTALL)


def arguments_of(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str], list[Note]]:
    """(arguments by the trainer's own names, what each is called in the file, what was said of the rest)."""
    values: dict[str, Any] = {}
    called: dict[str, str] = {}
    notes: list[Note] = []
    # the trainer writes both down; the steps are what was asked for, or what the epochs came to
    facts = _FACTS if "ss_max_train_steps" in data else _FACTS - {"num_epochs"}
    for key, text in data.items():
        name = str(key).removeprefix("ss_")
        if name in facts or not str(key).startswith("ss_"):
            why = "it describes the run or the file; it is not a setting"
            notes.append(Note(str(key), "not needed", why, None, None, shown(str(key), text)))
            continue
        name = _CALLED.get(name, name)
        values[name], called[name] = _read(name, text), key
    _optimizer(values, called)
    return values, called, notes


def _read(name: str, text: Any) -> Any:
    if not isinstance(text, str) or text == "None":
        return None if text == "None" else text
    if name == "network_args":
        try:
            table = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return [f"{key}={value}" for key, value in table.items()] if isinstance(table, dict) else text
    if name == "resolution":
        return re.sub(r"[()\s]", "", text)
    return text


def _optimizer(values: dict[str, Any], called: dict[str, str]) -> None:
    """``bitsandbytes.optim.adamw.AdamW8bit(weight_decay=0.1)`` as a name and its arguments."""
    match = _CLASS.fullmatch(str(values.get("optimizer_type") or "").strip())
    if not match:
        return
    values["optimizer_type"] = match[1]
    if match[2]:
        values["optimizer_args"], called["optimizer_args"] = match[2], called["optimizer_type"]
