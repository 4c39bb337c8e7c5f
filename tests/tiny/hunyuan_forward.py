"""Builds batches and LoRA models of the tiny HunyuanVideo, and computes what they predict."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from backend.families.hunyuan_video.facts import FACTS
from backend.lora.inject import Lora, find_targets, inject
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.hunyuan_video import LATENT_CHANNELS, POOLED_WIDTH, TEXT_WIDTH, make_tiny_denoiser

predict = load_family("hunyuan_video").predict
GUIDANCE = 3.5
# 48, 16 and 45 tokens: three frames, a picture, three frames of an odd size
SIZES, LENGTHS = [(3, 8, 8), (1, 8, 8), (3, 6, 10)], [9, 14, 6]
EVERY_LAYER = [r".*(attn\..*|net\..*|linear_\d|linear|proj_mlp|proj_out|proj_in)"]


@dataclass
class Batch:
    """Arguments of `predict` for a few rows."""

    noisy: list[Tensor]
    sigma: Tensor
    text: list[dict[str, Tensor]] = field(default_factory=list)


def make_batch(sizes: list[tuple[int, ...]], lengths: list[int], seed: int = 3) -> Batch:
    """sizes: (f, h, w) of latents, or (h, w) of pictures."""
    draw = torch.Generator().manual_seed(seed)
    whole = [size if len(size) == 3 else (1, *size) for size in sizes]
    return Batch(
        [torch.randn(LATENT_CHANNELS, *size, generator=draw) for size in whole],
        torch.rand(len(sizes), generator=draw),
        [
            {
                "prompt_embeds": torch.randn(length, TEXT_WIDTH, generator=draw),
                "pooled": torch.randn(POOLED_WIDTH, generator=draw),
            }
            for length in lengths
        ],
    )


def trained(
    targets: list[str] | None = None, rank: int = 2, alpha: float = 4.0, scale: float = 0.2
) -> tuple[nn.Module, Lora]:
    """Tiny denoiser with a LoRA that does something."""
    model = make_tiny_denoiser()
    lora = inject(
        model, find_targets(model, targets or FACTS.default_targets), rank=rank, alpha=alpha, dropout=0.0, seed=1
    )
    draw = torch.Generator().manual_seed(2)
    for path in lora.layers:
        b = lora.pair(path)[1]
        b.data.copy_(torch.randn(b.shape, generator=draw) * scale)
    return model, lora


def model_with_lora(targets: list[str] | None = None) -> nn.Module:
    """The same in train mode."""
    return trained(targets)[0].train()


def gradients(model: nn.Module, out: list[Tensor]) -> dict[str, Tensor]:
    """LoRA gradients of a loss that weighs each row and position differently; what has none is left out.

    The last double block's text goes on into the single ones: all have one.
    """
    model.zero_grad(set_to_none=True)
    sum((x * torch.linspace(0.5, 1.5, x.numel()).view_as(x)).square().mean() for x in out).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, GUIDANCE, shapes)
    return [x.detach() for x in out], gradients(model, out)
