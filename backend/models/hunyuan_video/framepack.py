"""Computes FramePack's forward over diffusers' real modules: a section of a clip, from its start and what is behind it.

It computes what `HunyuanVideoFramepackTransformer3DModel.forward` computes (tests hold it to that). A row's tokens are
those of the section, then of the start and the frame behind the section, then of the frames further behind in larger
patches; its text is the caption, and the tokens that SigLIP makes of the start. Their order makes no difference: places
are given by frame, row and column, and text has none.

The latent of a row is that of the start and of the section, so that a latent is a whole clip for the VAE. The start is
known: what is predicted for it is the way to it, so that it adds nothing to the loss, and samples end at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor, nn

from backend.families.hunyuan_video.facts import PATCH
from backend.families.hunyuan_video.sections import BEHIND, SECTION
from backend.families.spec import BaseModel
from backend.models.common.load_options import LoadOptions
from backend.models.common.transformer import Mark, Rows, Step, trimmed
from backend.models.hunyuan_video.denoiser import (
    HunyuanVideo,
    cut,
    real_text,
    refined,
    rope_tables,
    time_embedding,
)
from backend.models.hunyuan_video.sections import Sections
from backend.models.hunyuan_video.start_encoders import OnwardStack, StartStack
from backend.shapes.rotary_embedding import Rope
from backend.shapes.shape_runtime import Packed, ShapeRuntime

Places = tuple[tuple[Tensor, int], ...]
"""First frame of each patch, and the frames, rows and columns of tokens that a patch stands for."""

_LEAST = 1e-6
"""Of a noise level, to divide by."""


class FramePack(HunyuanVideo):
    """The code of FramePack. A step's extra: timesteps (B,), which caption tokens are real (B, T) bool, and what SigLIP
    saw of each start (B, 729, D).

    Text as HunyuanVideo's, and of the clip `behind` (C, 20, h, w): the latents of the start and of 19 frames behind the
    section, zeros where the clip ends; `between` (0-d): sections between start and section; `image_embeds` (729, D).
    """

    model = HunyuanVideoFramepackTransformer3DModel
    vae_stack = StartStack

    def load_vae(self, base: BaseModel, loading: LoadOptions) -> StartStack:
        """As the class's, with the eyes."""
        return StartStack.whole(base, loading, self.facts)

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Sequence[Tensor],
        level: Tensor,
        text: Sequence[Mapping[str, Tensor]],
        guidance: float | None,
        shapes: ShapeRuntime,
    ) -> list[Tensor]:
        """As the class's, of latents (C, 1 + 9, h, w): the way from the first noisy frame to the start, and the
        section's velocity.
        """
        made = super().predict(denoiser, [latent[:, 1:] for latent in noisy], level, text, guidance, shapes)
        levels = level.float().clamp(min=_LEAST)
        ways = [
            (latent[:, :1].float() - conditioning["behind"][:, :1].float()) / now
            for latent, conditioning, now in zip(noisy, text, levels, strict=True)
        ]
        return [torch.cat([way, section], dim=1) for way, section in zip(ways, made, strict=True)]

    def pack(self, denoiser: nn.Module, rows: Rows, shapes: ShapeRuntime) -> Packed:
        """As the class's: tokens as wide as the model, and room for the picture's tokens behind each caption."""
        tokens = []
        for (latent,), conditioning in zip(rows.latents, rows.text, strict=True):
            own = cut(denoiser.x_embedder.proj, self.tokens(latent).to(rows.dtype))
            start, once, twice, four = conditioning["behind"].to(rows.dtype)[None].split([1, *BEHIND], dim=2)
            behind = denoiser.clean_x_embedder(torch.cat([start, once], dim=2), twice, four)
            tokens.append(torch.cat([own, *(part[0] for part in behind)]))
        captions, room = trimmed(shapes, rows.text, self.facts.text_rule)
        seen = rows.text[0]["image_embeds"].shape[0]
        captions = [caption.to(rows.dtype) for caption in captions]
        held = [torch.cat([caption, caption.new_zeros(seen, caption.shape[1])]) for caption in captions]
        if room is None or shapes.caption_buckets is None:
            # what the plan has room for counts the picture's tokens
            room = max(room or 0, *(row.shape[0] for row in held))
        elif "length" not in rows.text[0]:
            room += seen
        return shapes.pack(tokens, held, max(room, *(row.shape[0] for row in held)))

    def condition(self, denoiser: nn.Module, rows: Rows, batch: Packed, shapes: ShapeRuntime) -> Step:
        """As the class's."""
        pooled = torch.stack([conditioning["pooled"] for conditioning in rows.text]).to(rows.dtype)
        timestep = rows.sigma.float() * 1000
        temb = time_embedding(denoiser, timestep, rows.guidance, pooled)
        seen = torch.stack([conditioning["image_embeds"] for conditioning in rows.text]).to(rows.dtype)
        between = torch.stack([conditioning["between"] for conditioning in rows.text]).to(batch.image.device)
        rope = sections_rope(denoiser, rows, [self.places(count.long()) for count in between], batch)
        return Step(temb, rope, batch.mask, (timestep, real_text(batch)[:, : -seen.shape[1]], seen))

    def places(self, between: Tensor) -> Places:
        """Frames of the section, of the start with the frame behind the section, and of those further behind."""
        first = 1 + SECTION * between
        behind = first + SECTION
        frames, twice, four = (torch.arange(count, device=between.device) for count in (SECTION, *BEHIND[1:]))
        near = torch.stack([torch.zeros_like(behind), behind])
        return (first + frames, 1), (near, 1), (behind + 1 + twice[::2], 2), (behind + 3 + four[::4], 4)

    def sections(self, frames: int) -> Sections:
        """As the class's: from the end to the start."""
        return Sections(frames, onward=False)

    def stack(self, denoiser: nn.Module, image: Tensor, text: Tensor, step: Step, mark: Mark | None) -> Tensor:
        """As the class's, of tokens (B, N, D)."""
        timestep, real, seen = step.extra
        caption = refined(denoiser, text[:, : -seen.shape[1]], timestep, real)
        words = torch.cat([caption, denoiser.image_projection(seen)], dim=1)
        joint = self.blocks(denoiser, image, words, step, mark)
        return denoiser.proj_out(denoiser.norm_out(joint[:, text.shape[1] :], step.temb))

    def sampling_sigmas(self, steps: int, image_tokens: int, base: BaseModel) -> list[float]:
        """As the class's; a scheduler that shifts by the tokens shifts by 7 at most, which every real size reaches."""
        config = dict(self.facts.scheduler_config(base))
        if not config.get("use_dynamic_shifting"):
            return super().sampling_sigmas(steps, image_tokens, base)
        levels = [1 - number / steps for number in range(steps)]
        return [*(7 * level / (1 + 6 * level) for level in levels), 0.0]


