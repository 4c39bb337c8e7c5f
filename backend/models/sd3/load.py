"""SD3's transformer, from files on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path

from diffusers import SD3Transformer2DModel

from backend.models import load
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.sd3.facts import FACTS


def load_denoiser(base: Base | Path, loading: Loading) -> SD3Transformer2DModel:
    """The transformer of the model, as `backend.models.load.denoiser`."""
    return load.denoiser(SD3Transformer2DModel, base, loading, FACTS.part("transformer"))


def empty_denoiser(base: Base | Path) -> SD3Transformer2DModel:
    """The transformer of the model without weights, as `backend.models.load.without_weights`."""
    return load.without_weights(SD3Transformer2DModel, base, FACTS.part("transformer"))
