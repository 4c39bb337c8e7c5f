"""Computes Wan 2.2 5B from a picture: the clip's first latent frame is the picture's own, at a timestep of zero.

As diffusers' ``WanImageToVideoPipeline`` with ``expand_timesteps`` calls the transformer (tests hold it to that): every
token has a timestep. The first frame is known: what is predicted for it is the way to it, so that it adds nothing to
the loss, and samples end at it. A picture alone, a clip of one frame, has nothing to start from: it is trained as in
text to video.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from backend.models.common.transformer import Mark, Rows, Step
from backend.models.wan.autoencoder import WanVaeStack
from backend.models.wan.denoiser import Wan, embedded_times
from backend.shapes.shape_runtime import ShapeRuntime

_LEAST = 1e-6
"""Of a noise level, to divide by."""


class FirstFrameStack(WanVaeStack):
    """The autoencoder, whose first latent frame is that of the first picture alone."""

    def encode_row(self, pixels: Tensor) -> dict[str, Tensor]:
        """As the class's, with the latent that the clip starts from."""
        row = super().encode_row(pixels)
        latent = row["latent"]
        return row if latent.shape[1] == 1 else row | {"start": latent[:, :1].clone()}

    def encode_start(self, picture: Tensor, frames: int) -> dict[str, Tensor]:
        """What a clip of `frames` that starts from `picture` (3, H, W) in [-1, 1] is told: ``start`` (C, 1, h, w)."""
        return {"start": self.encode(picture[None])[0]} if frames > 1 else {}


class WanFirstFrame(Wan):
    """The code of Wan 2.2 5B from a picture. A step's temb has a time and a modulation for each token."""

    vae_stack = FirstFrameStack

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Sequence[Tensor],
        level: Tensor,
        text: Sequence[Mapping[str, Tensor]],
        guidance: float | None,
        shapes: ShapeRuntime,
    ) -> list[Tensor]:
        """As the class's: the way from the first noisy frame to the start, and the velocity of the others."""
        starts = [row["start"].to(latent) if "start" in row else None for latent, row in zip(noisy, text, strict=True)]
        shown = [
            latent if start is None else torch.cat([start, latent[:, 1:]], dim=1)
            for latent, start in zip(noisy, starts, strict=True)
        ]
        # `start` has done its part: behind the channels it stands in other models
        plain = [{name: tensor for name, tensor in row.items() if name != "start"} for row in text]
        marked = [
            row | {"from_start": torch.tensor(start is not None)} for row, start in zip(plain, starts, strict=True)
        ]
        made = super().predict(denoiser, shown, level, marked, guidance, shapes)
        levels = level.float().clamp(min=_LEAST)
        return [
            velocity
            if start is None
            else torch.cat([(latent[:, :1].float() - start.float()) / now, velocity[:, 1:]], dim=1)
            for velocity, latent, start, now in zip(made, noisy, starts, levels, strict=True)
        ]

    def times(self, denoiser: nn.Module, rows: Rows, tokens: int) -> tuple[Tensor, Tensor]:
        """The embedded timesteps (B, S, D) and their modulation (B, S, 6, D) of each token."""
        count = len(rows.sizes)
        clean = torch.zeros_like(rows.sigma)
        times, parts = embedded_times(denoiser, torch.cat([rows.sigma, clean]).float() * 1000, rows.dtype)
        at = torch.arange(count, device=rows.sigma.device)[:, None].repeat(1, tokens)
        for number, ((size,), row) in enumerate(zip(rows.sizes, rows.text, strict=True)):
            if row["from_start"]:
                at[number, : size[1] * size[2] // 4] += count
        return times[at], parts[at]

    def mark(self, mark: Mark, streams: Sequence[Tensor], step: Step) -> None:
        """As the class's, and of what each token has of its time."""
        times = step.temb if isinstance(step.temb, tuple) else (step.temb,)
        super().mark(mark, streams, step._replace(rope=(*step.rope, *times)))
