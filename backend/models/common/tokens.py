"""Packs latents into tokens of 2x2 cells, and computes the noise levels of samples of models trained by flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from backend.families.shift import ShiftLine

PATCH = 2
"""Side of a token in latent cells."""


def pack_latent(latent: Tensor) -> Tensor:
    """(C, h, w) -> (h/2 * w/2, 4C), the channel first within a token: `FluxPipeline._pack_latents`."""
    channels, height, width = latent.shape
    cells = latent.reshape(channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return cells.permute(1, 3, 0, 2, 4).reshape(-1, channels * PATCH * PATCH)


def unpack_latent(tokens: Tensor, height: int, width: int) -> Tensor:
    """Inverse of `pack_latent`: (h/2 * w/2, 4C) -> (C, h, w)."""
    cells = tokens.reshape(height // PATCH, width // PATCH, -1, PATCH, PATCH)
    return cells.permute(2, 0, 3, 1, 4).reshape(-1, height, width)


def unpack_channels_last(tokens: Tensor, height: int, width: int) -> Tensor:
    """(h/2 * w/2, 4C) -> (C, h, w), of models whose last layer has the channel last within a token (SD3, Cosmos)."""
    cells = tokens.reshape(height // PATCH, width // PATCH, PATCH, PATCH, -1)
    return cells.permute(4, 0, 2, 1, 3).reshape(-1, height, width)


def pack_clip(latent: Tensor) -> Tensor:
    """(C, f, h, w) -> (f * h/2 * w/2, 4C), frame by frame as `pack_latent`: what a convolution of 1x2x2 cells reads."""
    channels, frames, height, width = latent.shape
    cells = latent.reshape(channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    return cells.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * PATCH * PATCH)


def unpack_clip(tokens: Tensor, frames: int, height: int, width: int, *, channels_last: bool = False) -> Tensor:
    """Inverse of `pack_clip`: (f * h/2 * w/2, 4C) -> (C, f, h, w); channels_last: within a token."""
    sides = (frames, height // PATCH, width // PATCH)
    if channels_last:
        cells = tokens.reshape(*sides, PATCH, PATCH, -1).permute(5, 0, 1, 3, 2, 4)
    else:
        cells = tokens.reshape(*sides, -1, PATCH, PATCH).permute(3, 0, 1, 4, 2, 5)
    return cells.reshape(-1, frames, height, width)


def flow_sigmas(steps: int, image_tokens: int, config: Mapping[str, Any], *, own_range: bool = False) -> list[float]:
    """Noise levels of `steps` sampling steps, `steps` + 1 of them, descending to 0, by a scheduler's `config`.

    As pipelines call ``FlowMatchEulerDiscreteScheduler``: sigmas from 1 to 1/steps, shifted by the image's tokens where
    the config says ``use_dynamic_shifting``, else by its fixed shift. own_range: the scheduler spaces them itself, over
    the range that it was trained with.
    """
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(dict(config))
    mu = ShiftLine.of(config).mu(image_tokens) if scheduler.config.use_dynamic_shifting else None
    sigmas = torch.linspace(1.0, 1.0 / steps, steps, dtype=torch.float64).tolist()
    timesteps = {"num_inference_steps": steps} if own_range else {"sigmas": sigmas}
    scheduler.set_timesteps(**timesteps, mu=mu)
    return scheduler.sigmas.tolist()
