"""The UNet and the CLIP text encoders, from files on this machine; nothing is ever downloaded."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTokenizer

from backend.models import files
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.local import load_part
from backend.models.sources import open_part, tokenizer_folder
from backend.models.spec import FamilyFacts
from backend.refused import Refused


def denoiser(base: Any, loading: Loading, facts: FamilyFacts) -> UNet2DConditionModel:
    """The UNet of the model, frozen, in train mode. Refused when files are missing or broken, all of them named."""
    part = facts.part("unet")
    return load_part(UNet2DConditionModel, open_part(Base.at(base, loading.variant), part), part, loading).train()


def empty(base: Any, facts: FamilyFacts) -> UNet2DConditionModel:
    """The UNet without weights (on torch's meta device), for names and sizes. Refused for another class's config."""
    base = Base.at(base)
    try:
        config = base.config(facts.part("unet"))
        with torch.device("meta"):
            return UNet2DConditionModel.from_config(config)
    except (OSError, ValueError, TypeError) as error:
        text = f"The config of the UNet of {base.path} can't be used: {error}"
        raise Refused(text, "Copy the model again from where it came from.", files.SETTING) from error


def encoder(cls: Any, base: Base, loading: Loading, facts: FamilyFacts, name: str) -> Any:
    """A text encoder, in eval mode."""
    part = facts.part(name)
    return load_part(cls, open_part(base, part), part, loading).eval()


def tokenizer(base: Base, facts: FamilyFacts, name: str) -> CLIPTokenizer:
    """A CLIP tokenizer. Refused when its folder is missing or broken."""
    part = facts.part(name)
    folder = tokenizer_folder(base, part)
    try:
        return CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        text = f"{part.title} in {folder} can't be loaded: {error}"
        where = part.where or "take the folder from the model that it belongs to"
        raise Refused(text, f"Copy it again: {where}.", f"model.{part.setting or 'base_model'}") from error
