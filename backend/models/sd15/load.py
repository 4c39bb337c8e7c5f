"""The parts of Stable Diffusion 1.5, its text encoder in use, and what its LoRA files say about themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTokenizer

from backend.models import load
from backend.models.base import Base
from backend.models.fit import config_of
from backend.models.loading import Loading
from backend.models.sd15.facts import FACTS
from backend.models.unet.texts import as_in_files, joined, token_ids
from backend.models.vae import VaeStack

BASE_MODEL_VERSION = "sd_v1"
"""``ss_base_model_version``, as sd-scripts writes it."""

_WIDTH_V2 = 1024


@dataclass
class TextStack:
    """One CLIP."""

    clip: CLIPTextModel
    tokenizer: CLIPTokenizer

    def trained(self) -> tuple[nn.Module, list[str]]:
        """The encoder in a module whose paths are the names in LoRA files, and patterns of what trains nothing."""
        return as_in_files(te=self.clip), []

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What `states` gives, without gradients."""
        return self.states(captions, text_length)

    def states(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """``prompt_embeds`` (T, D): the last states after the final norm, padding included, as diffusers' pipeline.

        text_length: 77 = T, or more by whole chunks.
        """
        ids = token_ids(self.tokenizer, captions, text_length).to(self.clip.device)
        return [{"prompt_embeds": row} for row in joined(self.clip(ids.flatten(0, 1))[0], len(captions))]


def load_denoiser(base: Base | Path, loading: Loading) -> UNet2DConditionModel:
    """The UNet, frozen, in train mode. Refused when files are missing or broken, all of them named."""
    return load.denoiser(UNet2DConditionModel, base, loading, FACTS.part("unet"))


def empty_denoiser(base: Base | Path) -> UNet2DConditionModel:
    """The UNet without weights. Refused when its config can't be used."""
    return load.without_weights(UNet2DConditionModel, base, FACTS.part("unet"))


def load_vae(base: Base | Path, loading: Loading) -> VaeStack:
    """The VAE. Refused when it is missing or broken, named."""
    return VaeStack.load(base, loading, FACTS.part("vae"))


def load_text(base: Base | Path, loading: Loading) -> TextStack:
    """The encoder with its tokenizer. Refused when a part is missing or broken, named."""
    base = Base.at(base, loading.variant)
    clip = load.encoder(CLIPTextModel, base, loading, FACTS.part("text_encoder"))
    return TextStack(clip, load.tokenizer(CLIPTokenizer, base, FACTS.part("tokenizer")))


def architecture(base: Base | Path) -> str:
    """``modelspec.architecture`` of a LoRA for the model, as sd-scripts writes it; version 2 is told by its width."""
    width = config_of(Base.at(base), FACTS, "text_encoder").get("hidden_size")
    return "stable-diffusion-v2-512/lora" if width == _WIDTH_V2 else "stable-diffusion-v1/lora"
