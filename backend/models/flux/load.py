"""The FLUX transformer, from files on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path

from diffusers import FluxTransformer2DModel

from backend.models import load
from backend.models.base import Base
from backend.models.flux.facts import FACTS
from backend.models.loading import Loading


def load_denoiser(base: Base | Path, loading: Loading) -> FluxTransformer2DModel:
    """The transformer of the model, as `backend.models.load.denoiser`."""
    return load.denoiser(FluxTransformer2DModel, base, loading, FACTS.part("transformer"))


def empty_denoiser(base: Base | Path) -> FluxTransformer2DModel:
    """The transformer of the model without weights, as `backend.models.load.without_weights`."""
    return load.without_weights(FluxTransformer2DModel, base, FACTS.part("transformer"))
