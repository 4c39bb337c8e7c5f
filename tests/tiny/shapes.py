"""Tiny FLUX denoisers with a LoRA, and batches of uneven rows, for the exactness tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor

from backend.families.flux.facts import FACTS
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.flux import LATENT_CHANNELS, POOLED_WIDTH, TEXT_WIDTH, make_tiny_denoiser

predict = load_family("flux").predict

# Latent sizes (h, w): 16, 24, 15 and 12 tokens.
SIZES = [(8, 8), (8, 12), (6, 10), (12, 4)]
TEXT = 12


def denoiser_with_lora(
    seed: int = 0,
    dropout: float = 0.0,
    double: int = 2,
    single: int = 2,
    rank: int = 4,
    model: torch.nn.Module | None = None,
) -> torch.nn.Module:
    """Tiny denoiser in train mode with a LoRA on every default target whose B is random, not zero."""
    model = make_tiny_denoiser(double, single, seed) if model is None else model
    targets = [t for t in FACTS.default_targets if "\\" not in t]
    pattern = "|".join([rf".*\.{t.replace('.', chr(92) + '.')}" for t in targets] + [FACTS.default_targets[-1]])
    inject_adapter_in_model(
        LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules=pattern, init_lora_weights=False),
        model,
    )
    generator = torch.Generator().manual_seed(seed + 1)
    for name, parameter in model.named_parameters():
        lora = "lora_" in name
        parameter.requires_grad_(lora)
        if lora:
            values = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.data.copy_(values.to(parameter.dtype))
    return model.train()


@dataclass
class Batch:
    """Arguments of `predict` for a few rows."""

    noisy: list[Tensor]
    sigma: Tensor
    text: list[dict[str, Tensor]]

    def rows(self, *index: int) -> Batch:
        return Batch([self.noisy[i] for i in index], self.sigma[list(index)], [self.text[i] for i in index])

    def to(self, device: str, dtype: torch.dtype) -> Batch:
        text = [{k: v.to(device, dtype) if v.ndim else v for k, v in row.items()} for row in self.text]
        return Batch([x.to(device) for x in self.noisy], self.sigma.to(device), text)


def make_batch(
    sizes: list[tuple[int, int]],
    text_lengths: list[int] | None = None,
    seed: int = 3,
    channels: int = LATENT_CHANNELS,
    text_width: int = TEXT_WIDTH,
    pooled: int = POOLED_WIDTH,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = text_lengths or [TEXT] * len(sizes)
    return Batch(
        noisy=[torch.randn(channels, h, w, generator=generator) for h, w in sizes],
        sigma=torch.rand(len(sizes), generator=generator),
        text=[
            {
                "prompt_embeds": torch.randn(length, text_width, generator=generator),
                "pooled": torch.randn(pooled, generator=generator),
            }
            for length in lengths
        ],
    )


def run(model: torch.nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Predictions and the LoRA gradients of a loss that weighs each row and position differently."""
    model.zero_grad(set_to_none=True)
    out = predict(model, batch.noisy, batch.sigma, batch.text, 3.5, shapes)
    loss = sum((x * torch.linspace(0.5, 1.5, x.numel(), device=x.device).view_as(x)).square().mean() for x in out)
    loss.backward()
    grads = {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    return [x.detach() for x in out], grads


def reference(model: torch.nn.Module, batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The unpadded run: one row at a time, native sizes, gradients summed."""
    outs, total = [], {}
    for index in range(len(batch.noisy)):
        out, grads = run(model, batch.rows(index), ShapeRuntime())
        outs += out
        total = {name: total[name] + grad if total else grad for name, grad in grads.items()}
    return outs, total


def relative(actual: Tensor, wanted: Tensor) -> float:
    """Largest error against the largest value."""
    return ((actual.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-30)).item()


def assert_equal_runs(actual: tuple, wanted: tuple, tolerance: float = 1e-5) -> None:
    for got, want in zip(actual[0], wanted[0], strict=True):
        assert got.shape == want.shape
        assert relative(got, want) < tolerance
    assert actual[1].keys() == wanted[1].keys() and actual[1]
    for name, grad in wanted[1].items():
        assert torch.isfinite(actual[1][name]).all(), name
        assert relative(actual[1][name], grad) < tolerance, (name, relative(actual[1][name], grad))
