"""Computes Wan's forward over diffusers' real modules, with clips of different sizes and lengths in one batch.

It computes what `WanTransformer3DModel.forward` computes when `WanPipeline` calls it (tests hold it to that).
Attention among the clip's own tokens and attention to text are apart: the first is masked by the shapes' route, the
second has its padding as keys of their own weight (`sinks.py`).

The target is the velocity ``noise - latent``. Timesteps are noise levels times 1000, and stay float32 up to their
sinusoids, whose embedding is float32 too, as its makers have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from backend.compile.forward_shape import ForwardShape, set_forward_shape
from backend.families.spec import BaseModel
from backend.lora.fused_layers import apply_together
from backend.models.common.tokens import flow_sigmas, unpack_clip
from backend.models.common.transformer import Mark, Rows, Step, Transformer
from backend.models.wan import sinks
from backend.models.wan.autoencoder import WanVaeStack
from backend.models.wan.encoders import TextStack
from backend.shapes import padding
from backend.shapes.attention_routes import Route
from backend.shapes.graph_identity import with_grad
from backend.shapes.rotary_embedding import Rope, rotate_neighbours
from backend.shapes.shape_runtime import Packed, ShapeRuntime


class Wan(Transformer):
    """The code of Wan. A step's temb: the embedded times and their modulation in six parts; mask: of the clip's tokens;
    extra: the bias of the text's keys, and the picture that the clip starts from as tokens, or None.

    Text: `prompt_embeds` (L, D), the real tokens alone. Of a model that starts from a picture also `start`
    (C, f, h, w), which it takes behind the noisy latent's channels, and `image_embeds` (T, D) where it reads these.
    """

    model = WanTransformer3DModel
    text_stack = TextStack
    vae_stack = WanVaeStack
    first_weight = "patch_embedding"

    def install(self, denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
        """As the class's, of the attention to text too."""
        own, text = SelfAttention(route, longest), TextAttention(route)
        for blocks in self.block_lists(denoiser).values():
            for block in blocks:
                block.attn1.set_processor(own)
                block.attn2.set_processor(text)

    def unpack(self, tokens: Tensor, *size: int) -> Tensor:
        """As the class's: the last layer has the channel last within a token."""
        return unpack_clip(tokens, *size, channels_last=True)

    def pack(self, denoiser: nn.Module, rows: Rows, shapes: ShapeRuntime) -> Packed:
        """Clip and text are two sequences; the mask is a pair: of the clip, and of the text's keys."""
        clips = [
            self.tokens(
                torch.cat([latent, conditioning["start"].to(latent)]) if "start" in conditioning else latent
            ).to(rows.dtype)
            for (latent,), conditioning in zip(rows.latents, rows.text, strict=True)
        ]
        lengths = tuple(clip.shape[0] for clip in clips)
        size = shapes.image_size(lengths)
        runs = padding.ValidSpans((0,) * len(clips), lengths, size)
        # Where padding may come, the mask is always there: with and without one would be two graphs.
        masked = runs.padded or (shapes.mode == "static" and shapes.padding)
        captions = [conditioning["prompt_embeds"].to(rows.dtype) for conditioning in rows.text]
        clip = padding.pad_rows(clips, size, "right", shapes.pad_fill)
        words, bias, text_tokens = sinks.prepare(shapes, captions)
        mask = shapes.route.prepare(runs, clip.device) if masked else None
        set_forward_shape(ForwardShape(batch=len(clips), image_tokens=size, text_tokens=text_tokens, masked=masked))
        return Packed(clip, words, lengths, tuple(caption.shape[0] for caption in captions), (mask, bias))

    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """As the class's."""
        mask, bias = batch.mask
        pictures = None
        if denoiser.condition_embedder.image_embedder is not None:
            pictures = torch.stack([conditioning["image_embeds"].to(rows.dtype) for conditioning in rows.text])
        size = batch.image_size
        return Step(self.times(denoiser, rows, size), _ropes(denoiser, rows, size), mask, (bias, pictures))

    def times(self, denoiser: nn.Module, rows: Rows, tokens: int) -> tuple[Tensor, Tensor]:
        """The embedded timesteps (B, 1, D) and their modulation (B, 6, D) of each row."""
        times, parts = embedded_times(denoiser, rows.sigma.float() * 1000, rows.dtype)
        return times.unsqueeze(1), parts

    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """As the class's."""
        embedding = denoiser.patch_embedding
        # a convolution whose patches don't overlap, on patches that are cut already
        tokens = F.linear(image, embedding.weight.flatten(1), embedding.bias)
        streams = [with_grad(tokens), denoiser.condition_embedder.text_embedder(text)]
        (times, parts), (bias, pictures) = step.temb, step.extra
        if pictures is not None:
            streams.append(denoiser.condition_embedder.image_embedder(pictures))
        each = step._replace(temb=parts, extra=(bias, None))
        hidden, *_ = self.run_blocks(denoiser, denoiser.blocks, each, mark, *streams)
        shift, scale = (denoiser.scale_shift_table + times.unsqueeze(2)).unbind(dim=2)
        normed = denoiser.norm_out(hidden.float()) * (1 + scale) + shift
        return denoiser.proj_out(normed.type_as(hidden))

    def call_block(self, block: nn.Module, step: Step, *streams: Tensor) -> tuple[Any, ...]:
        """As the class's: the clip, and what stays as it is: text, and the picture that the clip starts from.

        diffusers' block hands on what it is given of rotary numbers and of text as they are, so the route's mask
        travels with the first and the keys' bias with the second.
        """
        hidden, words, *pictures = streams
        context = (words, step.extra[0], *pictures)
        return block(hidden, context, step.temb, (step.rope, step.mask)), words, *pictures

    def mark(self, mark: Mark, streams: Sequence[Tensor], step: Step) -> None:
        """As the class's, for the clip and for the text."""
        mark(streams[:1], step.rope, step.mask)
        mark((), streams[1:2], step.extra[0])

    def sampling_sigmas(self, steps: int, image_tokens: int, base: BaseModel) -> list[float]:
        """As the pipeline's scheduler spaces them, over its own range, by a fixed shift."""
        config = self.facts.scheduler_config(base)
        if config.get("_class_name") != "UniPCMultistepScheduler":
            return flow_sigmas(steps, image_tokens, config, own_range=True)
        shift = float(config.get("flow_shift") or 1.0)
        last = 1.0 / config.get("num_train_timesteps", 1000)
        even = torch.linspace(1.0, last, steps + 1, dtype=torch.float64)[:-1]
        return [*(shift * even / (1 + (shift - 1) * even)).tolist(), 0.0]


