"""SDXL's UNet and VAE, and what its LoRA files say about themselves."""

from __future__ import annotations

from pathlib import Path

from diffusers import UNet2DConditionModel

from backend.models import load
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.sdxl.facts import FACTS, scheduler_config
from backend.models.vae import VaeStack

BASE_MODEL_VERSION = "sdxl_base_v1-0"
"""``ss_base_model_version``, as sd-scripts writes it."""


def load_denoiser(base: Base | Path, loading: Loading) -> UNet2DConditionModel:
    """The UNet, frozen, in train mode. Refused when files are missing or broken, all of them named."""
    return load.denoiser(UNet2DConditionModel, base, loading, FACTS.part("unet"))


def empty_denoiser(base: Base | Path) -> UNet2DConditionModel:
    """The UNet without weights. Refused when its config can't be used."""
    return load.without_weights(UNet2DConditionModel, base, FACTS.part("unet"))


def load_vae(base: Base | Path, loading: Loading) -> VaeStack:
    """The VAE. Refused when it is missing or broken, named."""
    return VaeStack.load(base, loading, FACTS.part("vae"))


def architecture(base: Base | Path) -> str:
    """``modelspec.architecture`` of a LoRA for the model, as sd-scripts writes it."""
    try:
        velocity = scheduler_config(base).get("prediction_type") == "v_prediction"
    except (OSError, ValueError):
        velocity = False
    return "stable-diffusion-xl-v1-base-v/lora" if velocity else "stable-diffusion-xl-v1-base/lora"
