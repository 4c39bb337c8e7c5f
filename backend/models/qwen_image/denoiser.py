"""Computes Qwen-Image's forward over diffusers' real modules, with rows of different sizes and lengths in one batch.

It computes what `QwenImageTransformer2DModel.forward` computes (tests hold it to that) for each row alone: its text is
placed by its own picture's height and width, and no row sees padding.

Trained as the model was (arXiv 2508.02324): the target is the velocity ``noise - latent``. Its samples are
drawn with a shift of 2.0 at 1024 px and 2.3 at 1328, less than FLUX's; the presets train with 2.2, as musubi-tuner's
guide has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from backend.families.qwen_image.facts import PATCH
from backend.families.spec import BaseModel
from backend.models.common.qwen_vae import QwenVaeStack
from backend.models.common.token_positions import Sizes, kept_tables, look_up, picture_places
from backend.models.common.tokens import pack_latent, unpack_latent
from backend.models.common.transformer import Mark, Rows, Step, Transformer
from backend.models.qwen_image.encoders import TextStack
from backend.shapes.graph_identity import with_grad
from backend.shapes.rotary_embedding import Rope
from backend.shapes.shape_runtime import Packed, ShapeRuntime


class QwenImage(Transformer):
    """The code of Qwen-Image and its kin. A step's extra: which tokens are still, from `_still`, or None.

    `temb` of a step with still tokens (2B, D) has the rows' own timesteps first, and zero's behind them. Text:
    `prompt_embeds` (L, D), the real tokens alone; `length` (0-d, where captions are trimmed) is the room that the plan
    has for them.
    """

    model = QwenImageTransformer2DModel
    text_stack = TextStack
    vae_stack = QwenVaeStack
    first_weight = "txt_norm"

    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """As the class's."""
        device = batch.image.device
        # The timestep stays float32 up to its sinusoids: in bf16, 0.750 and 0.751 would be one.
        times, still = rows.sigma.float(), None
        if denoiser.zero_cond_t:
            times, still = torch.cat([times, 0 * times]), _still(rows.sizes, batch.image_size, device)
        temb = denoiser.time_text_embed(times, batch.image)
        ids = positions(rows.sizes, batch.text_lengths, batch.text_size, batch.image_size, device)
        return Step(temb, rope_of(denoiser, ids), batch.mask, still)

    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """As the class's."""
        hidden, _ = self.run_blocks(
            denoiser,
            denoiser.transformer_blocks,
            step,
            mark,
            with_grad(denoiser.img_in(image)),
            with_grad(denoiser.txt_in(denoiser.txt_norm(text))),
        )
        return denoiser.proj_out(denoiser.norm_out(hidden, step.temb[: image.shape[0]]))

    def call_block(self, block: nn.Module, step: Step, *streams: Tensor) -> tuple[Any, ...]:
        """As the class's: image and text."""
        out = block(
            hidden_states=streams[0],
            encoder_hidden_states=streams[1],
            encoder_hidden_states_mask=None,
            temb=step.temb,
            image_rotary_emb=step.rope,
            joint_attention_kwargs={"attention_mask": step.mask},
            modulate_index=step.extra,
        )
        return out[::-1]

    def mark(self, mark: Mark, streams: Sequence[Tensor], step: Step) -> None:
        """As the class's, and which tokens are still."""
        super().mark(mark, streams if step.extra is None else (*streams, step.extra), step)

    def guided(self, toward: Tensor, away: Tensor, scale: float) -> Tensor:
        """As `QwenImagePipeline` has it: each token keeps the length that it has without."""
        height, width = toward.shape[1:]
        plain, other = pack_latent(toward), pack_latent(away)
        pushed = other + scale * (plain - other)
        lengths = torch.linalg.vector_norm(plain, dim=-1, keepdim=True)
        return unpack_latent(pushed * (lengths / torch.linalg.vector_norm(pushed, dim=-1, keepdim=True)), height, width)

    def sampling_sigmas(self, steps: int, image_tokens: int, base: BaseModel) -> list[float]:
        """As the class's, shifted by the image's tokens and stretched to end at ``shift_terminal``.

        A single step has nothing to stretch: there the scheduler divides zero by zero.
        """
        return [1.0, 0.0] if steps == 1 else super().sampling_sigmas(steps, image_tokens, base)


def positions(sizes: Sizes, lengths: Sequence[int], text: int, image: int, device: torch.device) -> Tensor:
    """(B, text + image, 3) frame, row and column of each token; padding has (0, 0, 0).

    Rows and columns count from the middle of the picture, and text continues along the diagonal from the border of the
    longest half side (`QwenEmbedRope` with ``scale_rope``), so where it lies depends on the pictures' heights and
    widths. lengths: real text tokens, at the end of the `text` places.
    """
    ids = picture_places(sizes, text, image, PATCH)
    for row, pictures, length in zip(ids, sizes, lengths, strict=True):
        first = max(side // PATCH // 2 for size in pictures for side in size)
        row[text - length : text] = torch.arange(first, first + length)[:, None]
        start = text
        for height, width in pictures:
            rows, columns = height // PATCH, width // PATCH
            row[start : start + rows * columns, 1:] -= torch.tensor([rows - rows // 2, columns - columns // 2])
            start += rows * columns
    return ids.to(device, non_blocking=True)


def rope_of(denoiser: nn.Module, ids: Tensor) -> Rope:
    """cos and sin (B, S, D) float32 of positions `ids` (B, S, 3): looked up in the model's own tables."""
    embed = denoiser.pos_embed

    def tables() -> Rope:
        # Negative positions come first, so that position p lies at p + their number.
        whole = torch.cat([embed.neg_freqs, embed.pos_freqs])
        cos, sin = (part.repeat_interleave(2, dim=1).float().to(ids.device) for part in (whole.real, whole.imag))
        return cos, sin

    return look_up(kept_tables(denoiser, ids.device, 0, tables), ids + embed.neg_freqs.shape[0], embed.axes_dim)


def _still(sizes: Sizes, image: int, device: torch.device) -> Tensor:
    """(B, image) int32: 1 at the tokens of control pictures, which are given a timestep of zero; 0 elsewhere.

    Of models with ``zero_cond_t`` (Qwen-Image-Edit-2511).
    """
    marks = torch.zeros(len(sizes), image, dtype=torch.int32)
    for row, pictures in zip(marks, sizes, strict=True):
        own, *rest = (height * width // PATCH**2 for height, width in pictures)
        row[own : own + sum(rest)] = 1
    return marks.to(device, non_blocking=True)
