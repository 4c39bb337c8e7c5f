"""Computes SD3's forward over diffusers' real modules, with rows of different sizes in one batch.

It computes what `SD3Transformer2DModel.forward` computes (tests hold it to that) for each row alone: a picture's
positions are the middle of the model's table, cut by its own height and width, and no row sees padding. There the
blocks' attention takes no mask and has the image first; here it goes by the run's route, and text comes first: without
rotary positions the order makes no difference.

Trained as the model was (Esser et al., arXiv 2403.03206): the target is the velocity ``noise - latent``, weighted
alike at all levels; these are drawn from a logit-normal distribution (section 3.1) and moved by a shift of 3 at 1024 px
(section 5.3.2, and ``SHIFT`` in Stability-AI/sd3.5 ``sd3_infer.py``), which is what ``timestep_sampling = shift`` does
with its defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor, nn

from backend.families.sd3.facts import PATCH
from backend.families.spec import BaseModel
from backend.models.common.tokens import flow_sigmas, unpack_channels_last
from backend.models.common.transformer import Mark, Rows, Step, Transformer
from backend.models.sd3.encoders import TextStack
from backend.shapes.graph_identity import own_code, with_grad
from backend.shapes.shape_runtime import Packed, ShapeRuntime


class Sd3(Transformer):
    """The code of SD3 and SD3.5. A step's extra: places in the table of positions, and the mask of the image alone.

    Text `prompt_embeds` (77 + L, D), CLIP's states before T5's, and `pooled` (P,); `length` (0-d, those that are not
    padding) lets caption buckets trim T5's.
    """

    model = SD3Transformer2DModel
    text_stack = TextStack
    first_weight = "context_embedder"
    attentions = ("attn", "attn2")
    unpack = staticmethod(unpack_channels_last)

    def block_lists(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """As the class's, each class with code of its own.

        All are of one class and code in diffusers, where the last one, and in SD3.5 medium the first 13, compute other
        things.
        """
        blocks_of: dict[str, list[nn.Module]] = {each.name: [] for each in self.facts.block_classes}
        for block in denoiser.transformer_blocks:
            blocks_of[kind_of(block)].append(block)
        lists = {kind: nn.ModuleList(blocks) for kind, blocks in blocks_of.items() if blocks}
        if self.adapt(denoiser):
            for number, (kind, blocks) in enumerate(lists.items()):
                forward = own_code(type(blocks[0]).forward, kind, number)
                for block in blocks:
                    block.forward = MethodType(forward, block)
        return lists

    def running_order(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """As the class's: the classes are not one behind the other."""
        self.block_lists(denoiser)
        return {"block": denoiser.transformer_blocks}

    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """As the class's."""
        sizes = [size for (size,) in rows.sizes]
        place = places(sizes, denoiser.pos_embed.pos_embed_max_size, batch.image_size, batch.image.device)
        pooled = torch.stack([encoded["pooled"] for encoded in rows.text]).to(rows.dtype)
        # The timestep stays float32 up to its sinusoids: in bf16, 750 would become 752.
        temb = denoiser.time_text_embed(rows.sigma.float() * 1000, pooled)
        return Step(temb, mask=batch.mask, extra=(place, shapes.image_mask(batch)))

    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """As the class's."""
        embed, (place, _) = denoiser.pos_embed, step.extra
        # a convolution whose patches don't overlap, on patches that are cut already; by itself, as it may have a LoRA
        cells = image.reshape(-1, image.shape[2] // PATCH**2, PATCH, PATCH)
        tokens = embed.proj(cells).reshape(*image.shape[:2], -1)
        tokens = (tokens + embed.pos_embed[0][place]).to(tokens.dtype)
        hidden, _ = self.run_blocks(
            denoiser,
            denoiser.transformer_blocks,
            step,
            mark,
            with_grad(tokens),
            with_grad(denoiser.context_embedder(text)),
        )
        return denoiser.proj_out(denoiser.norm_out(hidden, step.temb))

    def call_block(self, block: nn.Module, step: Step, *streams: Tensor) -> tuple[Any, ...]:
        """As the class's: image and text, of which the last block leaves None."""
        masks = {"attention_mask": step.mask}
        if block.use_dual_attention:
            masks["image_mask"] = step.extra[1]
        out = block(
            hidden_states=streams[0], encoder_hidden_states=streams[1], temb=step.temb, joint_attention_kwargs=masks
        )
        return out[::-1]

    def mark(self, mark: Mark, streams: Sequence[Tensor], step: Step) -> None:
        """As the class's, for the joint sequence and for the image alone."""
        place, image_mask = step.extra
        mark(streams, (), step.mask)
        mark(streams[:1], (place,), image_mask)

    def sampling_sigmas(self, steps: int, image_tokens: int, base: BaseModel) -> list[float]:
        """As `StableDiffusion3Pipeline` calls its scheduler: evenly over its own range, and shifted by 3."""
        return flow_sigmas(steps, image_tokens, self.facts.scheduler_config(base), own_range=True)


def kind_of(block: nn.Module) -> str:
    """The block class of a block: ``dual`` has a second attention of the picture alone, ``last`` drops its text."""
    if block.context_pre_only:
        return "last"
    return "dual" if block.use_dual_attention else "joint"


def places(sizes: Sequence[tuple[int, int]], most: int, image: int, device: torch.device) -> Tensor:
    """(B, image) the place of each token in the model's table of `most` x `most` positions; padding has the first.

    sizes: of the latents. A picture has the middle of the table (`PatchEmbed.cropped_pos_embed`). ValueError for one
    that is longer than the table.
    """
    indices = torch.zeros(len(sizes), image, dtype=torch.long)
    for index, (height, width) in enumerate(sizes):
        rows, columns = height // PATCH, width // PATCH
        if max(rows, columns) > most:
            raise ValueError(f"a picture of {columns} x {rows} tokens is longer than the model's table of {most}")
        down = torch.arange(rows)[:, None] + (most - rows) // 2
        across = torch.arange(columns) + (most - columns) // 2
        indices[index, : rows * columns] = (down * most + across).flatten()
    return indices.to(device, non_blocking=True)
