"""FLUX's forward over diffusers' real modules, with rows of different sizes and lengths in one batch.

It computes what `FluxTransformer2DModel.forward` computes (tests/shapes hold it to that), and keeps in hand what the
shape modes need: RoPE ids a sample, text padded on the left and image on the right, masks, and borders between blocks
that look the same to every block of a class, so that a class is one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs.recording import recorded
from backend.lora.fused import is_fused, together
from backend.models.base import Base
from backend.models.conditioning import controls_in
from backend.models.flux.facts import FACTS, PATCH, scheduler_config
from backend.models.tokens import flow_sigmas, pack_latent, unpack_latent
from backend.shapes.attention import Route
from backend.shapes.graph_identity import with_grad
from backend.shapes.runtime import ShapeRuntime

Rope = tuple[Tensor, Tensor]
# Marks the token axes of a block's inputs (streams, rope, mask) dynamic.
Mark = Callable[[tuple[Tensor, ...], Rope, Any], None]


def block_lists(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """The stacks of equal blocks by class name, in the order in which they run, ready to be compiled.

    Gives the denoiser its `core` and the single blocks their joint forward: compile must see those.
    """
    _adapt(denoiser)
    return {blocks.name: getattr(denoiser, blocks.attribute) for blocks in FACTS.block_classes}


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding of x (B, S, H, D); rope: cos and sin, float32, (B, S, D), or (S, D) for all rows alike.

    The same arithmetic as diffusers' `apply_rotary_emb` (pairs of neighbours, in float32), with ids a sample.
    """
    cos, sin = (table.unsqueeze(-2) for table in rope)
    real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(-2)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


class FluxProcessor:
    """Attention of both block classes, on the joint sequence [text | image]; one object serves all blocks.

    Takes the place of diffusers' `FluxAttnProcessor`. `attention_mask` is whatever the route prepared, or None.
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
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Any = None,
        image_rotary_emb: Rope | None = None,
        projected: tuple[Tensor, ...] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """projected: query, key and value (B, S, D) where the block has made them already."""
        size = (-1, attn.head_dim)
        made = projected or together(hidden_states, attn.to_q, attn.to_k, attn.to_v)
        query, key, value = (part.unflatten(-1, size) for part in made)
        query, key = attn.norm_q(query), attn.norm_k(key)
        if encoder_hidden_states is not None:
            added = together(encoder_hidden_states, attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            text_query, text_key, text_value = (part.unflatten(-1, size) for part in added)
            query = torch.cat([attn.norm_added_q(text_query), query], dim=1)
            key = torch.cat([attn.norm_added_k(text_key), key], dim=1)
            value = torch.cat([text_value, value], dim=1)
        if image_rotary_emb is not None:
            query, key = rotate(query, image_rotary_emb), rotate(key, image_rotary_emb)
        if self.longest is not None and query.shape[1] > self.longest:
            # Nothing to do: the comparison alone bounds a dynamic graph to the sizes that the plan knows.
            pass
        # Under autocast the norms give float32; flash kernels want the values' dtype.
        out = self.route.attend(query.to(value.dtype), key.to(value.dtype), value, attention_mask)
        out = out.flatten(2, 3)
        if encoder_hidden_states is None:
            return out
        text_out, image_out = out.split_with_sizes(
            [encoder_hidden_states.shape[1], out.shape[1] - encoder_hidden_states.shape[1]], dim=1
        )
        image_out = attn.to_out[1](attn.to_out[0](image_out.contiguous()))
        return image_out, attn.to_add_out(text_out.contiguous())


def _joint_single(
    self: nn.Module,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    temb: Tensor | None = None,
    image_rotary_emb: Rope | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Forward of a single-stream block on the joint sequence (B, S, D) -> (B, S, D).

    diffusers' own forward joins text and image, and returns two slices of one tensor: a copy a block, and at the next
    block an input with other strides (another graph). Called with both streams, it still does as diffusers' does.
    """
    if encoder_hidden_states is not None:
        return type(self).forward(
            self, hidden_states, encoder_hidden_states, temb, image_rotary_emb, joint_attention_kwargs
        )
    normed, gate = self.norm(hidden_states, emb=temb)
    more = joint_attention_kwargs or {}
    if is_fused(self.proj_mlp):
        mlp, *projected = together(normed, self.proj_mlp, self.attn.to_q, self.attn.to_k, self.attn.to_v)
        more = {**more, "projected": tuple(projected)}
    else:
        mlp = self.proj_mlp(normed)
    grown = self.act_mlp(mlp)
    attended = self.attn(hidden_states=normed, image_rotary_emb=image_rotary_emb, **more)
    out = hidden_states + gate.unsqueeze(1) * self.proj_out(torch.cat([attended, grown], dim=2))
    return out.clip(-65504, 65504) if out.dtype == torch.float16 else out


