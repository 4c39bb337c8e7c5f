"""The FLUX transformer, from a folder in diffusers layout on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import FluxTransformer2DModel

from backend.models import files
from backend.models.flux import facts
from backend.models.loading import Loading
from backend.models.local import load_part
from backend.refused import Refused


def load_denoiser(base: Path, loading: Loading) -> FluxTransformer2DModel:
    """The transformer of the model at `base`, frozen, in train mode, in the format and place that `loading` says.

    Refused when files are missing or broken, all of them named.
    """
    return load_part(FluxTransformer2DModel, base, facts.FACTS.part("transformer"), loading).train()


def empty_denoiser(base: Path) -> FluxTransformer2DModel:
    """The transformer of the model at `base` without weights (on torch's meta device), for names and sizes.

    Refused when its config can't be used.
    """
    try:
        config = files.read_json(base / facts.FACTS.part("transformer").folder / "config.json")
        with torch.device("meta"):
            return FluxTransformer2DModel.from_config(config)
    except (OSError, ValueError, TypeError) as error:
        text = f"transformer/config.json of {base} can't be used: {error}"
        raise Refused(text, "Copy the file again from where the model came from.", files.SETTING) from error
