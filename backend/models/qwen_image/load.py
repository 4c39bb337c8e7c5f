"""Qwen-Image's transformer, from files on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path

from diffusers import QwenImageTransformer2DModel

from backend.models import load
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.qwen_image.facts import FACTS


def load_denoiser(base: Base | Path, loading: Loading) -> QwenImageTransformer2DModel:
    """The transformer of the model, as `backend.models.load.denoiser`."""
    return load.denoiser(QwenImageTransformer2DModel, base, loading, FACTS.part("transformer"))


def empty_denoiser(base: Base | Path) -> QwenImageTransformer2DModel:
    """The transformer of the model without weights, as `backend.models.load.without_weights`."""
    return load.without_weights(QwenImageTransformer2DModel, base, FACTS.part("transformer"))
