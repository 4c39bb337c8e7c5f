"""The forward of a Stable Diffusion UNet: diffusers' own, with the batch's rows brought together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs.recording import recorded
from backend.compile.forward_shape import Scene, set_scene
from backend.shapes.runtime import ShapeRuntime


def predict(
    denoiser: nn.Module,
    noisy: Sequence[Tensor],
    level: Tensor,
    text: Sequence[dict[str, Tensor]],
    guidance: float | None,
    shapes: ShapeRuntime,
) -> list[Tensor]:
    """What the UNet predicts for each noisy latent.

    noisy: B latents (C, h, w) of one size. level: (B,) float32 timesteps, 0 to 999. text: B dicts with `prompt_embeds`
    (T, D), and where the UNet has micro-conditioning `pooled` (P,) and `time_ids` (6,). guidance: not taken. Returns B
    tensors (C, h, w) float32. ValueError for rows of different sizes.
    """
    shapes.install(denoiser)
    if len({latent.shape for latent in noisy}) > 1:
        raise ValueError("a UNet takes pictures of one size in a batch")
    dtype = denoiser.conv_in.weight.dtype
    x = torch.stack(list(noisy)).to(dtype)
    words = torch.stack([said["prompt_embeds"] for said in text]).to(dtype)
    added = None
    if denoiser.config.addition_embed_type == "text_time":
        pooled = torch.stack([said["pooled"] for said in text]).to(dtype)
        # float32 up to their sinusoids: in bf16, 1501 px would become 1504
        added = {"text_embeds": pooled, "time_ids": torch.stack([said["time_ids"] for said in text]).float()}
    cell = 2 ** (len(denoiser.down_blocks) - 1)
    tokens = (x.shape[2] // cell) * (x.shape[3] // cell)
    set_scene(Scene(batch=len(noisy), image_tokens=tokens, text_tokens=words.shape[1]))
    run = recorded(denoiser, denoiser)
    out = run(x, level.float(), encoder_hidden_states=words, added_cond_kwargs=added, return_dict=False)[0]
    return list(out.float())
