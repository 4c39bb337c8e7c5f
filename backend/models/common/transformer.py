"""Computes the forward of a diffusion transformer over diffusers' real blocks: what all families of that kind share.

Rows of different sizes and lengths go through in one batch, padded where the shape mode pads, and no row sees padding.
A family says what is before, in and behind its blocks; here is the way from latents to tokens and back, the loop over
the blocks with checkpointing, and the one place where a whole stack is compiled or recorded.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs.recording import recorded
from backend.models.common.attention import JointAttention, Rotate, set_processor
from backend.models.common.conditioning import controls_in
from backend.models.common.token_positions import Sizes
from backend.models.common.tokens import PATCH, pack_clip, pack_latent, unpack_clip, unpack_latent
from backend.models.family import Family
from backend.shapes.attention_routes import Route
from backend.shapes.rotary_embedding import rotate_neighbours
from backend.shapes.shape_runtime import Packed, ShapeRuntime

Mark = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]
"""Marks the token axes of streams, of what is as long as all of them together, and of their mask dynamic."""


class Step(NamedTuple):
    """What every block of a forward is given beside its streams.

    temb: modulation. rope: what has a place for each token, or nothing. mask: as the route prepared it. extra: what
    one family alone has.
    """

    temb: Any
    rope: tuple[Tensor, ...] = ()
    mask: Any = None
    extra: Any = None


@dataclass(frozen=True)
class Rows:
    """A batch before it is packed. sizes: of each row's latents. sigma: (B,) float32. text: as in `predict`."""

    latents: Sequence[Sequence[Tensor]]
    sizes: Sizes
    sigma: Tensor
    text: Sequence[Mapping[str, Tensor]]
    guidance: float | None
    dtype: torch.dtype


