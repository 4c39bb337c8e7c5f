"""Builds batches and LoRA models of the tiny SD3, and computes what they predict."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backend.families.sd3.facts import CLIP_TOKENS, FACTS
from backend.lora.inject import Lora
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, add_lora, gradients
from tests.tiny.sd3 import LATENT_CHANNELS, POOLED_WIDTH, TEXT_WIDTH, make_tiny_denoiser

predict = load_family("sd3").predict
EVERY_LAYER = [r".*(attn2?\..*|net\..*|context_embedder|proj_out|linear_\d|linear)"]


def make_batch(sizes: list[tuple[int, int]], lengths: list[int], seed: int = 3, room: int = 64) -> Batch:
    """lengths: tokens of T5 that are not padding, of `room`."""
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        [torch.randn(LATENT_CHANNELS, *size, generator=draw) for size in sizes],
        torch.rand(len(sizes), generator=draw),
        [
            {
                "prompt_embeds": torch.randn(CLIP_TOKENS + room, TEXT_WIDTH, generator=draw),
                "pooled": torch.randn(POOLED_WIDTH, generator=draw),
                "length": torch.tensor(CLIP_TOKENS + length),
            }
            for length in lengths
        ],
    )


def model_with_lora(targets: list[str] | None = None, kind: str = "3.5-medium") -> nn.Module:
    """Tiny denoiser in train mode with a LoRA that does something."""
    model = make_tiny_denoiser(kind).train()
    add_lora(model, targets or FACTS.default_targets)
    return model


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    return [x.detach() for x in out], gradients(model, out)


def trained(targets: list[str], rank: int = 3, alpha: float = 5.0) -> tuple[nn.Module, Lora]:
    model = make_tiny_denoiser()
    return model, add_lora(model, targets, rank, alpha, 0.3)
