"""Qwen-Image's forward over diffusers' real modules, with rows of different sizes and lengths in one batch.

It computes what `QwenImageTransformer2DModel.forward` computes (tests hold it to that) for each row alone: its text is
placed by its own picture's height and width, and no row sees padding.

Trained as the model was (arXiv 2508.02324): the target is the velocity ``noise - latent``. Its samples are
drawn with a shift of 2.0 at 1024 px and 2.3 at 1328, less than FLUX's; the presets train with 2.2, as musubi-tuner's
guide has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs.recording import recorded
from backend.lora.fused import together
from backend.models.base import Base
from backend.models.conditioning import controls_in
from backend.models.qwen_image.facts import FACTS, PATCH, scheduler_config
from backend.models.tokens import flow_sigmas, pack_latent, unpack_latent
from backend.shapes.attention import Route
from backend.shapes.graph_identity import with_grad
from backend.shapes.rotary import Rope, rotate_neighbours
from backend.shapes.runtime import ShapeRuntime

# Marks the token axes of a block's inputs (streams, rope, mask) dynamic.
Mark = Callable[[tuple[Tensor, ...], Rope, Any], None]


def block_lists(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """The stack of equal blocks by class name, ready to be compiled. Gives the denoiser its `core`."""
    if "core" not in denoiser.__dict__:
        denoiser.core = MethodType(_core, denoiser)
    return {blocks.name: getattr(denoiser, blocks.attribute) for blocks in FACTS.block_classes}


class QwenProcessor:
    """Attention on the joint sequence [text | image]; one object serves all blocks.

    Takes the place of diffusers' `QwenDoubleStreamAttnProcessor2_0`. `attention_mask` is whatever the route prepared,
    or None.
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
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: None = None,
        attention_mask: Any = None,
        image_rotary_emb: Rope | None = None,
    ) -> tuple[Tensor, Tensor]:
        """image_rotary_emb: cos and sin of the joint sequence. encoder_hidden_states_mask: the block's, never used."""
        size = (-1, attn.inner_dim // attn.heads)
        image = together(hidden_states, attn.to_q, attn.to_k, attn.to_v)
        text = together(encoder_hidden_states, attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        query, key, value = (part.unflatten(-1, size) for part in image)
        text_query, text_key, text_value = (part.unflatten(-1, size) for part in text)
        query = torch.cat([attn.norm_added_q(text_query), attn.norm_q(query)], dim=1)
        key = torch.cat([attn.norm_added_k(text_key), attn.norm_k(key)], dim=1)
        value = torch.cat([text_value, value], dim=1)
        assert image_rotary_emb is not None, "Qwen-Image has no other positions"
        query, key = rotate_neighbours(query, image_rotary_emb), rotate_neighbours(key, image_rotary_emb)
        if self.longest is not None and query.shape[1] > self.longest:
            # Nothing to do: the comparison alone bounds a dynamic graph to the sizes that the plan knows.
            pass
        # Under autocast the norms give float32; flash kernels want the values' dtype.
        out = self.route.attend(query.to(value.dtype), key.to(value.dtype), value, attention_mask).flatten(2, 3)
        words = encoder_hidden_states.shape[1]
        text_out, image_out = out.split_with_sizes([words, out.shape[1] - words], dim=1)
        image_out = attn.to_out[1](attn.to_out[0](image_out.contiguous()))
        return image_out, attn.to_add_out(text_out.contiguous())


def install(denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
    """Make `route` the attention of every block. longest: joint tokens that a dynamic graph is bounded to."""
    processor = QwenProcessor(route, longest)
    for blocks in block_lists(denoiser).values():
        for block in blocks:
            block.attn.set_processor(processor)


def positions(
    sizes: Sequence[Sequence[tuple[int, int]]], lengths: Sequence[int], text: int, image: int, device: torch.device
) -> Tensor:
    """(B, text + image, 3) frame, row and column of each token; padding has (0, 0, 0).

    sizes: of a row's latents, the picture that is made first (frame 0), then its control pictures (frames 1, 2, ...).
    Rows and columns count from the middle of the picture, and text goes on along the diagonal from the border of the
    longest half side (`QwenEmbedRope` with ``scale_rope``), so where it lies depends on the pictures' heights and
    widths. lengths: real text tokens, at the end of the `text` places.
    """
    ids = torch.zeros(len(sizes), text + image, 3, dtype=torch.long)
    for index, (pictures, length) in enumerate(zip(sizes, lengths, strict=True)):
        first = max(side // PATCH // 2 for size in pictures for side in size)
        ids[index, text - length : text] = torch.arange(first, first + length)[:, None]
        start = text
        for number, (height, width) in enumerate(pictures):
            rows, columns = height // PATCH, width // PATCH
            end = start + rows * columns
            ids[index, start:end, 0] = number
            ids[index, start:end, 1] = torch.arange(rows).repeat_interleave(columns) - (rows - rows // 2)
            ids[index, start:end, 2] = torch.arange(columns).repeat(rows) - (columns - columns // 2)
            start = end
    return ids.to(device, non_blocking=True)


def rope_of(denoiser: nn.Module, ids: Tensor) -> Rope:
    """cos and sin (B, S, D) float32 of positions `ids` (B, S, 3): looked up in the model's own tables."""
    embed = denoiser.pos_embed
    tables = getattr(denoiser, "_monotile_rope", None)
    if tables is None or tables[0].device != ids.device:
        # Negative positions come first, so that position p lies at p + their number.
        whole = torch.cat([embed.neg_freqs, embed.pos_freqs])
        tables = tuple(part.repeat_interleave(2, dim=1).float().to(ids.device) for part in (whole.real, whole.imag))
        denoiser._monotile_rope = tables
    at = ids + embed.neg_freqs.shape[0]
    bounds = [0, *accumulate(embed.axes_dim)]

    def looked_up(table: Tensor) -> Tensor:
        return torch.cat([table[at[..., axis], bounds[axis] : bounds[axis + 1]] for axis in range(3)], dim=-1)

    return looked_up(tables[0]), looked_up(tables[1])


def _run(
    block: nn.Module,
    hidden: Tensor,
    text: Tensor,
    temb: Tensor,
    rope: Rope,
    mask: Any,
    still: Tensor | None,
    mark: Mark | None,
) -> tuple[Tensor, Tensor]:
    """One block, text first. Inside of what a checkpoint recomputes, so that dynamic marks are set anew there."""
    if mark is not None:
        mark((hidden, text) if still is None else (hidden, text, still), rope, mask)
    return block(
        hidden_states=hidden,
        encoder_hidden_states=text,
        encoder_hidden_states_mask=None,
        temb=temb,
        image_rotary_emb=rope,
        joint_attention_kwargs={"attention_mask": mask},
        modulate_index=still,
    )


def _core(
    self: nn.Module,
    image: Tensor,
    text: Tensor,
    temb: Tensor,
    rope: Rope,
    mask: Any,
    still: Tensor | None,
    mark: Mark | None,
) -> Tensor:
    """The stack from packed tokens to velocity: image (B, N, 4C) and text (B, T, D) -> (B, N, 4C).

    still: from `_still`; `temb` (2B, D) then has the rows' own timesteps first, and zero's behind them.
    """
    checkpoint = self._gradient_checkpointing_func if self.gradient_checkpointing else None
    hidden = with_grad(self.img_in(image))
    words = with_grad(self.txt_in(self.txt_norm(text)))
    for block in self.transformer_blocks:
        if checkpoint is None or not torch.is_grad_enabled():
            words, hidden = _run(block, hidden, words, temb, rope, mask, still, mark)
        else:
            words, hidden = checkpoint(_run, block, hidden, words, temb, rope, mask, still, mark)
    return self.proj_out(self.norm_out(hidden, temb[: image.shape[0]]))


def _still(sizes: Sequence[Sequence[tuple[int, int]]], image: int, device: torch.device) -> Tensor:
    """(B, image) int32: 1 at the tokens of control pictures, which are told a timestep of zero; 0 elsewhere.

    sizes: as in `positions`. Of models with ``zero_cond_t`` (Qwen-Image-Edit-2511).
    """
    marks = torch.zeros(len(sizes), image, dtype=torch.int32)
    for row, pictures in zip(marks, sizes, strict=True):
        own, *rest = (height * width // PATCH**2 for height, width in pictures)
        row[own : own + sum(rest)] = 1
    return marks.to(device, non_blocking=True)


def predict(
    denoiser: nn.Module,
    noisy: Sequence[Tensor],
    sigma: Tensor,
    text: Sequence[dict[str, Tensor]],
    guidance: float | None,
    shapes: ShapeRuntime,
) -> list[Tensor]:
    """Velocity that Qwen-Image predicts for each noisy latent, on real tokens only.

    noisy: B latents (C, h, w), sizes may differ. sigma: (B,) float32 in [0, 1]. text: B dicts with `prompt_embeds`
    (L, D), the real tokens alone; `length` (0-d, where captions are trimmed) is the room that the plan has for them;
    `control`, `control_2`, `control_3` are the latents (C, h, w) of pictures to start from: they stand behind the row's
    own tokens as in `QwenImageEditPlusPipeline`, and the prediction for them is dropped. guidance: no effect, the model
    has no guidance input.
    Returns B tensors (C, h, w) float32 in the order given. Wait-free on the device.
    """
    shapes.install(denoiser)
    dtype = denoiser.txt_norm.weight.dtype
    rows = [[latent, *controls_in(t)] for latent, t in zip(noisy, text, strict=True)]
    sizes = [[(latent.shape[1], latent.shape[2]) for latent in row] for row in rows]
    words = [t["prompt_embeds"].to(dtype) for t in text]
    batch = shapes.pack(
        [torch.cat([pack_latent(latent).to(dtype) for latent in row]) for row in rows], words, _room(shapes, text)
    )
    # The timestep stays float32 up to its sinusoids: in bf16, 0.750 and 0.751 would be one.
    times, still = sigma.float(), None
    if denoiser.zero_cond_t:
        times, still = torch.cat([times, 0 * times]), _still(sizes, batch.image_size, batch.image.device)
    temb = denoiser.time_text_embed(times, batch.image)
    ids = positions(sizes, batch.text_lengths, batch.text_size, batch.image_size, batch.image.device)
    rope = rope_of(denoiser, ids)

    mark = shapes.mark
    if mark is not None and not isinstance(denoiser.core, MethodType):
        # The whole stack is compiled as one: its inputs are marked, not those of the blocks inside.
        mark((batch.image, batch.text) if still is None else (batch.image, batch.text, still), rope, batch.mask)
        mark = None
    velocity = recorded(denoiser, denoiser.core)(batch.image, batch.text, temb, rope, batch.mask, still, mark).float()
    return [
        unpack_latent(velocity[i, : height * width // PATCH**2], height, width)
        for i, ((height, width), *_) in enumerate(sizes)
    ]


def _room(shapes: ShapeRuntime, text: Sequence[dict[str, Tensor]]) -> int:
    """Text tokens of the rectangle: as planned where rows say so, else by their real lengths."""
    lengths = [t["prompt_embeds"].shape[0] for t in text]
    planned = [int(t["length"]) for t in text if "length" in t]
    return max(*planned, *lengths) if len(planned) == len(text) else shapes.room(lengths)


def guided(toward: Tensor, away: Tensor, scale: float) -> Tensor:
    """True guidance as `QwenImagePipeline` has it: each token keeps the length that it has without. (C, h, w) all."""
    height, width = toward.shape[1:]
    plain, other = pack_latent(toward), pack_latent(away)
    pushed = other + scale * (plain - other)
    lengths = torch.linalg.vector_norm(plain, dim=-1, keepdim=True)
    return unpack_latent(pushed * (lengths / torch.linalg.vector_norm(pushed, dim=-1, keepdim=True)), height, width)


def sampling_sigmas(steps: int, image_tokens: int, base: Base | Path) -> list[float]:
    """The model's own noise levels for `steps` sampling steps, `steps` + 1 of them, descending to 0.

    As `QwenImagePipeline` calls its scheduler: sigmas from 1 to 1/steps, shifted by the image's tokens (0.5 at 256 to
    0.9 at 8192 for Qwen-Image) and stretched to end at ``shift_terminal``. A single step has nothing to stretch: there
    the scheduler divides zero by zero.
    """
    if steps == 1:
        return [1.0, 0.0]
    return flow_sigmas(steps, image_tokens, scheduler_config(base))
