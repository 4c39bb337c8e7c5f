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
_BEHIND = (1, 2, 16)
"""Latent frames behind a section of FramePack, by the size of their patches: 1, 2 and 4 times a token's."""

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
    made = list(call(denoiser, latents, level * _TIMESTEPS, text, guidance, dtype).float())
    if not text[0].keys() >= {"behind"}:
        return made
    # A section's first frame is its start, which is known: see FramePack's own `predict`.
    starts = [conditioning["behind"][:, :1].float() for conditioning in text]
    ways = [(latent[:, :1] - start) / now for latent, start, now in zip(noisy, starts, level, strict=True)]
    return [torch.cat(parts, dim=1) for parts in zip(ways, made, strict=True)]


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


def _framepack(denoiser: Any, latents: Tensor, time: Tensor, text: Sequence[Row], guidance: Any, dtype: Any) -> Tensor:
    """Of a single row: the model's places are given for all rows at once."""
    (row,) = text
    words, real = _padded([row["prompt_embeds"].to(dtype)], row["prompt_embeds"].shape[0])
    section = latents.shape[2] - 1
    first = 1 + section * int(row["between"])
    frames = [first, *(first + section + count for count in (0, 1, 3))]
    lengths = (section, *_BEHIND)
    own, once, twice, four = (torch.arange(at, at + count) for at, count in zip(frames, lengths, strict=True))
    start, one, two, more = row["behind"].to(dtype)[None].split([1, *_BEHIND], dim=2)
    return denoiser(
        latents[:, :, 1:],
        time,
        words,
        real,
        row["pooled"].to(dtype)[None],
        row["image_embeds"].to(dtype)[None],
        own,
        None if guidance is None else torch.full_like(time, guidance * 1000.0).to(dtype),
        torch.cat([start, one], dim=2),
        torch.cat([torch.zeros(1, dtype=torch.long), once]),
        two,
        twice,
        more,
        four,
        return_dict=False,
    )[0]


def _without_mask(denoiser: nn.Module) -> None:
    """Take the mask from what the blocks are given: a single row has none of its text padded.

    As musubi-tuner does it; diffusers' forward would make a mask of ones, which keeps SDPA from its fastest kernel.
    """
    if getattr(denoiser, "_monotile_bench_unmasked", False):
        return
    for block in (*denoiser.transformer_blocks, *denoiser.single_transformer_blocks):
        block.register_forward_pre_hook(lambda _, inputs: (*inputs[:3], None, *inputs[4:]))
    denoiser._monotile_bench_unmasked = True


# Modules whose weights have the format that latents are given in; some other layers stay in float32.
_FIRST = {
    "WanTransformer3DModel": "patch_embedding",
    "HunyuanVideoTransformer3DModel": "x_embedder.proj",
    "HunyuanVideoFramepackTransformer3DModel": "x_embedder.proj",
}
_CALLS: dict[str, Callable[..., Tensor]] = {
    "WanTransformer3DModel": _wan,
    "HunyuanVideoTransformer3DModel": _hunyuan,
    "HunyuanVideoFramepackTransformer3DModel": _framepack,
}
