"""Checks that a LoRA file loads: read back by the rules that the trainer itself continues from files with."""

from __future__ import annotations

from pathlib import Path

import safetensors
import torch

from backend.base.errors import Refused
from backend.base.problems import errors
from backend.base.tensor_names import clean_key
from backend.config.schema import Config
from backend.dataset.items import count_of
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.lora.comfyui_keys import LayerNames, bundled_embedding, linear_layers, names_of, split_factor, split_key
from backend.lora.load import read_lora
from backend.models.common.base_weights import clip_layers
from backend.models.family_classes import load_family
from backend.plan import base_model_check


def load_check(path: Path, cfg: Config) -> str:
    """What was checked of the file at `path`, in a sentence.

    Each of its layers must be one of the base model, of the same size, with all its parts and finite values. Where the
    base model is not there, only names and values can be checked. Refused for a file that fails.
    """
    tensors = _refuse_not_finite(path)
    names = _names(cfg)
    if names is None:
        _refuse_unknown(path)
        return (
            f"The names of its {count_of(tensors, 'tensor')} are a LoRA's, and all values are finite. The run's base "
            "model was not found, so that the sizes of layers were not compared with it."
        )
    try:
        layers = len(read_lora(path, names).scales)
    except Refused as error:
        raise Refused(error.text, error.remedy) from error
    return (
        f"It was read back: {count_of(layers, 'layer')} of the base model, each with its size and all its parts, and "
        f"finite values in {count_of(tensors, 'tensor')}."
    )


def _refuse_not_finite(path: Path) -> int:
    """The number of tensors; Refused where a value is NaN or infinite."""
    with safetensors.safe_open(path, framework="pt", device="cpu") as file:
        keys = list(file.keys())
        for key in keys:
            if not torch.isfinite(file.get_tensor(key)).all():
                raise Refused(f"{path.name} holds NaN or infinity in {key}", "Publish an earlier checkpoint.")
    return len(keys)


def _refuse_unknown(path: Path) -> None:
    with safetensors.safe_open(path, framework="pt", device="cpu") as file:
        keys = list(file.keys())
        if not keys:
            raise Refused(f"{path.name} is empty: it holds no LoRA", "Publish another checkpoint of the run.")
        for key in keys:
            clean = clean_key(key)
            if split_key(clean) is None and split_factor(clean) is None and bundled_embedding(key) is None:
                raise Refused(f"{path.name} is not a LoRA (it holds {key})", "Publish a file that a run saved.")


def _names(cfg: Config) -> LayerNames | None:
    """The layers of the base model; None where it is not there, or not whole."""
    if cfg.model.base_model is None or errors(base_model_check.problems(cfg)):
        return None
    facts, files = family(cfg.model.family), BaseModelFiles.of(cfg.model)
    empty = load_family(facts.name).empty_denoiser(files)
    return names_of(linear_layers(empty), facts).joined(clip_layers(files, facts))
