"""A tiny FLUX denoiser with a LoRA whose B is not zero, and inputs for it."""

from __future__ import annotations

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor

from backend.config.layer_patterns import Size
from backend.families.flux.facts import FACTS
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of
from backend.lora.inject import Lora, find_targets, inject
from tests.tiny.flux import LATENT_CHANNELS, POOLED_WIDTH, TEXT_WIDTH, make_tiny_denoiser


def trained(
    rank: int = 4, alpha: float = 4, targets: tuple[str, ...] = FACTS.default_targets, uneven: bool = False
) -> tuple[FluxTransformer2DModel, Lora]:
    """A denoiser with a LoRA in it, random but not zero. uneven: ranks and alphas differ from layer to layer."""
    model = make_tiny_denoiser()
    paths = find_targets(model, targets)
    own = {path: Size(rank + number % 3, alpha + number % 5) for number, path in enumerate(paths)} if uneven else None
    lora = inject(model, paths, rank=rank, alpha=alpha, dropout=0.0, seed=1, sizes=own)
    source = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for path in lora.layers:
            lora.pair(path)[1].normal_(std=0.5, generator=source)
    return model, lora


def names(model: FluxTransformer2DModel | None = None) -> LayerNames:
    """What the layers of the tiny denoiser are called in files."""
    return names_of(linear_layers(model if model is not None else make_tiny_denoiser()), FACTS)


def inputs(rows: int = 4, columns: int = 6, text: int = 8) -> dict[str, Tensor]:
    """Arguments of ``FluxTransformer2DModel.forward`` for a picture of rows x columns tokens."""
    source = torch.Generator().manual_seed(5)
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1] += torch.arange(rows)[:, None]
    ids[..., 2] += torch.arange(columns)[None, :]
    return {
        "hidden_states": torch.randn(1, rows * columns, LATENT_CHANNELS * 4, generator=source),
        "encoder_hidden_states": torch.randn(1, text, TEXT_WIDTH, generator=source),
        "pooled_projections": torch.randn(1, POOLED_WIDTH, generator=source),
        "timestep": torch.tensor([0.6]),
        "guidance": torch.tensor([1.0]),
        "img_ids": ids.reshape(-1, 3),
        "txt_ids": torch.zeros(text, 3),
    }
