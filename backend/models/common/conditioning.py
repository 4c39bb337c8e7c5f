"""What a denoiser is told beside its noisy latents: encoded captions out of the cache, or captions encoded now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.memory.devices import text_to_device

Told = Mapping[str, Tensor | str]
"""What a row is told, tensors by name. ``caption`` takes the place of the encoded text where encoders are trained."""

CAPTION = "caption"

CONTROLS = ("control", "control_2", "control_3")
"""The latents (C, h, w) of the pictures to start from, in their order."""

Encode = Callable[[Sequence[str]], list[dict[str, Tensor]]]
"""Captions -> what the text encoders give for each, on the device; with gradients where these are made."""


def with_controls(told: Told, latents: Sequence[Tensor]) -> Told:
    """`told` with the `latents` of its control pictures."""
    return {**told, **dict(zip(CONTROLS[: len(latents)], latents, strict=True))}


def controls_in(told: Mapping[str, Tensor]) -> list[Tensor]:
    """The latents of a row's control pictures, in their order."""
    return [told[name] for name in CONTROLS if name in told]


@dataclass(frozen=True)
class Teller:
    """Brings what rows are told to the device. encode: what captions are encoded with; None where all are cached."""

    device: torch.device
    encode: Encode | None = None

    def __call__(self, rows: Sequence[Told]) -> list[dict[str, Tensor]]:
        """The tensors of each row on the device, all captions of the batch encoded at once."""
        captions = [str(row[CAPTION]) for row in rows if CAPTION in row]
        encoded = iter(self.encode(captions)) if captions and self.encode is not None else iter(())
        told = []
        for row in rows:
            tensors = {name: value for name, value in row.items() if isinstance(value, Tensor)}
            said = next(encoded) if CAPTION in row else {}
            told.append({**said, **text_to_device(tensors, self.device)})
        return told
