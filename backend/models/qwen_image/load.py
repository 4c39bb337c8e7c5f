"""Qwen-Image's transformer, from files on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import QwenImageTransformer2DModel

from backend.models import files
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.local import load_part
from backend.models.qwen_image.facts import FACTS
from backend.models.sources import open_part
from backend.refused import Refused


def load_denoiser(base: Base | Path, loading: Loading) -> QwenImageTransformer2DModel:
    """The transformer of the model, frozen, in train mode, in the format and place that `loading` says.

    Refused when files are missing or broken, all of them named.
    """
    part = FACTS.part("transformer")
    source = open_part(Base.at(base, loading.variant), part)
    return load_part(QwenImageTransformer2DModel, source, part, loading).train()


def empty_denoiser(base: Base | Path) -> QwenImageTransformer2DModel:
    """The transformer of the model without weights (on torch's meta device), for names and sizes.

    Refused when its config can't be used.
    """
    base = Base.at(base)
    try:
        config = base.config(FACTS.part("transformer"))
        with torch.device("meta"):
            return QwenImageTransformer2DModel.from_config(config)
    except (OSError, ValueError, TypeError) as error:
        text = f"The config of the transformer of {base.path} can't be used: {error}"
        raise Refused(text, "Copy the model again from where it came from.", files.SETTING) from error
