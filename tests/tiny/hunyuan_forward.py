"""Builds batches and LoRA models of the tiny HunyuanVideo, and computes what they predict."""

from __future__ import annotations

from torch import Tensor, nn

from backend.families.hunyuan_video.facts import FACTS
from backend.lora.inject import Lora
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, add_lora, gradients, random_batch
from tests.tiny.hunyuan_video import LATENT_CHANNELS, POOLED_WIDTH, TEXT_WIDTH, make_tiny_denoiser

predict = load_family("hunyuan_video").predict
GUIDANCE = 3.5
# 48, 16 and 45 tokens: three frames, a picture, three frames of an odd size
SIZES, LENGTHS = [(3, 8, 8), (1, 8, 8), (3, 6, 10)], [9, 14, 6]
EVERY_LAYER = [r".*(attn\..*|net\..*|linear_\d|linear|proj_mlp|proj_out|proj_in)"]


def make_batch(sizes: list[tuple[int, ...]], lengths: list[int], seed: int = 3) -> Batch:
    """sizes: (f, h, w) of latents, or (h, w) of pictures."""
    whole = [size if len(size) == 3 else (1, *size) for size in sizes]
    return random_batch(whole, lengths, seed, LATENT_CHANNELS, TEXT_WIDTH, pooled=POOLED_WIDTH)


def trained(
    targets: list[str] | None = None, rank: int = 2, alpha: float = 4.0, scale: float = 0.2
) -> tuple[nn.Module, Lora]:
    """Tiny denoiser with a LoRA that does something."""
    model = make_tiny_denoiser()
    return model, add_lora(model, targets or FACTS.default_targets, rank, alpha, scale)


def model_with_lora(targets: list[str] | None = None) -> nn.Module:
    """The same in train mode."""
    return trained(targets)[0].train()


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = predict(model, batch.noisy, batch.sigma, batch.text, GUIDANCE, shapes)
    return [x.detach() for x in out], gradients(model, out)
