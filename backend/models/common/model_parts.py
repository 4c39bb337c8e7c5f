"""Loads parts of a base model from files on this machine by their facts; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from backend.base.errors import Refused
from backend.families.files import headers
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.parts import Part
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import open_part, tokenizer_folder
from backend.models.common.weight_loading import load_part


def denoiser(cls: type[nn.Module], base: BaseModelFiles | Path, loading: LoadOptions, part: Part) -> Any:
    """The denoiser of class `cls`, frozen, in train mode, in the format and place that `loading` says.

    Refused when files are missing or broken, all of them named.
    """
    return load_part(cls, open_part(BaseModelFiles.at(base, loading.variant), part), part, loading).train()


def without_weights(cls: Any, base: BaseModelFiles | Path, part: Part) -> Any:
    """The part without weights (on torch's meta device), for names and sizes. Refused when its config can't be used."""
    base = BaseModelFiles.at(base)
    try:
        config = base.config(part)
        with torch.device("meta"):
            return cls.from_config(config)
    except (OSError, ValueError, TypeError) as error:
        text = f"The config of {part.title} of {base.path} can't be used: {error}"
        raise Refused(text, "Copy the model again from where it came from.", headers.SETTING) from error


def encoder(cls: Any, base: BaseModelFiles, loading: LoadOptions, part: Part) -> Any:
    """A text encoder, in eval mode. Refused when files are missing or broken, all of them named."""
    return load_part(cls, open_part(base, part), part, loading).eval()


def tokenizer(cls: Any, base: BaseModelFiles, part: Part) -> Any:
    """A tokenizer. Refused when its folder is missing or broken, with where to take it from."""
    folder = tokenizer_folder(base, part)
    try:
        return cls.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        text = f"{part.title} in {folder} can't be loaded: {error}"
        where = part.where or "take the folder from the model that it belongs to"
        raise Refused(text, f"Copy it again: {where}.", f"model.{part.setting or 'base_model'}") from error