def _core(self: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
    """The stack from packed tokens to velocity: image (B, N, 4C) and text (B, T, D) -> (B, N, 4C)."""
    return self._monotile_family.stack(self, image, text, step, mark)


class Transformer(Family):
    """A family whose denoiser is a transformer over tokens of 2x2 latent cells."""

    first_weight: ClassVar[str]
    """Path of a module whose weight has the format that tokens are given in."""

    rotate: ClassVar[Rotate] = staticmethod(rotate_neighbours)
    attentions: ClassVar[tuple[str, ...]] = ("attn",)
    """Names of a block's attention modules."""

    @abstractmethod
    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """What the blocks are given beside image and text, computed outside of what is compiled."""

    @abstractmethod
    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """From packed tokens to velocity: image (B, N, 4C) and text (B, T, D) -> (B, N, 4C)."""

    @abstractmethod
    def call_block(self, block: nn.Module, step: Step, *streams: Tensor) -> tuple[Any, ...]:
        """The streams behind one block, in the order in which they come."""

    def mark(self, mark: Mark, streams: Sequence[Tensor], step: Step) -> None:
        """Mark the token axes of what a block, or the whole stack, is given."""
        mark(streams, step.rope, step.mask)

    def pack(self, denoiser: nn.Module, rows: Rows, shapes: ShapeRuntime) -> Packed:
        """The batch in rectangles. Captions are trimmed by the family's rule."""
        captions, room = trimmed(shapes, rows.text, self.facts.text_rule, self.facts.text_before)
        tokens = [torch.cat([self.tokens(latent).to(rows.dtype) for latent in row]) for row in rows.latents]
        return shapes.pack(tokens, [caption.to(rows.dtype) for caption in captions], room)

    def tokens(self, latent: Tensor) -> Tensor:
        """Tokens (n, 4C) of a picture's latent (C, h, w), or a clip's (C, f, h, w)."""
        return pack_latent(latent) if latent.ndim == 3 else pack_clip(latent)

    def unpack(self, tokens: Tensor, *size: int) -> Tensor:
        """Velocity of one picture or clip of `size` (h, w) or (f, h, w): (n, 4C) -> (C, *size)."""
        return unpack_latent(tokens, *size) if len(size) == 2 else unpack_clip(tokens, *size)

    def block_lists(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """As the class's. Gives the denoiser its `core`."""
        self.adapt(denoiser)
        return {blocks.name: getattr(denoiser, blocks.attribute) for blocks in self.facts.block_classes}

    def adapt(self, denoiser: nn.Module) -> bool:
        """Give the denoiser its `core`; False where it has it already."""
        if "core" in denoiser.__dict__:
            return False
        denoiser._monotile_family = self
        denoiser.core = MethodType(_core, denoiser)
        return True

    def install(self, denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
        """As the class's."""
        processor = JointAttention(route, longest, type(self).rotate)
        for blocks in self.block_lists(denoiser).values():
            for block in blocks:
                for name in self.attentions:
                    attention = getattr(block, name)
                    if attention is not None:
                        set_processor(attention, processor)

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Sequence[Tensor],
        level: Tensor,
        text: Sequence[Mapping[str, Tensor]],
        guidance: float | None,
        shapes: ShapeRuntime,
    ) -> list[Tensor]:
        """As the class's: the velocity. Sizes may differ; `control`, `control_2` and `control_3` of a row's text are
        the latents (C, h, w) of pictures to start from: they stand behind the row's own tokens, and the prediction for
        them is dropped.
        """
        shapes.install(denoiser, self.install)
        latents = [[latent, *controls_in(conditioning)] for latent, conditioning in zip(noisy, text, strict=True)]
        sizes = [[tuple(latent.shape[1:]) for latent in row] for row in latents]
        dtype = denoiser.get_submodule(self.first_weight).weight.dtype
        rows = Rows(latents, sizes, level, text, guidance, dtype)
        batch = self.pack(denoiser, rows, shapes)
        step = self.condition(denoiser, rows, batch, shapes)

        mark = shapes.mark
        if mark is not None and not isinstance(denoiser.core, MethodType):
            # The whole stack is compiled as one: its inputs are marked, not those of the blocks inside.
            self.mark(mark, (batch.image, batch.text), step)
            mark = None
        velocity = recorded(denoiser, denoiser.core)(batch.image, batch.text, step, mark).float()
        return [self.unpack(velocity[i, : math.prod(size) // PATCH**2], *size) for i, (size, *_) in enumerate(sizes)]

    def run_blocks(
        self, denoiser: nn.Module, blocks: Iterable[nn.Module], step: Step, mark: Mark | None, *streams: Tensor
    ) -> tuple[Any, ...]:
        """The streams behind all `blocks`, each of which is computed again in the backward pass where that is on.

        Keeps no name for what went into a block: it may wait on the host until then.
        """
        recomputed = denoiser.gradient_checkpointing and torch.is_grad_enabled()
        checkpoint = denoiser._gradient_checkpointing_func if recomputed else None
        for block in blocks:
            if checkpoint is None:
                streams = self._run(block, step, mark, *streams)
            else:
                streams = checkpoint(self._run, block, step, mark, *streams)
        return streams

    def _run(self, block: nn.Module, step: Step, mark: Mark | None, *streams: Tensor) -> tuple[Any, ...]:
        """One block. Inside of what a checkpoint recomputes, so that dynamic marks are set again there."""
        if mark is not None:
            self.mark(mark, streams, step)
        return self.call_block(block, step, *streams)


def trimmed(
    shapes: ShapeRuntime, text: Sequence[Mapping[str, Tensor]], rule: str, before: int = 0
) -> tuple[list[Tensor], int | None]:
    """Caption rows (T, D) after trimming, and the text tokens of the rectangle where that is not their longest.

    rule: "attended": padding is at the end, and the bucket that holds the `length` tokens which are none keeps the
    front. before: tokens at the start that no bucket counts. "masked": rows are real tokens alone; `length` is the room
    that the plan has for them.
    """
    rows = [conditioning["prompt_embeds"] for conditioning in text]
    if rule == "masked":
        lengths = [row.shape[0] for row in rows]
        planned = [int(conditioning["length"]) for conditioning in text if "length" in conditioning]
        return rows, max(*planned, *lengths) if len(planned) == len(text) else shapes.room(lengths)
    kept = []
    for row, conditioning in zip(rows, text, strict=True):
        real = conditioning.get("length")
        kept.append(before + shapes.text_tokens(row.shape[0] - before, None if real is None else int(real) - before))
    return [row[:count] for row, count in zip(rows, kept, strict=True)], None
