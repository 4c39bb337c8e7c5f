"""Finds what a person meant by a name that is no setting: a misspelling, another trainer's name, or a missing one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from backend.config.schema import SECTIONS, Setting, by_name, settings

_ALWAYS_CACHED = "Images and captions are always cached on disk; remove the line"
_GPUS = "Set training.num_processes; CUDA_VISIBLE_DEVICES says which GPUs a run sees; remove the line"
_LATER = "Monotile does not offer it yet; remove the line"
_FP8 = "Set memory.base_quantization to fp8 instead, or to int8, which is more exact; remove the line"
_SECRET = "Secrets don't belong in a settings file; remove the line, and make a new token if the file was shared"
_RUN_FOLDER = "Each run keeps this in its own folder under saving.output_dir; remove the line"
_IN_BASE = "It is read from the base model (model.base_model); remove the line"

# Names of other trainers that have no counterpart, and what to do about each.
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("cache_latents", "cache_latents_to_disk", "cache_text_encoder_outputs"), _ALWAYS_CACHED),
    **dict.fromkeys(("cache_text_encoder_outputs_to_disk", "vae_batch_size", "enable_bucket"), _ALWAYS_CACHED),
    **dict.fromkeys(("hf_token", "huggingface_token", "wandb_api_key", "api_key", "token", "password"), _SECRET),
    **dict.fromkeys(("logging_dir", "log_prefix", "log_dir", "sample_dir"), _RUN_FOLDER),
    "scheduler_path": _IN_BASE,
    **dict.fromkeys(("fp8_base", "fp8_scaled", "fp8_base_unet"), _FP8),
    **dict.fromkeys(("lowram", "highvram"), _LATER),
    **dict.fromkeys(("network_train_text_encoder_only",), _LATER),
    "masked_loss": "Set mask_path in a row of dataset.folders, or masks.alpha_mask to true; remove the line",
    "reg_data_dir": "Add the folder to dataset.folders with is_reg = true; remove the line",
    "num_machines": _LATER,
    **dict.fromkeys(("gpu_ids", "multi_gpu"), _GPUS),
    **dict.fromkeys(("dora_wd", "use_dora", "weight_decompose"), "Set network.network_type to dora instead"),
    "network_module": "Monotile trains LoRA networks only (network.network_type); remove the line",
    "network_args": "Write the arguments as settings of [network]",
    "network_train_unet_only": "Only the denoiser is trained; remove the line",
    "save_model_as": "LoRA files are always safetensors; remove the line",
    "resume": "Use Resume on the Run tab, or launcher.py train --resume RUN",
    "dataset_config": "Write the data set into this file, under [[dataset.folders]]",
    "persistent_data_loader_workers": "Loader workers always stay; remove the line",
    "model_prediction_type": "It belongs to the model family; remove the line",
}

_FOREIGN_SECTIONS = {"datasets": "dataset", "general": "dataset", "lora": "network", "train": "training"}


def canonical(name: str) -> str:
    """A name as it would be written here: ``--Batch-Size`` is ``batch_size``."""
    return re.sub(r"[\s-]+", "_", name.strip().lstrip("-")).lower()


def unknown_section(name: str) -> tuple[str, str]:
    """Text and remedy for a table at the top of a file that is no section."""
    near = _FOREIGN_SECTIONS.get(canonical(name)) or _nearest(canonical(name), SECTIONS)
    remedy = f"Did you mean [{near}]?" if near else f"The sections are {', '.join(SECTIONS)}"
    return f"there is no section [{name}]", remedy


def unknown_name(name: str, section: str | None = None) -> tuple[str, str]:
    """Text and remedy for a key that is no setting where it stands.

    name: as written. section: where it stands; None for the top of a file or the command line. The value is never
    shown, since it may be a secret.
    """
    wanted = canonical(name)
    text = f'there is no setting "{name}" in [{section}]' if section else f'there is no setting "{name}"'
    declared = by_name().get(wanted)
    if declared is not None and declared.section != section:
        return text, f"It belongs in [{declared.section}]: {declared.path}"
    if declared is not None:
        return text, f"Write it as {declared.name}"
    for candidate in settings():
        if wanted in candidate.aliases:
            return text, f"Monotile calls it {candidate.path}"
    if wanted in ELSEWHERE:
        return text, ELSEWHERE[wanted]
    known = {s.name: s for s in settings()} | {alias: s for s in settings() for alias in s.aliases}
    near = _nearest(wanted, known)
    if near:
        return text, f"Did you mean {known[near].path}?"
    return text, "Remove the line; docs/settings.md lists every setting"


def unknown_column(name: str, table: Setting) -> tuple[str, str]:
    """Text and remedy for a key in a row of ``table`` that is none of its columns."""
    wanted = canonical(name)
    text = f'a row of {table.path} has no "{name}"'
    for column in table.columns:
        if wanted == column.name or wanted in column.aliases:
            return text, f"Monotile calls it {column.name}"
    near = _nearest(wanted, [c.name for c in table.columns])
    if near:
        return text, f"Did you mean {near}?"
    if wanted in by_name():
        return text, f"It belongs in [{by_name()[wanted].section}], once for the whole run"
    return text, f"A row can have {', '.join(c.name for c in table.columns)}"


def nearest_choice(value: str, choices: Iterable[str]) -> str | None:
    """The choice that a misspelt value is nearest to."""
    return _nearest(value.strip().lower(), choices)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return matches[0] if matches else None
