"""Builds a tiny denoiser whose passes are recorded, and trains it on batches of two shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.shapes import Batch, denoiser_with_lora, make_batch

predict = load_family("flux").predict

GB = 1 << 30
Losses = list[tuple[float, list[Tensor]]]


def model_on(device: str, dropout: float = 0.0) -> nn.Module:
    return denoiser_with_lora(dropout=dropout).to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def turns(device: str, count: int = 8) -> list[Batch]:
    """Two shapes by turns, other values each time."""
    sizes, dtype = [(16, 16), (8, 34)] * 4, torch.bfloat16 if device == "cuda" else torch.float32
    return [make_batch([size], [12], seed=number).to(device, dtype) for number, size in enumerate(sizes[:count])]


def losses(model: nn.Module, batches: list[Batch], sums: int = 1) -> Losses:
    """Loss and gradients of each batch, `sums` passes for each set of gradients. Each batch draws from its own seed."""
    shapes, losses_seen = ShapeRuntime("off"), []
    trained = [p for p in model.parameters() if p.requires_grad]
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        with torch.autocast(batch.noisy[0].device.type, torch.bfloat16):
            out = predict(model, batch.noisy, batch.sigma, batch.text, 1.0, shapes)
        loss = torch.stack([row.float().square().mean() for row in out]).mean()
        loss.backward()
        if (number + 1) % sums == 0:
            losses_seen.append((float(loss), [torch.zeros(()) if p.grad is None else p.grad.clone() for p in trained]))
            model.zero_grad(set_to_none=True)
        del out, loss
    return losses_seen


def assert_same(actual: Losses, wanted: Losses) -> None:
    """On a card up to the order in which the flash kernel's backward pass adds, in bf16."""
    for (loss, gradients), (wanted_loss, wanted_gradients) in zip(actual, wanted, strict=True):
        assert loss == pytest.approx(wanted_loss, rel=1e-4)
        got, want = (torch.cat([g.flatten() for g in some]) for some in (gradients, wanted_gradients))
        assert (got - want).norm() <= (1e-2 if got.is_cuda else 0.0) * want.norm()
