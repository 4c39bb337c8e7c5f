"""Computes Anima's forward over diffusers' Cosmos modules, with rows of different sizes and lengths in one batch.

It computes what `CosmosTransformer3DModel.forward` computes when `AnimaModularPipeline` calls it (tests hold it to
that), without that forward's padding mask, which needs torchvision and is zero for pictures. Attention among image
tokens and attention to text are apart: the first is masked by the shapes' route, the second has sinks (`sinks.py`).

The target is the velocity ``noise - latent``. Samples are drawn with a shift of 3; the presets train without one, at
sigmoid levels, as the guide of sd-scripts has it (``anima_train_network.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from diffusers import CosmosTransformer3DModel
from torch import Tensor, nn

from backend.compile.forward_shape import ForwardShape, set_forward_shape
from backend.lora.fused_layers import apply_together
from backend.models.anima import sinks
from backend.models.anima.encoders import TextStack
from backend.models.common.attention import JointAttention, set_processor
from backend.models.common.qwen_vae import QwenVaeStack
from backend.models.common.tokens import PATCH, pack_latent, unpack_channels_last
from backend.models.common.transformer import Mark, Rows, Step, Transformer
from backend.shapes import padding
from backend.shapes.attention_routes import Route
from backend.shapes.graph_identity import with_grad
from backend.shapes.rotary_embedding import Rope, rotate_halves
from backend.shapes.shape_runtime import Packed, ShapeRuntime


class Anima(Transformer):
    """The code of Anima. A step's temb: the embedded times and their modulation; mask: of image tokens; extra: what
    weighs the text's sinks. Text: `prompt_embeds` (L, D), the real tokens alone.
    """

    model = CosmosTransformer3DModel
    text_stack = TextStack
    vae_stack = QwenVaeStack
    first_weight = "time_embed.norm"
    unpack = staticmethod(unpack_channels_last)

    def install(self, denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
        """As the class's, of the attention to text too."""
        own, text = SelfAttention(route, longest, rotate_halves), TextAttention(route)
        for blocks in self.block_lists(denoiser).values():
            for block in blocks:
                set_processor(block.attn1, own)
                set_processor(block.attn2, text)

    def pack(self, denoiser: nn.Module, rows: Rows, shapes: ShapeRuntime) -> Packed:
        """Image and text are two sequences; the mask is a pair: of the image, and of the text's sinks."""
        # behind the latent's channels one more, Cosmos' padding mask: zero wherever there is a picture
        extra = PATCH * PATCH if denoiser.config.concat_padding_mask else 0
        images = [F.pad(pack_latent(latent).to(rows.dtype), (0, extra)) for (latent,) in rows.latents]
        lengths = tuple(image.shape[0] for image in images)
        size = shapes.image_size(lengths)
        runs = padding.ValidSpans((0,) * len(images), lengths, size)
        # Where padding may come, the mask is always there: with and without one would be two graphs.
        masked = runs.padded or (shapes.mode == "static" and shapes.padding)
        captions = [encoded["prompt_embeds"].to(rows.dtype) for encoded in rows.text]
        image = padding.pad_rows(images, size, "right", shapes.pad_fill)
        words, sink, text_tokens = sinks.prepare(shapes, captions)
        mask = shapes.route.prepare(runs, image.device) if masked else None
        set_forward_shape(ForwardShape(batch=len(images), image_tokens=size, text_tokens=text_tokens, masked=masked))
        return Packed(image, words, lengths, tuple(caption.shape[0] for caption in captions), (mask, sink))

    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """As the class's."""
        mask, sink = batch.mask
        # The timestep stays float32 up to its sinusoids: in bf16, 0.75 would stay and 0.751 become 0.75.
        times = denoiser.time_embed(batch.image, rows.sigma.float())
        return Step(times, _ropes(denoiser, rows, batch.image_size), mask, sink)

    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """As the class's."""
        hidden, _ = self.run_blocks(
            denoiser, denoiser.transformer_blocks, step, mark, with_grad(denoiser.patch_embed.proj(image)), text
        )
        temb, embedded = step.temb
        return denoiser.proj_out(denoiser.norm_out(hidden, embedded, temb))

    def call_block(self, block: nn.Module, step: Step, *streams: Tensor) -> tuple[Any, ...]:
        """As the class's: image and text, which stays as it is.

        diffusers' block hands `image_rotary_emb` to the attention among image tokens alone, so the route's mask travels
        with it.
        """
        (hidden, words), (temb, embedded) = streams, step.temb
        rope = (step.rope, step.mask)
        return block(hidden, words, embedded, temb, image_rotary_emb=rope, attention_mask=step.extra), words

    def mark(self, mark: Mark, streams: Sequence[Tensor], step: Step) -> None:
        """As the class's, for the image and for the text."""
        mark(streams[:1], step.rope, step.mask)
        mark((), streams[1:], step.extra)


class SelfAttention(JointAttention):
    """Attention among image tokens; takes the place of diffusers' `CosmosAttnProcessor2_0`, one for all blocks."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Any = None,
        image_rotary_emb: tuple[Rope, Any] | None = None,
    ) -> Tensor:
        """image_rotary_emb: cos and sin (B, S, D), and what the route prepared (None where nothing is padded)."""
        rope, mask = image_rotary_emb
        return super().__call__(attn, hidden_states, attention_mask=mask, image_rotary_emb=rope)


class TextAttention:
    """Attention of image tokens to text; `attention_mask` is what `sinks.prepare` gave."""

    def __init__(self, route: Route) -> None:
        self.route = route

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: Any = None
    ) -> Tensor:
        query = attn.norm_q(attn.to_q(hidden_states).unflatten(-1, (attn.heads, -1)))
        made = apply_together(encoder_hidden_states, attn.to_k, attn.to_v)
        key, value = (part.unflatten(-1, (attn.heads, -1)) for part in made)
        key = attn.norm_k(key)
        out = sinks.attend(self.route, query.to(value.dtype), key.to(value.dtype), value, attention_mask)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))


def _ropes(denoiser: nn.Module, rows: Rows, size: int) -> Rope:
    """cos and sin (B, size, D) float32 of each row's own height and width, by the model's own `rope`; zeros behind."""
    made: dict[tuple[int, int], Rope] = {}
    for (latent,), (shape,) in zip(rows.latents, rows.sizes, strict=True):
        if shape not in made:
            made[shape] = denoiser.rope(latent[None, :, None])
    ropes = [made[shape] for (shape,) in rows.sizes]
    cos, sin = (padding.pad_rows([rope[at] for rope in ropes], size, "right") for at in (0, 1))
    return cos, sin