class FramePackOnward(FramePack):
    """The code of FramePack F1, whose clips go on from their start: `behind` is what is before the section."""

    vae_stack = OnwardStack

    def load_vae(self, base: BaseModel, loading: LoadOptions) -> StartStack:
        """As the class's."""
        return OnwardStack.whole(base, loading, self.facts)

    def places(self, between: Tensor) -> Places:
        """As the class's: the start, 16, 2 and 1 frames before the section, and the section."""
        frames, twice, four = (torch.arange(count, device=between.device) for count in (SECTION, *BEHIND[1:]))
        once = 1 + sum(BEHIND[1:])
        near = torch.stack([torch.zeros_like(between), torch.full_like(between, once)])
        return (once + 1 + frames, 1), (near, 1), (once - BEHIND[1] + twice[::2], 2), (1 + four[::4], 4)

    def sections(self, frames: int) -> Sections:
        """As the class's: onward from the start."""
        return Sections(frames, onward=True)


def sections_rope(denoiser: nn.Module, rows: Rows, places: Sequence[Places], batch: Packed) -> Rope:
    """cos and sin (B, S, D) float32 of [text | section, start and behind, further behind], wait-free on the device.

    places: of each row. Text and padding are not turned. A patch has the mean of the numbers of the places in it.
    """
    device, text, whole = batch.image.device, batch.text_size, batch.text_size + batch.image_size
    tables = rope_tables(denoiser, whole + sum(BEHIND), device)
    halves: list[Tensor] = []
    for table, still in zip(tables, (1.0, 0.0), strict=True):
        turned = [
            torch.cat([_grid(denoiser, table, size, at, scale) for at, scale in parts])
            for (size,), parts in zip(rows.sizes, places, strict=True)
        ]
        filled = torch.full((len(turned), whole, table.shape[1]), still, device=device)
        for row, part in zip(filled, turned, strict=True):
            row[text : text + len(part)] = part
        halves.append(filled)
    return halves[0], halves[1]


def _grid(denoiser: nn.Module, table: Tensor, size: tuple[int, ...], frames: Tensor, scale: int) -> Tensor:
    """Numbers (frames * rows * columns, D) of patches of `scale` frames, rows and columns of tokens.

    frames: the first one of each. The last row and column stand for those that are missing in a patch.
    """
    widths = denoiser.rope.rope_dim
    along, down, across = table.split(list(widths), dim=1)
    counts = [side // PATCH for side in size[1:]]
    time = torch.stack([along[frames + step] for step in range(scale)]).mean(0)
    rows, columns = (_mean_of(part, count, scale) for part, count in zip((down, across), counts, strict=True))
    shape = (len(time), len(rows), len(columns))
    return torch.cat(
        [
            time[:, None, None].expand(*shape, -1),
            rows[None, :, None].expand(*shape, -1),
            columns[None, None].expand(*shape, -1),
        ],
        dim=-1,
    ).flatten(0, 2)


def _mean_of(table: Tensor, count: int, scale: int) -> Tensor:
    """Means (count / scale, rounded up, D) of `scale` positions each; the last of `count` stands for missing ones."""
    whole = -(-count // scale) * scale
    at = torch.arange(whole, device=table.device).clamp(max=count - 1)
    return table[at].unflatten(0, (-1, scale)).mean(1)
