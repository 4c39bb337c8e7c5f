"""Computes FLUX's forward over diffusers' real modules, with rows of different sizes and lengths in one batch.

It computes what `FluxTransformer2DModel.forward` computes (tests/shapes hold it to that).
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn

from backend.families.flux.facts import PATCH
from backend.models.common.joint_single import joint_single
from backend.models.common.token_positions import Sizes, kept_tables, look_up, picture_places
from backend.models.common.transformer import Mark, Rows, Step, Transformer
from backend.models.flux.encoders import TextStack
from backend.shapes.graph_identity import with_grad
from backend.shapes.rotary_embedding import Rope
from backend.shapes.shape_runtime import Packed, ShapeRuntime


class Flux(Transformer):
    """The code of FLUX.1 and Kontext: double blocks, then single ones on the joint sequence [text | image].

    Text `prompt_embeds` (L, D) and `pooled` (P,); `length` (0-d, real tokens) lets caption buckets trim.
    """

    model = FluxTransformer2DModel
    text_stack = TextStack
    first_weight = "context_embedder"

    def adapt(self, denoiser: nn.Module) -> bool:
        """As the class's; single blocks get their joint forward: compile must see that."""
        new = super().adapt(denoiser)
        if new:
            for block in denoiser.single_transformer_blocks:
                block.forward = MethodType(_joint_single, block)
        return new

    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """Time, guidance and pooled text, and positions; ValueError without the guidance that a model embeds."""
        pooled = torch.stack([encoded["pooled"] for encoded in rows.text]).to(rows.dtype)
        temb = _time_embedding(denoiser, rows.sigma, rows.guidance, pooled)
        places = _positions(rows.sizes, batch.text_size, batch.image_size, batch.image.device)
        return Step(temb, rope_of(denoiser, places), batch.mask)

    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """As the class's."""
        hidden, words = self.run_blocks(
            denoiser,
            denoiser.transformer_blocks,
            step,
            mark,
            with_grad(denoiser.x_embedder(image)),
            with_grad(denoiser.context_embedder(text)),
        )
        joint = with_grad(torch.cat([words, hidden], dim=1))
        (joint,) = self.run_blocks(denoiser, denoiser.single_transformer_blocks, step, mark, joint)
        return denoiser.proj_out(denoiser.norm_out(joint[:, text.shape[1] :], step.temb))

    def call_block(self, block: nn.Module, step: Step, *streams: Tensor) -> tuple[Any, ...]:
        """As the class's: image and text, or one joint stream."""
        out = block(
            hidden_states=streams[0],
            encoder_hidden_states=streams[1] if len(streams) > 1 else None,
            temb=step.temb,
            image_rotary_emb=step.rope,
            joint_attention_kwargs={"attention_mask": step.mask},
        )
        return out[::-1] if isinstance(out, tuple) else (out,)


def _joint_single(
    self: nn.Module,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    temb: Tensor | None = None,
    image_rotary_emb: Rope | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Forward of a single-stream block on the joint sequence (B, S, D) -> (B, S, D), as `joint_single`.

    Called with both streams, it still does as diffusers' does.
    """
    if encoder_hidden_states is not None:
        return type(self).forward(
            self, hidden_states, encoder_hidden_states, temb, image_rotary_emb, joint_attention_kwargs
        )
    out = joint_single(self, hidden_states, temb, image_rotary_emb, **(joint_attention_kwargs or {}))
    return out.clip(-65504, 65504) if out.dtype == torch.float16 else out


def _positions(sizes: Sizes, text: int, image: int, device: torch.device) -> Tensor:
    """(B, text + image, 3) picture, row and column of each token; text and padding have (0, 0, 0), as FLUX's text has.

    All control pictures have number 1, as `FluxKontextPipeline` has it.
    """
    return picture_places(sizes, text, image, PATCH, most=1).to(device, non_blocking=True)


def rope_of(denoiser: nn.Module, ids: Tensor) -> Rope:
    """cos and sin (B, S, D) float32 of positions `ids` (B, S, 3), bit for bit those of the model's own `pos_embed`.

    `pos_embed` computes in float64; here it makes one table over positions, and the batch is looked up in it.
    """
    # A table as long as the sequence always suffices, and reading the largest id would wait for the device.
    count = ids.shape[1]

    def table() -> Rope:
        at = torch.arange(count, device=ids.device)
        return denoiser.pos_embed(torch.stack([at, at, at], dim=-1))

    return look_up(kept_tables(denoiser, ids.device, count, table), ids, denoiser.pos_embed.axes_dim)


def _time_embedding(denoiser: nn.Module, sigma: Tensor, guidance: float | None, pooled: Tensor) -> Tensor:
    """(B, D) modulation input. Timesteps stay float32 up to their sinusoids: in bf16, 750 would become 752."""
    timestep = sigma.float() * 1000
    if not denoiser.config.guidance_embeds:
        return denoiser.time_text_embed(timestep, pooled)
    if guidance is None:
        raise ValueError("this FLUX model embeds its guidance: predict needs a guidance value")
    scales = torch.full_like(timestep, guidance * 1000)
    return denoiser.time_text_embed(timestep, scales, pooled)
