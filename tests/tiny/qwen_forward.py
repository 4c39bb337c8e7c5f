"""Builds batches and LoRA models of the tiny Qwen-Image, and computes what they predict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from backend.families.qwen_image.facts import FACTS
from backend.lora.inject import find_targets, inject
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.qwen_image import LATENT_CHANNELS, TEXT_WIDTH, make_tiny_denoiser

predict = load_family("qwen_image").predict
# 16, 24 and 15 tokens; odd numbers of rows and columns, which have no middle
SIZES, LENGTHS = [(8, 8), (8, 12), (6, 10)], [9, 14, 6]
GARBAGE = 1e4
EVERY_LAYER = [r".*(attn\..*|net\..*|mod\.1|img_in|txt_in|proj_out|linear_\d|linear)"]


@dataclass
class Batch:
    """Arguments of `predict` for a few rows."""

    noisy: list[Tensor]
    sigma: Tensor
    text: list[dict[str, Tensor]] = field(default_factory=list)


def make_batch(sizes: list[tuple[int, int]], lengths: list[int], seed: int = 3) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        [torch.randn(LATENT_CHANNELS, *size, generator=draw) for size in sizes],
        torch.rand(len(sizes), generator=draw),
        [{"prompt_embeds": torch.randn(length, TEXT_WIDTH, generator=draw)} for length in lengths],
    )


def model_with_lora(targets: list[str] | None = None, layers: int = 2, **config: Any) -> nn.Module:
    """Tiny denoiser in train mode with a LoRA that does something."""
    model = make_tiny_denoiser(layers, **config).train()
    chosen = find_targets(model, targets or list(FACTS.default_targets))
    lora = inject(model, chosen, rank=2, alpha=4.0, dropout=0.0, seed=1)
    draw = torch.Generator().manual_seed(2)
    for path in lora.layers:
        b = lora.pair(path)[1]
        b.data.copy_(torch.randn(b.shape, generator=draw) * 0.2)
    return model


def gradients(model: nn.Module, out: list[Tensor]) -> dict[str, Tensor]:
    """LoRA gradients of a loss that weighs each row and position differently; what has none is left out.

    The last block's text is computed and thrown away, so its layers behind the attention have none.
    """
    model.zero_grad(set_to_none=True)
    sum((x * torch.linspace(0.5, 1.5, x.numel()).view_as(x)).square().mean() for x in out).backward()
    trained = [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]
    return {name: grad.clone() for name, grad in trained if grad is not None and grad.any()}


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    return [x.detach() for x in out], gradients(model, out)
