"""Computes HunyuanVideo's forward over diffusers' real modules, with rows of different sizes and lengths in one batch.

It computes what `HunyuanVideoTransformer3DModel.forward` computes (tests hold it to that) for each row alone. There
the blocks see the clip first, and the padding of the text is masked; here text comes first, of which there are the real
tokens alone. Text has no rotary positions, so that the order makes no difference.

Trained as the model was (arXiv 2412.03603): the target is the velocity ``noise - latent``, the guidance input gets
1.0, and levels are moved by a shift of 7, as musubi-tuner's guide has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from diffusers import HunyuanVideoTransformer3DModel
from diffusers.models.embeddings import get_1d_rotary_pos_embed
from torch import Tensor, nn

from backend.families.hunyuan_video.facts import PATCH
from backend.models.common.joint_single import joint_single
from backend.models.common.token_positions import Sizes, kept_tables, look_up
from backend.models.common.transformer import Mark, Rows, Step, Transformer
from backend.models.common.vae import VaeStack
from backend.models.hunyuan_video.encoders import TextStack
from backend.models.hunyuan_video.vae import HunyuanVaeStack
from backend.shapes.graph_identity import with_grad
from backend.shapes.rotary_embedding import Rope
from backend.shapes.shape_runtime import Packed, ShapeRuntime


class HunyuanVideo(Transformer):
    """The code of HunyuanVideo. A step's extra: timesteps (B,) float32, and which text tokens are real (B, T) bool.

    Text `prompt_embeds` (L, D), the real tokens alone, and `pooled` (P,); `length` (0-d, where captions are trimmed) is
    the room that the plan has for them.
    """

    model = HunyuanVideoTransformer3DModel
    text_stack = TextStack
    vae_stack: ClassVar[type[VaeStack]] = HunyuanVaeStack
    first_weight = "x_embedder.proj"

    def adapt(self, denoiser: nn.Module) -> bool:
        """As the class's; single blocks get their joint forward: compile must see that."""
        new = super().adapt(denoiser)
        if new:
            for block in denoiser.single_transformer_blocks:
                block.forward = MethodType(_joint_single, block)
        return new

    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """Time, guidance and pooled text, and positions; ValueError without the guidance that a model embeds."""
        pooled = torch.stack([conditioning["pooled"] for conditioning in rows.text]).to(rows.dtype)
        timestep = rows.sigma.float() * 1000
        temb = time_embedding(denoiser, timestep, rows.guidance, pooled)
        device = batch.image.device
        ids = places(rows.sizes, batch.text_size, batch.image_size).to(device, non_blocking=True)
        return Step(temb, rope_of(denoiser, ids), batch.mask, (timestep, real_text(batch)))

    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """As the class's."""
        timestep, real = step.extra
        joint = self.blocks(
            denoiser, cut(denoiser.x_embedder.proj, image), refined(denoiser, text, timestep, real), step, mark
        )
        return denoiser.proj_out(denoiser.norm_out(joint[:, text.shape[1] :], step.temb))

    def blocks(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """The joint sequence (B, T + N, D) behind all blocks, of image (B, N, D) and text (B, T, D)."""
        hidden, words = self.run_blocks(
            denoiser, denoiser.transformer_blocks, step, mark, with_grad(image), with_grad(text)
        )
        joint = with_grad(torch.cat([words, hidden], dim=1))
        return self.run_blocks(denoiser, denoiser.single_transformer_blocks, step, mark, joint)[0]

    def call_block(self, block: nn.Module, step: Step, *streams: Tensor) -> tuple[Any, ...]:
        """As the class's: image and text, or one joint stream."""
        if len(streams) == 1:
            return (block(streams[0], None, step.temb, step.mask, step.rope),)
        return block(*streams, step.temb, step.mask, step.rope)

    def mark(self, mark: Mark, streams: Sequence[Tensor], step: Step) -> None:
        """As the class's, and which text tokens are real."""
        super().mark(mark, (*streams, step.extra[1]), step)


def _joint_single(
    self: nn.Module,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None,
    temb: Tensor,
    attention_mask: Any = None,
    image_rotary_emb: Rope | None = None,
    *more: Any,
) -> Any:
    """Forward of a single-stream block on the joint sequence (B, S, D) -> (B, S, D), as `joint_single`.

    Called with both streams, it still does as diffusers' does.
    """
    if encoder_hidden_states is not None:
        inputs = (hidden_states, encoder_hidden_states, temb, attention_mask, image_rotary_emb, *more)
        return type(self).forward(self, *inputs)
    return joint_single(self, hidden_states, temb, image_rotary_emb, attention_mask=attention_mask)


def cut(convolution: nn.Module, tokens: Tensor) -> Tensor:
    """(B, N, 4C) -> (B, N, D): a convolution whose patches don't overlap, on patches that are cut already."""
    return F.linear(tokens, convolution.weight.flatten(1), convolution.bias)


def refined(denoiser: nn.Module, text: Tensor, timestep: Tensor, real: Tensor) -> Tensor:
    """Text (B, T, D') through the model's token refiner -> (B, T, D); what lies at padding is never looked at.

    real: (B, T) bool. The refiner lets every token see the first one, which has to be a real one: it gets the text
    backwards, as its padding is at the left here. It knows no positions.
    """
    return denoiser.context_embedder(text.flip(1), timestep, real.flip(1)).flip(1)


def real_text(batch: Packed) -> Tensor:
    """(B, T) bool: which text tokens are no padding."""
    lengths = torch.tensor(batch.text_lengths)
    real = torch.arange(batch.text_size) >= batch.text_size - lengths[:, None]
    return real.to(batch.text.device, non_blocking=True)


def places(sizes: Sizes, text: int, image: int) -> Tensor:
    """(B, text + image, 3) int64 on the CPU: frame, row and column of each token; 0 for text and padding.

    sizes: (f, h, w) of each row's latent. At the place 0 nothing is turned, as text is in diffusers.
    """
    ids = torch.zeros(len(sizes), text + image, 3, dtype=torch.long)
    for row, ((frames, height, width),) in zip(ids, sizes, strict=True):
        axes = (torch.arange(count) for count in (frames, height // PATCH, width // PATCH))
        grid = torch.cartesian_prod(*axes)
        row[text : text + len(grid)] = grid
    return ids


def rope_of(denoiser: nn.Module, ids: Tensor) -> Rope:
    """cos and sin (B, S, D) float32 of the places `ids` (B, S, 3), by the model's own widths and theta."""
    # A table as long as the sequence always suffices, and reading the largest id would wait for the device.
    count = ids.shape[1]

    return look_up(rope_tables(denoiser, count, ids.device), ids, denoiser.rope.rope_dim)


def rope_tables(denoiser: nn.Module, count: int, device: torch.device) -> Rope:
    """cos and sin (positions, D) float32 of at least `count` positions, whose D numbers belong to the three axes."""
    embed = denoiser.rope

    def tables() -> Rope:
        at = torch.arange(count, dtype=torch.float32, device=device)
        made = [get_1d_rotary_pos_embed(width, at, embed.theta, use_real=True) for width in embed.rope_dim]
        return torch.cat([cos for cos, _ in made], dim=1), torch.cat([sin for _, sin in made], dim=1)

    return kept_tables(denoiser, device, count, tables)


def time_embedding(denoiser: nn.Module, timestep: Tensor, guidance: float | None, pooled: Tensor) -> Tensor:
    """(B, D) modulation input. Timesteps stay float32 up to their sinusoids: in bf16, 750 would become 752."""
    scales = None
    if denoiser.config.guidance_embeds:
        if guidance is None:
            raise ValueError("this HunyuanVideo model embeds its guidance: predict needs a guidance value")
        scales = torch.full_like(timestep, guidance * 1000)
    return denoiser.time_text_embed(timestep, pooled, scales)[0]