def _adapt(denoiser: nn.Module) -> None:
    if "core" in denoiser.__dict__:
        return
    denoiser.core = MethodType(_core, denoiser)
    for block in denoiser.single_transformer_blocks:
        block.forward = MethodType(_joint_single, block)


def install(denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
    """Make `route` the attention of every block. longest: joint tokens that a dynamic graph is bounded to."""
    processor = FluxProcessor(route, longest)
    for blocks in block_lists(denoiser).values():
        for block in blocks:
            block.attn.set_processor(processor)


def _positions(sizes: Sequence[Sequence[tuple[int, int]]], text: int, image: int, device: torch.device) -> Tensor:
    """(B, text + image, 3) picture, row and column of each token; text and padding have (0, 0, 0), as FLUX's text has.

    sizes: of a row's latents, the picture that is made first (picture 0), then its control pictures (picture 1, as
    `FluxKontextPipeline` has it).
    """
    ids = torch.zeros(len(sizes), text + image, 3, dtype=torch.long)
    for index, pictures in enumerate(sizes):
        start = text
        for number, (height, width) in enumerate(pictures):
            rows, columns = height // PATCH, width // PATCH
            end = start + rows * columns
            ids[index, start:end, 0] = min(number, 1)
            ids[index, start:end, 1] = torch.arange(rows).repeat_interleave(columns)
            ids[index, start:end, 2] = torch.arange(columns).repeat(rows)
            start = end
    return ids.to(device, non_blocking=True)


def rope_of(denoiser: nn.Module, ids: Tensor) -> Rope:
    """cos and sin (B, S, D) float32 of positions `ids` (B, S, 3), bit for bit those of the model's own `pos_embed`.

    `pos_embed` computes in float64; here it makes one table over positions, and the batch is looked up in it.
    """
    # A table as long as the sequence always suffices, and reading the largest id would wait for the device.
    count = ids.shape[1]
    table = getattr(denoiser, "_monotile_rope", None)
    if table is None or table[0].shape[0] < count or table[0].device != ids.device:
        at = torch.arange(count, device=ids.device)
        table = denoiser.pos_embed(torch.stack([at, at, at], dim=-1))
        denoiser._monotile_rope = table
    first, second, _ = denoiser.pos_embed.axes_dim
    pictures, rows, columns = ids.unbind(-1)

    def looked_up(part: Tensor) -> Tensor:
        axes = (part[pictures, :first], part[rows, first : first + second], part[columns, first + second :])
        return torch.cat(axes, dim=-1)

    return looked_up(table[0]), looked_up(table[1])


def _time_embedding(denoiser: nn.Module, sigma: Tensor, guidance: float | None, pooled: Tensor) -> Tensor:
    """(B, D) modulation input. Timesteps stay float32 up to their sinusoids: in bf16, 750 would become 752."""
    timestep = sigma.float() * 1000
    if not denoiser.config.guidance_embeds:
        return denoiser.time_text_embed(timestep, pooled)
    if guidance is None:
        raise ValueError("this FLUX model embeds its guidance: predict needs a guidance value")
    scales = torch.full_like(timestep, guidance * 1000)
    return denoiser.time_text_embed(timestep, scales, pooled)


def _run(block: nn.Module, streams: tuple[Tensor, ...], temb: Tensor, rope: Rope, mask: Any, mark: Mark | None) -> Any:
    """One block. Inside of what a checkpoint recomputes, so that dynamic marks are set anew there."""
    if mark is not None:
        mark(streams, rope, mask)
    hidden, text = streams[0], streams[1] if len(streams) > 1 else None
    return block(
        hidden_states=hidden,
        encoder_hidden_states=text,
        temb=temb,
        image_rotary_emb=rope,
        joint_attention_kwargs={"attention_mask": mask},
    )


def _core(
    self: nn.Module, image: Tensor, text: Tensor, temb: Tensor, rope: Rope, mask: Any, mark: Mark | None
) -> Tensor:
    """The stack from packed tokens to velocity: image (B, N, 4C) and text (B, T, D) -> (B, N, 4C)."""
    checkpoint = self._gradient_checkpointing_func if self.gradient_checkpointing else None

    def run(block: nn.Module, *streams: Tensor) -> Any:
        if checkpoint is None or not torch.is_grad_enabled():
            return _run(block, streams, temb, rope, mask, mark)
        return checkpoint(_run, block, streams, temb, rope, mask, mark)

    hidden = with_grad(self.x_embedder(image))
    words = with_grad(self.context_embedder(text))
    for block in self.transformer_blocks:
        words, hidden = run(block, hidden, words)
    joint = with_grad(torch.cat([words, hidden], dim=1))
    for block in self.single_transformer_blocks:
        joint = run(block, joint)
    return self.proj_out(self.norm_out(joint[:, text.shape[1] :], temb))


def predict(
    denoiser: nn.Module,
    noisy: Sequence[Tensor],
    sigma: Tensor,
    text: Sequence[dict[str, Tensor]],
    guidance: float | None,
    shapes: ShapeRuntime,
) -> list[Tensor]:
    """Velocity that FLUX predicts for each noisy latent, on real tokens only.

    noisy: B latents (C, h, w), sizes may differ. sigma: (B,) float32 in [0, 1]. text: B dicts with `prompt_embeds`
    (L, D) and `pooled` (P,); `length` (0-d, real tokens) lets caption buckets trim; `control` is the latent (C, h, w)
    of a picture to start from: it stands behind the row's own tokens as in `FluxKontextPipeline`, and the prediction
    for it is dropped. guidance: embedded guidance value, None where the model has none. Returns B tensors (C, h, w)
    float32 in the order given. Wait-free on the device.
    """
    shapes.install(denoiser)
    dtype = denoiser.context_embedder.weight.dtype
    rows = [[latent, *controls_in(t)] for latent, t in zip(noisy, text, strict=True)]
    sizes = [[(latent.shape[1], latent.shape[2]) for latent in row] for row in rows]
    batch = shapes.pack(
        [torch.cat([pack_latent(latent).to(dtype) for latent in row]) for row in rows],
        [_caption(shapes, t).to(dtype) for t in text],
    )
    pooled = torch.stack([t["pooled"] for t in text]).to(dtype)
    temb = _time_embedding(denoiser, sigma, guidance, pooled)
    rope = rope_of(denoiser, _positions(sizes, batch.text_size, batch.image_size, batch.image.device))

    mark = shapes.mark
    if mark is not None and not isinstance(denoiser.core, MethodType):
        # The whole stack is compiled as one: its inputs are marked, not those of the blocks inside.
        mark((batch.image, batch.text), rope, batch.mask)
        mark = None
    velocity = recorded(denoiser, denoiser.core)(batch.image, batch.text, temb, rope, batch.mask, mark).float()
    return [
        unpack_latent(velocity[i, : height * width // PATCH**2], height, width)
        for i, ((height, width), *_) in enumerate(sizes)
    ]


def _caption(shapes: ShapeRuntime, text: dict[str, Tensor]) -> Tensor:
    """Caption rows (T, D) after trimming to their bucket; T5's padding is at the end, so the front stays."""
    rows = text["prompt_embeds"]
    real = text.get("length")
    kept = shapes.text_tokens(rows.shape[0], None if real is None else int(real))
    return rows[:kept]


def sampling_sigmas(steps: int, image_tokens: int, base: Base | Path) -> list[float]:
    """The model's own noise levels for `steps` sampling steps, `steps` + 1 of them, descending to 0.

    As `FluxPipeline` calls its scheduler: sigmas from 1 to 1/steps, shifted by the image's tokens where the scheduler's
    config says `use_dynamic_shifting` (FLUX.1-dev), else by its fixed shift (FLUX.1-schnell).
    """
    return flow_sigmas(steps, image_tokens, scheduler_config(base))
