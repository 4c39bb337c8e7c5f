"""Reads files that train a whole model: what stands for training.kind full there, and what is a LoRA's alone here.

sd-scripts has scripts for it (``sdxl_train.py``, ``flux_train.py``, ``fine_tune.py``, ``train_db.py``), kohya_ss tabs
of their own (Finetuning, Dreambooth), OneTrainer the training method.
"""

from __future__ import annotations

import re
from typing import Any

from backend.config.file_kinds import names
from backend.config.rules.full import LORA_ONLY
from backend.families.table import lacking
from backend.importers.notes import Fate, Note
from backend.importers.source import Source
from backend.importers.values import is_off, number
from backend.importers.work import Work

KIND, WEIGHTS, FUSED = "training.kind", "training.full_weight_dtype", "optimizer.fused_backward"
_LAYOUT = "saving.model_layout"
_SCRIPT = re.compile(r"(?:^|[/\\])(?:\w+_train|fine_tune|train_db)\.pyw?[\"']?$")
_TELLING = names(
    "fused_backward_pass blockwise_fused_optimizers fused_optimizer_groups learning_rate_te learning_rate_te1 "
    "learning_rate_te2 train_text_encoder stop_text_encoder_training no_token_padding block_lr"
)
"""Arguments that only the scripts of sd-scripts have which train whole models."""
_FUSED = ("fused_backward_pass", "flux_fused_backward_pass", "sd3_fused_backward_pass")
_IN_BLOCKS = ("blockwise_fused_optimizers", "fused_optimizer_groups")
_SWITCH, _RATES = "train_text_encoder", ("learning_rate_te", "learning_rate_te1", "learning_rate_te2")
_TRAINED, _RATE = "network.train_text_encoder", "optimizer.text_encoder_lr"
_NO_ENCODERS = "text encoders of this family are not trained"
_OF_A_LORA = "it is a LoRA's, and the file trains the whole model"


def trains_whole_model(source: Source) -> bool:
    """Whether the file of sd-scripts or kohya_ss, whose arguments are by name, trains a whole model."""
    values = source.values
    if source.kind == "kohya_ss":
        # the oldest LoRA presets have no LoRA_type, and the rank all the same
        return not {"LoRA_type", "network_dim", "token_string"} & values.keys()
    if source.kind not in ("sd-scripts", "musubi-tuner") or values.get("network_module"):
        return False
    return bool(_SCRIPT.search(source.script)) or (source.kind == "sd-scripts" and bool(_TELLING & set(values)))


def take_kind(work: Work, key: str) -> None:
    """Have the settings train the whole model, as `key` says."""
    work.full = True
    work.take(KIND, "full", key)


def read_whole_model(work: Work) -> frozenset[str]:
    """Take over what only such a file says; the names that were read."""
    take_kind(work, "kind of training")
    work.notes.append(Note("kind of training", "taken", "the file trains the whole model", None, KIND, "full"))
    read = set()
    for name in (*_FUSED, *_IN_BLOCKS, "full_bf16", "save_model_as"):
        if name in work.values:
            _one(work, name, work.values[name])
            read.add(name)
    return frozenset(read | _text_encoders(work))


def _text_encoders(work: Work) -> set[str]:
    """Whether text encoders are trained, and how fast: a switch, else a rate that is more than 0; the names read."""
    values = work.values
    rates = {name: number(values[name]) for name in _RATES if name in values}
    on = not is_off(values[_SWITCH]) if _SWITCH in values else any(not is_off(rate) for rate in rates.values())
    has = "train_text_encoder" not in lacking(work.family_here)
    fate: Fate = "off" if not on else "taken" if has else "not offered"
    if on and has:
        work.take(_TRAINED, True, _SWITCH)
    if _SWITCH in values:
        work.note(_SWITCH, fate, _NO_ENCODERS if on and not has else "", _TRAINED if on and has else None)
    for name, rate in rates.items():
        if fate == "taken" and not is_off(rate):
            same = work.ours.setdefault(_RATE, rate) == rate
            work.origin.setdefault(_RATE, name)
            near = "" if same else "Monotile has one rate for all text encoders; the first is used"
            work.note(name, "taken" if same else "near", near, _RATE)
        else:
            work.note(name, "off" if is_off(rate) else fate, _NO_ENCODERS if fate == "not offered" else "")
    stop = "stop_text_encoder_training"
    if stop in values:
        why = "text encoders are trained to the end"
        work.note(stop, "off" if is_off(values[stop]) or not on else "not offered", why)
    return {*rates, *({_SWITCH, stop} & values.keys())}


def _one(work: Work, name: str, value: Any) -> None:
    if name == "save_model_as":
        folder = str(value).startswith("diffusers")
        work.take(_LAYOUT, "diffusers" if folder else "single_file", name)
        near = "" if folder or value in ("safetensors", "same as source model") else "files are always safetensors"
        work.note(name, "near" if near else "taken", near, _LAYOUT)
    elif is_off(value):
        work.note(name, "off")
    elif name == "full_bf16":
        work.take(WEIGHTS, "bf16", name)
        work.note(name, "taken", "", WEIGHTS)
    else:
        work.take(FUSED, True, name)
        near = "" if name in _FUSED else "each tensor is stepped by itself, not a group of them"
        work.note(name, "near" if near else "taken", near, FUSED)


def leave_lora(work: Work) -> None:
    """Take back what means nothing for a whole model; after everything was read."""
    for path in [path for path in work.ours if path in LORA_ONLY]:
        unsaid = [note for note in work.notes if note.path == path and note.fate == "default"]
        if unsaid:
            # the other program's default for what it does not have here
            work.notes = [note for note in work.notes if note not in unsaid]
            del work.ours[path]
            continue
        work.drop(path, "not needed", _OF_A_LORA)
    swapped = work.ours.get("memory.blocks_to_swap", 0)
    if swapped and not work.ours.get(FUSED):
        work.take(FUSED, True, "blocks_to_swap")
        work.notes.append(
            Note("blocks_to_swap", "near", "swapped blocks are stepped in the backward pass", None, FUSED)
        )
