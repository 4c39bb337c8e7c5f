"""Builds batches and LoRA models of the tiny Anima, and computes what they predict."""

from __future__ import annotations

from torch import Tensor, nn

from backend.families.anima.facts import FACTS
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.anima import LATENT_CHANNELS, TEXT_WIDTH, make_tiny_denoiser
from tests.tiny.forward import Batch, add_lora, gradients, random_batch

predict = load_family("anima").predict


def make_batch(sizes: list[tuple[int, int]], lengths: list[int], seed: int = 3) -> Batch:
    return random_batch(sizes, lengths, seed, LATENT_CHANNELS, TEXT_WIDTH)


def model_with_lora(targets: list[str] | None = None, layers: int = 2) -> nn.Module:
    """Tiny denoiser in train mode with a LoRA that does something."""
    model = make_tiny_denoiser(layers).train()
    add_lora(model, targets or FACTS.default_targets)
    return model


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    return [x.detach() for x in out], gradients(model, out)
