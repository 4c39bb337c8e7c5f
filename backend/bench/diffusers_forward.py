"""Calls a video denoiser by diffusers' own forward, with its own attention, as other trainers do.

What ours is compared with: the same rows give the same prediction as `Family.predict`, by another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from backend.shapes import attention_routes

_WAN_TEXT = 512
_HUNYUAN_TEXT = 256
_TIMESTEPS = 1000.0

Row = Mapping[str, Tensor]


def predict(
    denoiser: nn.Module,
    noisy: Sequence[Tensor],
    level: Tensor,
    text: Sequence[Row],
    guidance: float | None,
    shapes: Any,
) -> list[Tensor]:
    """As `Family.predict`, of rows of one size: latents (C, f, h, w) float32.

    ValueError for a denoiser whose forward is not known here.
    """
    call = _CALLS.get(type(denoiser).__name__)
    if call is None:
        known = ", ".join(_CALLS)
        raise ValueError(f"the variants of diffusers' forward are for {known}, not {type(denoiser).__name__}")
    if noisy[0].is_cuda:
        # diffusers leaves the choice to torch: without the backend that crashes in the backward pass
        attention_routes.pin_sdpa_backends()
    dtype = denoiser.get_submodule(_FIRST[type(denoiser).__name__]).weight.dtype
    latents = torch.stack(list(noisy)).to(dtype)
    return list(call(denoiser, latents, level * _TIMESTEPS, text, guidance, dtype).float())


def _padded(rows: Sequence[Tensor], length: int) -> tuple[Tensor, Tensor]:
    """Rows (L_b, D) filled with zeros at the end to (B, length, D), and which tokens are real (B, length)."""
    filled = torch.stack([nn.functional.pad(row, (0, 0, 0, length - row.shape[0])) for row in rows])
    real = torch.tensor([[1] * row.shape[0] + [0] * (length - row.shape[0]) for row in rows])
    return filled, real.to(filled.device)


def _wan(denoiser: Any, latents: Tensor, time: Tensor, text: Sequence[Row], guidance: Any, dtype: Any) -> Tensor:
    words, _ = _padded([row["prompt_embeds"].to(dtype) for row in text], _WAN_TEXT)
    return denoiser(latents, time, words, return_dict=False)[0]


def _hunyuan(denoiser: Any, latents: Tensor, time: Tensor, text: Sequence[Row], guidance: Any, dtype: Any) -> Tensor:
    rows = [row["prompt_embeds"].to(dtype) for row in text]
    words, real = _padded(rows, rows[0].shape[0] if len(rows) == 1 else _HUNYUAN_TEXT)
    if len(rows) == 1:
        _without_mask(denoiser)
    pooled = torch.stack([row["pooled"].to(dtype) for row in text])
    scale = None if guidance is None else torch.full_like(time, guidance * 1000.0).to(dtype)
    return denoiser(latents, time, words, real, pooled, scale, return_dict=False)[0]


def _without_mask(denoiser: nn.Module) -> None:
    """Take the mask from what the blocks are given: a single row has none of its text padded.

    As musubi-tuner does it; diffusers' forward would make a mask of ones, which keeps SDPA from its fastest kernel.
    """
    if getattr(denoiser, "_monotile_bench_unmasked", False):
        return
    for block in (*denoiser.transformer_blocks, *denoiser.single_transformer_blocks):
        block.register_forward_pre_hook(lambda _, given: (*given[:3], None, *given[4:]))
    denoiser._monotile_bench_unmasked = True


# Modules whose weights have the format that latents are given in; some other layers stay in float32.
_FIRST = {"WanTransformer3DModel": "patch_embedding", "HunyuanVideoTransformer3DModel": "x_embedder.proj"}
_CALLS: dict[str, Callable[..., Tensor]] = {
    "WanTransformer3DModel": _wan,
    "HunyuanVideoTransformer3DModel": _hunyuan,
}
