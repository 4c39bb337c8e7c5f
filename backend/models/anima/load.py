"""Anima's transformer, from files on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path

from diffusers import CosmosTransformer3DModel

from backend.models import load
from backend.models.anima.facts import FACTS
from backend.models.base import Base
from backend.models.loading import Loading


def load_denoiser(base: Base | Path, loading: Loading) -> CosmosTransformer3DModel:
    """The transformer of the model, as `backend.models.load.denoiser`."""
    return load.denoiser(CosmosTransformer3DModel, base, loading, FACTS.part("transformer"))


def empty_denoiser(base: Base | Path) -> CosmosTransformer3DModel:
    """The transformer of the model without weights, as `backend.models.load.without_weights`."""
    return load.without_weights(CosmosTransformer3DModel, base, FACTS.part("transformer"))
