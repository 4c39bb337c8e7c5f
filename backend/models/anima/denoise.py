"""Anima's forward over diffusers' Cosmos modules, with rows of different sizes and lengths in one batch.

It computes what `CosmosTransformer3DModel.forward` computes when `AnimaModularPipeline` calls it (tests hold it to
that), without that forward's padding mask, which needs torchvision and is zero for pictures. Attention among image
tokens and attention to text are apart: the first is masked by the shapes' route, the second has sinks (`sinks.py`).

The target is the velocity ``noise - latent``. Samples are drawn with a shift of 3; the presets train without one, at
sigmoid levels, as the guide of sd-scripts has it (``anima_train_network.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.compile.cuda_graphs.recording import recorded
from backend.compile.forward_shape import Scene, set_scene
from backend.lora.fused import together
from backend.models.anima import sinks
from backend.models.anima.facts import FACTS, PATCH, scheduler_config
from backend.models.base import Base
from backend.models.tokens import flow_sigmas, pack_latent
from backend.shapes import segments
from backend.shapes.attention import Route
from backend.shapes.graph_identity import with_grad
from backend.shapes.rotary import Rope, rotate_halves
from backend.shapes.runtime import ShapeRuntime

Mark = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]


def block_lists(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """The stack of equal blocks by class name, ready to be compiled. Gives the denoiser its `core`."""
    if "core" not in denoiser.__dict__:
        denoiser.core = MethodType(_core, denoiser)
    return {blocks.name: getattr(denoiser, blocks.attribute) for blocks in FACTS.block_classes}


class SelfAttention:
    """Attention among image tokens; takes the place of diffusers' `CosmosAttnProcessor2_0`, one for all blocks.

    diffusers' block hands `image_rotary_emb` to this attention alone, so the route's mask travels with it.
    """

    def __init__(self, route: Route, longest: int | None = None) -> None:
        self.route, self.longest = route, longest

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Any = None,
        image_rotary_emb: tuple[Rope, Any] | None = None,
    ) -> Tensor:
        """image_rotary_emb: cos and sin (B, S, D), and what the route prepared (None where nothing is padded)."""
        made = together(hidden_states, attn.to_q, attn.to_k, attn.to_v)
        query, key, value = (part.unflatten(-1, (attn.heads, -1)) for part in made)
        rope, mask = image_rotary_emb
        query, key = rotate_halves(attn.norm_q(query), rope), rotate_halves(attn.norm_k(key), rope)
        if self.longest is not None and query.shape[1] > self.longest:
            # Nothing to do: the comparison alone bounds a dynamic graph to the sizes that the plan knows.
            pass
        # Under autocast the norms give float32; flash kernels want the values' dtype.
        out = self.route.attend(query.to(value.dtype), key.to(value.dtype), value, mask)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))


class TextAttention:
    """Attention of image tokens to text; `attention_mask` is what `sinks.prepare` gave."""

    def __init__(self, route: Route) -> None:
        self.route = route

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: Any = None
    ) -> Tensor:
        query = attn.norm_q(attn.to_q(hidden_states).unflatten(-1, (attn.heads, -1)))
        made = together(encoder_hidden_states, attn.to_k, attn.to_v)
        key, value = (part.unflatten(-1, (attn.heads, -1)) for part in made)
        key = attn.norm_k(key)
        out = sinks.attend(self.route, query.to(value.dtype), key.to(value.dtype), value, attention_mask)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))


def install(denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
    """Make `route` the attention of every block. longest: tokens that a dynamic graph is bounded to."""
    own, text = SelfAttention(route, longest), TextAttention(route)
    for blocks in block_lists(denoiser).values():
        for block in blocks:
            block.attn1.set_processor(own)
            block.attn2.set_processor(text)


def unpack_latent(tokens: Tensor, height: int, width: int) -> Tensor:
    """(h/2 * w/2, 4C) -> (C, h, w). Not the inverse of `pack_latent`: Cosmos gives the channel last within a token."""
    cells = tokens.reshape(height // PATCH, width // PATCH, PATCH, PATCH, -1)
    return cells.permute(4, 0, 2, 1, 3).reshape(-1, height, width)


def _ropes(denoiser: nn.Module, noisy: Sequence[Tensor], size: int) -> Rope:
    """cos and sin (B, size, D) float32 of each row's own height and width, by the model's own `rope`; zeros behind."""
    made: dict[tuple[int, int], Rope] = {}
    for latent in noisy:
        shape = (latent.shape[1], latent.shape[2])
        if shape not in made:
            made[shape] = denoiser.rope(latent[None, :, None])
    rows = [made[latent.shape[1], latent.shape[2]] for latent in noisy]
    cos, sin = (segments.pad_rows([row[at] for row in rows], size, "right") for at in (0, 1))
    return cos, sin


def _run(
    block: nn.Module,
    hidden: Tensor,
    text: Tensor,
    times: tuple[Tensor, Tensor],
    rope: Rope,
    mask: Any,
    sink: Any,
    mark: Mark | None,
) -> Tensor:
    """One block. Inside of what a checkpoint recomputes, so that dynamic marks are set anew there."""
    if mark is not None:
        _mark_all(mark, hidden, text, rope, mask, sink)
    temb, embedded = times
    return block(hidden, text, embedded, temb, image_rotary_emb=(rope, mask), attention_mask=sink)


def _mark_all(mark: Mark, hidden: Tensor, text: Tensor, rope: Rope, mask: Any, sink: Any) -> None:
    mark((hidden,), rope, mask)
    mark((), (text,), sink)


def _core(
    self: nn.Module,
    image: Tensor,
    text: Tensor,
    times: tuple[Tensor, Tensor],
    rope: Rope,
    mask: Any,
    sink: Any,
    mark: Mark | None,
) -> Tensor:
    """The stack from packed tokens (B, N, 4C or more) and text (B, T, D) to velocity (B, N, 4C)."""
    checkpoint = self._gradient_checkpointing_func if self.gradient_checkpointing else None
    hidden = with_grad(self.patch_embed.proj(image))
    for block in self.transformer_blocks:
        if checkpoint is None or not torch.is_grad_enabled():
            hidden = _run(block, hidden, text, times, rope, mask, sink, mark)
        else:
            hidden = checkpoint(_run, block, hidden, text, times, rope, mask, sink, mark)
    temb, embedded = times
    return self.proj_out(self.norm_out(hidden, embedded, temb))


def predict(
    denoiser: nn.Module,
    noisy: Sequence[Tensor],
    sigma: Tensor,
    text: Sequence[dict[str, Tensor]],
    guidance: float | None,
    shapes: ShapeRuntime,
) -> list[Tensor]:
    """Velocity that Anima predicts for each noisy latent, on real tokens only.

    noisy: B latents (C, h, w), sizes may differ. sigma: (B,) float32 in [0, 1]. text: B dicts with `prompt_embeds`
    (L, D), the real tokens alone. guidance: no effect, the model has no guidance input. Returns B tensors (C, h, w)
    float32 in the order given. Wait-free on the device.
    """
    shapes.install(denoiser)
    dtype = denoiser.time_embed.norm.weight.dtype
    # behind the latent's channels one more, Cosmos' padding mask: zero wherever there is a picture
    extra = PATCH * PATCH if denoiser.config.concat_padding_mask else 0
    rows = [F.pad(pack_latent(latent).to(dtype), (0, extra)) for latent in noisy]
    lengths = [row.shape[0] for row in rows]
    size = shapes.image_size(lengths)
    runs = segments.Runs((0,) * len(rows), tuple(lengths), size)
    # Where padding may come, the mask is always there: with and without one would be two graphs.
    masked = runs.padded or (shapes.mode == "static" and shapes.padding)
    image = segments.pad_rows(rows, size, "right", shapes.pad_fill)
    words, sink, text_tokens = sinks.prepare(shapes, [t["prompt_embeds"].to(dtype) for t in text])
    mask = shapes.route.prepare(runs, image.device) if masked else None
    set_scene(Scene(batch=len(rows), image_tokens=size, text_tokens=text_tokens, masked=masked))
    # The timestep stays float32 up to its sinusoids: in bf16, 0.75 would stay and 0.751 become 0.75.
    times = denoiser.time_embed(image, sigma.float())
    rope = _ropes(denoiser, noisy, size)

    mark = shapes.mark
    if mark is not None and not isinstance(denoiser.core, MethodType):
        # The whole stack is compiled as one: its inputs are marked, not those of the blocks inside.
        _mark_all(mark, image, words, rope, mask, sink)
        mark = None
    velocity = recorded(denoiser, denoiser.core)(image, words, times, rope, mask, sink, mark).float()
    return [
        unpack_latent(velocity[i, : lengths[i]], latent.shape[1], latent.shape[2]) for i, latent in enumerate(noisy)
    ]


def sampling_sigmas(steps: int, image_tokens: int, base: Base | Path) -> list[float]:
    """The model's own noise levels for `steps` sampling steps, `steps` + 1 of them, descending to 0.

    As `AnimaModularPipeline` draws them, with one shift for every size.
    """
    return flow_sigmas(steps, image_tokens, scheduler_config(base))
