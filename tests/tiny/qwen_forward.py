"""Builds batches and LoRA models of the tiny Qwen-Image, and computes what they predict."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from backend.families.qwen_image.facts import FACTS
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, add_lora, gradients, random_batch
from tests.tiny.qwen_image import LATENT_CHANNELS, TEXT_WIDTH, make_tiny_denoiser

predict = load_family("qwen_image").predict
# 16, 24 and 15 tokens; odd numbers of rows and columns, which have no middle
SIZES, LENGTHS = [(8, 8), (8, 12), (6, 10)], [9, 14, 6]
GARBAGE = 1e4
EVERY_LAYER = [r".*(attn\..*|net\..*|mod\.1|img_in|txt_in|proj_out|linear_\d|linear)"]


def make_batch(sizes: list[tuple[int, int]], lengths: list[int], seed: int = 3) -> Batch:
    return random_batch(sizes, lengths, seed, LATENT_CHANNELS, TEXT_WIDTH)


def model_with_lora(targets: list[str] | None = None, layers: int = 2, **config: Any) -> nn.Module:
    """Tiny denoiser in train mode with a LoRA that does something."""
    model = make_tiny_denoiser(layers, **config).train()
    add_lora(model, targets or FACTS.default_targets)
    return model


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    return [x.detach() for x in out], gradients(model, out)
