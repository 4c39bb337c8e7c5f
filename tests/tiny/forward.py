"""Builds what the forward tests of all transformers share: a batch's arguments, a LoRA that acts, its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from backend.lora.inject import Lora, find_targets, inject


@dataclass
class Batch:
    """Arguments of `predict` for a few rows."""

    noisy: list[Tensor]
    sigma: Tensor
    text: list[dict[str, Tensor]] = field(default_factory=list)

    def row(self, at: int) -> Batch:
        return Batch([self.noisy[at]], self.sigma[[at]], [self.text[at]])


def random_batch(
    sizes: Sequence[tuple[int, ...]], lengths: Sequence[int], seed: int, channels: int, width: int, **more: int
) -> Batch:
    """Latents (channels, *size) and captions (length, width); `more`: vectors of the text, by name and width."""
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        [torch.randn(channels, *size, generator=draw) for size in sizes],
        torch.rand(len(sizes), generator=draw),
        [
            {
                "prompt_embeds": torch.randn(length, width, generator=draw),
                **{name: torch.randn(wide, generator=draw) for name, wide in more.items()},
            }
            for length in lengths
        ],
    )


def add_lora(
    model: nn.Module, targets: Sequence[str], rank: int = 2, alpha: float = 4.0, scale: float = 0.2, seed: int = 2
) -> Lora:
    """Train a LoRA in `model` that does something: its second halves are random, not zero."""
    lora = inject(model, find_targets(model, targets), rank=rank, alpha=alpha, dropout=0.0, seed=1)
    draw = torch.Generator().manual_seed(seed)
    for path in lora.layers:
        b = lora.pair(path)[1]
        b.data.copy_(torch.randn(b.shape, generator=draw) * scale)
    return lora


def gradients(model: nn.Module, out: list[Tensor]) -> dict[str, Tensor]:
    """LoRA gradients of a loss that weighs each row and position differently; what has none is left out.

    The last block's text may be computed and thrown away: its layers behind the attention have none.
    """
    model.zero_grad(set_to_none=True)
    sum((x * torch.linspace(0.5, 1.5, x.numel()).view_as(x)).square().mean() for x in out).backward()
    trained = [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]
    return {name: grad.clone() for name, grad in trained if grad is not None and grad.any()}
