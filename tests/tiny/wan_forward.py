"""Builds batches and LoRA models of the tiny Wan, and computes what they predict."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.families.wan.facts import FACTS
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, add_lora, gradients, random_batch
from tests.tiny.wan import LATENT_CHANNELS, TEXT_WIDTH, VISION_WIDTH, make_tiny_denoiser

predict = load_family("wan").predict


def make_batch(sizes: list[tuple[int, ...]], lengths: list[int], seed: int = 3) -> Batch:
    """Rows of clips (f, h, w), or of pictures (h, w), which are clips of one frame."""
    clips = [size if len(size) == 3 else (1, *size) for size in sizes]
    return random_batch(clips, lengths, seed, LATENT_CHANNELS, TEXT_WIDTH)


def make_start_batch(sizes: list[tuple[int, ...]], lengths: list[int], tokens: int = 5) -> Batch:
    """The same of a model that starts from a picture; no tokens: of one that does not read these."""
    batch, draw = make_batch(sizes, lengths), torch.Generator().manual_seed(4)
    for latent, text in zip(batch.noisy, batch.text, strict=True):
        text["start"] = torch.randn(LATENT_CHANNELS + 4, *latent.shape[1:], generator=draw)
        if tokens:
            text["image_embeds"] = torch.randn(tokens, VISION_WIDTH, generator=draw)
    return batch


def model_with_lora(targets: list[str] | None = None, layers: int = 2, **changes: Any) -> nn.Module:
    """Tiny denoiser in train mode with a LoRA that does something."""
    model = make_tiny_denoiser(layers, **changes).train()
    add_lora(model, targets or FACTS.default_targets)
    return model


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    return [x.detach() for x in out], gradients(model, out)


def theirs(model: nn.Module, batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Each row alone through diffusers' own forward, called as its pipelines do; gradients summed."""
    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        words = text["prompt_embeds"]
        outs.append(
            model(
                hidden_states=(torch.cat([latent, text["start"]]) if "start" in text else latent)[None],
                timestep=sigma[None] * 1000,
                encoder_hidden_states=F.pad(words, (0, 0, 0, 512 - words.shape[0]))[None],
                encoder_hidden_states_image=text["image_embeds"][None] if "image_embeds" in text else None,
                return_dict=False,
            )[0][0]
        )
    return [x.detach() for x in outs], gradients(model, outs)
