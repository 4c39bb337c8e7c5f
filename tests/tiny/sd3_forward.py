"""Builds batches and LoRA models of the tiny SD3, and computes what they predict."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from backend.families.sd3.facts import CLIP_TOKENS, FACTS
from backend.lora.inject import Lora, find_targets, inject
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.sd3 import LATENT_CHANNELS, POOLED_WIDTH, TEXT_WIDTH, make_tiny_denoiser

predict = load_family("sd3").predict
EVERY_LAYER = [r".*(attn2?\..*|net\..*|context_embedder|proj_out|linear_\d|linear)"]


@dataclass
class Batch:
    """Arguments of `predict` for a few rows."""

    noisy: list[Tensor]
    sigma: Tensor
    text: list[dict[str, Tensor]] = field(default_factory=list)


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
    chosen = find_targets(model, targets or list(FACTS.default_targets))
    lora = inject(model, chosen, rank=2, alpha=4.0, dropout=0.0, seed=1)
    draw = torch.Generator().manual_seed(2)
    for path in lora.layers:
        b = lora.pair(path)[1]
        b.data.copy_(torch.randn(b.shape, generator=draw) * 0.2)
    return model


def gradients(model: nn.Module, out: list[Tensor]) -> dict[str, Tensor]:
    """LoRA gradients of a loss that weighs each row and position differently; what has none is left out.

    The last block's text asks nothing that is used.
    """
    model.zero_grad(set_to_none=True)
    sum((x * torch.linspace(0.5, 1.5, x.numel()).view_as(x)).square().mean() for x in out).backward()
    trained = [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]
    return {name: grad.clone() for name, grad in trained if grad is not None and grad.any()}


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    return [x.detach() for x in out], gradients(model, out)


def trained(targets: list[str], rank: int = 3, alpha: float = 5.0) -> tuple[nn.Module, Lora]:
    model = make_tiny_denoiser()
    lora = inject(model, find_targets(model, targets), rank=rank, alpha=alpha, dropout=0.0, seed=1)
    draw = torch.Generator().manual_seed(2)
    for path in lora.layers:
        b = lora.pair(path)[1]
        b.data.copy_(torch.randn(b.shape, generator=draw) * 0.3)
    return model, lora
