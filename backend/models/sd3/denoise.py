"""SD3's forward over diffusers' real modules, with rows of different sizes in one batch.

It computes what `SD3Transformer2DModel.forward` computes (tests hold it to that) for each row alone: a picture's
positions are the middle of the model's table, cut by its own height and width, and no row sees padding. There the
blocks' attention takes no mask; here it goes by the run's route.

Trained as the model was (Esser et al., arXiv 2403.03206): the target is the velocity ``noise - latent``, weighted
alike at all levels; these are drawn from a logit-normal distribution (section 3.1) and moved by a shift of 3 at 1024 px
(section 5.3.2, and ``SHIFT`` in Stability-AI/sd3.5 ``sd3_infer.py``), which is what ``timestep_sampling = shift`` does
with its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs.recording import recorded
from backend.lora.fused import together
from backend.models.base import Base
from backend.models.sd3.facts import CLIP_TOKENS, FACTS, PATCH, scheduler_config
from backend.models.tokens import flow_sigmas, pack_latent
from backend.shapes.attention import Route
from backend.shapes.graph_identity import own_code, with_grad
from backend.shapes.runtime import ShapeRuntime

# Marks the token axes of a block's inputs (streams, rope, mask) dynamic.
Mark = Callable[[tuple[Tensor, ...], tuple[Tensor, ...], Any], None]
# Of the joint sequence and of the picture's tokens alone.
Masks = tuple[Any, Any]


def kind_of(block: nn.Module) -> str:
    """The block class of a block: ``dual`` has a second attention of the picture alone, ``last`` drops its text."""
    if block.context_pre_only:
        return "last"
    return "dual" if block.use_dual_attention else "joint"


def block_lists(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """The blocks by class name, ready to be compiled: each class with code of its own. Gives the denoiser its `core`.

    All are of one class and code in diffusers, where the last one, and in SD3.5 medium the first 13, compute other
    things.
    """
    found: dict[str, list[nn.Module]] = {each.name: [] for each in FACTS.block_classes}
    for block in denoiser.transformer_blocks:
        found[kind_of(block)].append(block)
    lists = {kind: nn.ModuleList(blocks) for kind, blocks in found.items() if blocks}
    if "core" not in denoiser.__dict__:
        denoiser.core = MethodType(_core, denoiser)
        for number, (kind, blocks) in enumerate(lists.items()):
            forward = own_code(type(blocks[0]).forward, kind, number)
            for block in blocks:
                block.forward = MethodType(forward, block)
    return lists


def running_order(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """All blocks in the order in which they run, for what follows them one by one (block swap)."""
    block_lists(denoiser)
    return {"block": denoiser.transformer_blocks}


class JointProcessor:
    """Attention on the joint sequence [text | image], and of the image alone; one object serves all blocks.

    Takes the place of diffusers' `JointAttnProcessor2_0`, which has the image first: without rotary positions the order
    makes no difference, and here padding is at the ends. Masks are whatever the route prepared, or None.
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
        image_mask: Any = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Without text it is the second attention, and `image_mask` its mask."""
        size = (attn.heads, -1)
        made = together(hidden_states, attn.to_q, attn.to_k, attn.to_v)
        query, key, value = (part.unflatten(-1, size) for part in made)
        if attn.norm_q is not None:
            query, key = attn.norm_q(query), attn.norm_k(key)
        if encoder_hidden_states is None:
            out = self._attend(query, key, value, image_mask)
            return attn.to_out[1](attn.to_out[0](out))
        added = together(encoder_hidden_states, attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        text_query, text_key, text_value = (part.unflatten(-1, size) for part in added)
        if attn.norm_added_q is not None:
            text_query, text_key = attn.norm_added_q(text_query), attn.norm_added_k(text_key)
        query = torch.cat([text_query, query], dim=1)
        key = torch.cat([text_key, key], dim=1)
        value = torch.cat([text_value, value], dim=1)
        if self.longest is not None and query.shape[1] > self.longest:
            # Nothing to do: the comparison alone bounds a dynamic graph to the sizes that the plan knows.
            pass
        out = self._attend(query, key, value, attention_mask)
        words = encoder_hidden_states.shape[1]
        text_out, image_out = out.split_with_sizes([words, out.shape[1] - words], dim=1)
        image_out = attn.to_out[1](attn.to_out[0](image_out.contiguous()))
        # the last block has no use for its text
        return image_out, text_out if attn.context_pre_only else attn.to_add_out(text_out.contiguous())

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
        # Under autocast the norms give float32; flash kernels want the values' dtype.
        return self.route.attend(query.to(value.dtype), key.to(value.dtype), value, mask).flatten(2, 3)


def install(denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
    """Make `route` the attention of every block. longest: joint tokens that a dynamic graph is bounded to."""
    processor = JointProcessor(route, longest)
    for blocks in block_lists(denoiser).values():
        for block in blocks:
            block.attn.set_processor(processor)
            if block.attn2 is not None:
                block.attn2.set_processor(processor)


def places(sizes: Sequence[tuple[int, int]], most: int, image: int, device: torch.device) -> Tensor:
    """(B, image) the place of each token in the model's table of `most` x `most` positions; padding has the first.

    sizes: of the latents. A picture has the middle of the table (`PatchEmbed.cropped_pos_embed`). ValueError for one
    that is longer than the table.
    """
    found = torch.zeros(len(sizes), image, dtype=torch.long)
    for index, (height, width) in enumerate(sizes):
        rows, columns = height // PATCH, width // PATCH
        if max(rows, columns) > most:
            raise ValueError(f"a picture of {columns} x {rows} tokens is longer than the model's table of {most}")
        down = torch.arange(rows)[:, None] + (most - rows) // 2
        across = torch.arange(columns) + (most - columns) // 2
        found[index, : rows * columns] = (down * most + across).flatten()
    return found.to(device, non_blocking=True)


def _run(
    block: nn.Module, hidden: Tensor, text: Tensor, temb: Tensor, masks: Masks, mark: Mark | None
) -> tuple[Tensor | None, Tensor]:
    """One block, text first. Inside of what a checkpoint recomputes, so that dynamic marks are set anew there."""
    given = {"attention_mask": masks[0]}
    if mark is not None:
        mark((hidden, text), (), masks[0])
    if block.use_dual_attention:
        given["image_mask"] = masks[1]
        if mark is not None:
            mark((hidden,), (), masks[1])
    return block(hidden_states=hidden, encoder_hidden_states=text, temb=temb, joint_attention_kwargs=given)


def _core(
    self: nn.Module, image: Tensor, text: Tensor, temb: Tensor, place: Tensor, masks: Masks, mark: Mark | None
) -> Tensor:
    """The stack from packed tokens to velocity: image (B, N, 4C) and text (B, T, D) -> (B, N, 4C)."""
    checkpoint = self._gradient_checkpointing_func if self.gradient_checkpointing else None
    # a convolution whose patches don't overlap, on patches that are cut already; by itself, as it may have a LoRA
    cells = image.reshape(-1, image.shape[2] // PATCH**2, PATCH, PATCH)
    hidden = self.pos_embed.proj(cells).reshape(*image.shape[:2], -1)
    hidden = with_grad((hidden + self.pos_embed.pos_embed[0][place]).to(hidden.dtype))
    words = with_grad(self.context_embedder(text))
    for block in self.transformer_blocks:
        if checkpoint is None or not torch.is_grad_enabled():
            words, hidden = _run(block, hidden, words, temb, masks, mark)
        else:
            words, hidden = checkpoint(_run, block, hidden, words, temb, masks, mark)
    return self.proj_out(self.norm_out(hidden, temb))


def predict(
    denoiser: nn.Module,
    noisy: Sequence[Tensor],
    sigma: Tensor,
    text: Sequence[dict[str, Tensor]],
    guidance: float | None,
    shapes: ShapeRuntime,
) -> list[Tensor]:
    """Velocity that SD3 predicts for each noisy latent, on real tokens only.

    noisy: B latents (C, h, w), sizes may differ. sigma: (B,) float32 in [0, 1]. text: B dicts with `prompt_embeds`
    (77 + L, D), CLIP's states before T5's, and `pooled` (P,); `length` (0-d, those that are not padding) lets caption
    buckets trim T5's. guidance: no effect, the model has no guidance input. Returns B tensors (C, h, w) float32 in the
    order given. Wait-free on the device.
    """
    shapes.install(denoiser)
    dtype = denoiser.context_embedder.weight.dtype
    sizes = [(latent.shape[1], latent.shape[2]) for latent in noisy]
    batch = shapes.pack(
        [pack_latent(latent).to(dtype) for latent in noisy], [_caption(shapes, t).to(dtype) for t in text]
    )
    place = places(sizes, denoiser.pos_embed.pos_embed_max_size, batch.image_size, batch.image.device)
    # The timestep stays float32 up to its sinusoids: in bf16, 750 would become 752.
    temb = denoiser.time_text_embed(sigma.float() * 1000, torch.stack([t["pooled"] for t in text]).to(dtype))
    masks = (batch.mask, shapes.image_mask(batch))

    mark = shapes.mark
    if mark is not None and not isinstance(denoiser.core, MethodType):
        # The whole stack is compiled as one: its inputs are marked, not those of the blocks inside.
        mark((batch.image, batch.text), (), batch.mask)
        mark((batch.image,), (place,), masks[1])
        mark = None
    velocity = recorded(denoiser, denoiser.core)(batch.image, batch.text, temb, place, masks, mark).float()
    return [_unpacked(velocity[i, : batch.image_lengths[i]], height, width) for i, (height, width) in enumerate(sizes)]


def _caption(shapes: ShapeRuntime, text: dict[str, Tensor]) -> Tensor:
    """Caption rows after trimming T5's to their bucket; its padding is at the end, so the front stays."""
    rows, real = text["prompt_embeds"], text.get("length")
    kept = shapes.text_tokens(rows.shape[0] - CLIP_TOKENS, None if real is None else int(real) - CLIP_TOKENS)
    return rows[: CLIP_TOKENS + kept]


def _unpacked(tokens: Tensor, height: int, width: int) -> Tensor:
    """(h/2 * w/2, 4C) as the last layer writes them, the channel last within a token, -> (C, h, w)."""
    cells = tokens.reshape(height // PATCH, width // PATCH, PATCH, PATCH, -1)
    return cells.permute(4, 0, 2, 1, 3).reshape(-1, height, width)


def sampling_sigmas(steps: int, image_tokens: int, base: Base | Path) -> list[float]:
    """The model's own noise levels for `steps` sampling steps, `steps` + 1 of them, descending to 0.

    As `StableDiffusion3Pipeline` calls its scheduler: spaced evenly over the scheduler's own range, and shifted by 3.
    """
    return flow_sigmas(steps, image_tokens, scheduler_config(base), own_range=True)
