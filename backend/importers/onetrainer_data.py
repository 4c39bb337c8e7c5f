"""Reads OneTrainer's concepts (image folders) and samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.importers.common_reasons import NO_FOLDER
from backend.importers.folder_values import Rows
from backend.importers.notes import Note
from backend.importers.onetrainer_images import NORMALIZED, read_changes
from backend.importers.program import Fields
from backend.importers.values import number
from backend.importers.work import Work


def read_concepts(fields: Fields, path: str) -> None:
    """Image folders from a list of concepts at `path`."""
    work, folders = fields.work, []
    rows: Rows = []
    for place, row in fields.rows(path):
        if not row.get("path"):
            work.notes.append(Note(place, "not offered", NO_FOLDER))
        elif row.get("enabled") is False:
            work.notes.append(Note(place, "off", "it is turned off"))
        elif row.get("validation_concept") or row.get("type") == "VALIDATION":
            work.notes.append(Note(place, "not offered", "set validation folders on the Sampling tab"))
        elif row.get("type") in ("PRIOR_PREDICTION", "REGULARIZATION"):
            why = "images whose target is the base model's own prediction are not supported; is_reg is another kind"
            work.notes.append(Note(place, "not offered", why))
        else:
            # masks lie next to their images there
            masks = {"mask_path": str(row["path"])} if NORMALIZED in work.ours else {}
            folders.append({"path": str(row["path"]), **_repeats(work, place, row), **masks})
            rows.append((place, row))
            if not row.get("include_subdirectories") and _has_folders(str(row["path"])):
                work.notes.append(Note(place, "near", "sub-folders are read too"))
    for name in ("path", "enabled", "validation_concept", "include_subdirectories", "repeats", "balancing", "type"):
        fields.note(f"{path}[].{name}", "taken", "", "dataset.folders" if name == "path" else None)
    if folders:
        work.take("dataset.folders", folders, path)
        read_changes(fields, path, rows)


def _has_folders(path: str) -> bool:
    """Whether a folder on this machine has sub-folders; OneTrainer reads them only where a concept says so."""
    try:
        return any(child.is_dir() for child in Path(path).iterdir())
    except OSError:
        return False


def _repeats(work: Work, place: str, row: Mapping[str, Any]) -> dict[str, int]:
    repeats = number(row.get("balancing", row.get("repeats", 1)))
    if isinstance(repeats, bool) or not isinstance(repeats, int | float) or repeats <= 0:
        return {}
    if repeats != int(repeats):
        work.notes.append(Note(f"{place}.balancing", "near", f"repeats are whole numbers: {max(1, round(repeats))}"))
    return {"num_repeats": max(1, round(repeats))}


_COLUMNS = {
    "prompt": "prompt", "negative_prompt": "negative_prompt", "width": "width", "height": "height", "seed": "seed",
    "diffusion_steps": "steps", "cfg_scale": "true_cfg_scale",
}  # fmt: skip


def read_samples(fields: Fields) -> None:
    """Sample prompts from the list in the settings."""
    rows = []
    guided = "guidance_scale" if fields.work.family.startswith("flux") else "true_cfg_scale"
    columns = {**_COLUMNS, "cfg_scale": guided}
    for _, row in fields.rows("samples"):
        if row.get("enabled") is not False and row.get("prompt"):
            taken = {columns[name]: value for name, value in row.items() if name in columns and value not in (None, "")}
            rows.append(taken)
    for name in (*_COLUMNS, "enabled"):
        fields.note(f"samples[].{name}", "taken", "", "sampling.prompts" if name == "prompt" else None)
    for name in ("random_seed", "sample_inpainting", "noise_scheduler", "text_encoder_1_layer_skip", "frames", "length",
                 "text_encoder_2_layer_skip", "text_encoder_3_layer_skip", "text_encoder_4_layer_skip",
                 "base_image_path",
                 "text_encoder_2_sequence_length", "mask_image_path", "force_last_timestep",
                 "transformer_attention_mask",
                 "text_encoder_1_sequence_length", "prior_attention_mask", "tile", "cfg_rescale"):  # fmt: skip
        fields.note(f"samples[].{name}", "not needed", "samples use the Euler sampler, each with its own seed")
    if rows:
        fields.work.take("sampling.prompts", rows, "samples")