class SelfAttention:
    """Attention among a clip's tokens; takes the place of diffusers' `WanAttnProcessor`, one for all blocks.

    Queries and keys are normed over all heads at once. longest: tokens that a dynamic graph is bounded to.
    """

    # diffusers sets these on every processor when a user changes attention backends; ours answers to the route alone.
    _attention_backend = None
    _parallel_config = None

    def __init__(self, route: Route, longest: int | None = None) -> None:
        self.route, self.longest = route, longest

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: None = None,
        attention_mask: None = None,
        rotary_emb: tuple[Rope, Any] | None = None,
    ) -> Tensor:
        """rotary_emb: cos and sin (B, S, D), and what the route prepared (None where nothing is padded)."""
        assert rotary_emb is not None
        rope, mask = rotary_emb
        query, key, value = apply_together(hidden_states, attn.to_q, attn.to_k, attn.to_v)
        made = attn.norm_q(query), attn.norm_k(key), value
        query, key, value = (part.unflatten(-1, (attn.heads, -1)) for part in made)
        query, key = rotate_neighbours(query, rope), rotate_neighbours(key, rope)
        if self.longest is not None and query.shape[1] > self.longest:
            # Nothing to do: the comparison alone bounds a dynamic graph to the sizes that the plan knows.
            pass
        # Under autocast the norms give float32; flash kernels want the values' dtype.
        out = self.route.attend(query.to(value.dtype), key.to(value.dtype), value, mask).flatten(2, 3)
        return attn.to_out[1](attn.to_out[0](out))


class TextAttention:
    """Attention of a clip's tokens to text: its rows and the bias of their keys, as `sinks.prepare` gave them.

    Behind them come the tokens of the picture that a clip starts from, where the model has keys of their own for these:
    attention to them is another sum (diffusers' `WanAttnProcessor`, which knows text of 512 tokens alone).
    """

    _attention_backend = None
    _parallel_config = None

    def __init__(self, route: Route) -> None:
        self.route = route

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: tuple[Any, ...],
        attention_mask: None = None,
        rotary_emb: None = None,
    ) -> Tensor:
        words, bias, *pictures = encoder_hidden_states
        heads = (attn.heads, -1)
        query = attn.norm_q(attn.to_q(hidden_states)).unflatten(-1, heads)
        key, value = apply_together(words, attn.to_k, attn.to_v)
        key, value = attn.norm_k(key).unflatten(-1, heads), value.unflatten(-1, heads)
        query = query.to(value.dtype)
        out = sinks.attend(self.route, query, key.to(value.dtype), value, bias)
        for picture in pictures:
            key, value = apply_together(picture, attn.add_k_proj, attn.add_v_proj)
            key, value = attn.norm_added_k(key).unflatten(-1, heads), value.unflatten(-1, heads)
            out = out + self.route.attend(query, key.to(value.dtype), value, None)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))


def embedded_times(denoiser: nn.Module, timesteps: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Timesteps (n,) float32 embedded (n, D), and their modulation (n, 6, D); both in `dtype`."""
    embedder, kind = denoiser.condition_embedder, timesteps.device.type
    # the meta device, on which memory is counted, has no autocast
    with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
        wide = next(embedder.time_embedder.parameters()).dtype
        times = embedder.time_embedder(embedder.timesteps_proj(timesteps).to(wide)).to(dtype)
    return times, embedder.time_proj(embedder.act_fn(times)).unflatten(-1, (6, -1))


def _ropes(denoiser: nn.Module, rows: Rows, size: int) -> Rope:
    """cos and sin (B, size, D) float32 of each row's own frames, height and width; zeros behind."""
    made: dict[tuple[int, ...], Rope] = {}
    for (latent,), (shape,) in zip(rows.latents, rows.sizes, strict=True):
        if shape not in made:
            cos, sin = denoiser.rope(latent[None])
            made[shape] = cos[0, :, 0], sin[0, :, 0]
    ropes = [made[shape] for (shape,) in rows.sizes]
    cos, sin = (padding.pad_rows([rope[at] for rope in ropes], size, "right") for at in (0, 1))
    return cos, sin
