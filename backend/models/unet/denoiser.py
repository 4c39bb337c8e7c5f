"""Computes the forward of a Stable Diffusion UNet: diffusers' own, with the batch's rows brought together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn

from backend.compile.cuda_graphs.recording import recorded
from backend.compile.forward_shape import ForwardShape, set_forward_shape
from backend.models.family import Family
from backend.models.unet import blocks
from backend.shapes.attention_routes import Route
from backend.shapes.shape_runtime import ShapeRuntime


class Unet(Family):
    """A family whose denoiser is Stable Diffusion's UNet.

    Text: `prompt_embeds` (T, D), and where the UNet has micro-conditioning `pooled` (P,) and `time_ids` (6,).
    """

    model = UNet2DConditionModel

    def block_lists(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """As the class's."""
        return blocks.block_lists(denoiser)

    def running_order(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """As the class's."""
        return blocks.running_order(denoiser)

    def install(self, denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
        """As the class's."""
        blocks.install(denoiser, route, longest)

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Sequence[Tensor],
        level: Tensor,
        text: Sequence[Mapping[str, Tensor]],
        guidance: float | None,
        shapes: ShapeRuntime,
    ) -> list[Tensor]:
        """As the class's. level: timesteps, 0 to 999. guidance: not taken. ValueError for rows of different sizes."""
        shapes.install(denoiser, self.install)
        if len({latent.shape for latent in noisy}) > 1:
            raise ValueError("a UNet takes pictures of one size in a batch")
        dtype = denoiser.conv_in.weight.dtype
        x = torch.stack(list(noisy)).to(dtype)
        words = torch.stack([encoded["prompt_embeds"] for encoded in text]).to(dtype)
        added = None
        if denoiser.config.addition_embed_type == "text_time":
            pooled = torch.stack([encoded["pooled"] for encoded in text]).to(dtype)
            # float32 up to their sinusoids: in bf16, 1501 px would become 1504
            added = {"text_embeds": pooled, "time_ids": torch.stack([encoded["time_ids"] for encoded in text]).float()}
        cell = 2 ** (len(denoiser.down_blocks) - 1)
        tokens = (x.shape[2] // cell) * (x.shape[3] // cell)
        set_forward_shape(ForwardShape(batch=len(noisy), image_tokens=tokens, text_tokens=words.shape[1]))
        run = recorded(denoiser, denoiser)
        out = run(x, level.float(), encoder_hidden_states=words, added_cond_kwargs=added, return_dict=False)[0]
        return list(out.float())
