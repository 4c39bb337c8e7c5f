"""What the tests of Anima share: diffusers' forward without torchvision, and its pipeline over a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.nn.functional as F
from diffusers import (
    AnimaAutoBlocks,
    AnimaModularPipeline,
    AnimaTextConditioner,
    AutoencoderKLQwenImage,
    ClassifierFreeGuidance,
    CosmosTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.models.transformers import transformer_cosmos
from transformers import Qwen2Tokenizer, Qwen3Model, T5TokenizerFast


def without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give diffusers' forward what it takes from torchvision: a resize to the nearest pixel."""
    functional = SimpleNamespace(resize=lambda mask, size, interpolation: F.interpolate(mask, size, mode="nearest"))
    modes = SimpleNamespace(NEAREST="nearest")
    here = SimpleNamespace(functional=functional, InterpolationMode=modes)
    monkeypatch.setattr(transformer_cosmos, "transforms", here, raising=False)


def pipeline_of(folder: Path, guidance: float = 1.0) -> AnimaModularPipeline:
    """diffusers' own pipeline over the parts of `folder`."""
    pipeline = AnimaAutoBlocks().init_pipeline()
    pipeline.update_components(
        text_encoder=Qwen3Model.from_pretrained(folder / "text_encoder"),
        tokenizer=Qwen2Tokenizer.from_pretrained(folder / "tokenizer"),
        t5_tokenizer=T5TokenizerFast.from_pretrained(folder / "t5_tokenizer"),
        text_conditioner=AnimaTextConditioner.from_pretrained(folder / "text_conditioner"),
        transformer=CosmosTransformer3DModel.from_pretrained(folder / "transformer"),
        vae=AutoencoderKLQwenImage.from_pretrained(folder / "vae"),
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        guider=ClassifierFreeGuidance(guidance_scale=guidance),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
