"""Brings what a denoiser reads besides its noisy latents to the device: encoded captions and control pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.memory.devices import text_to_device

Conditioning = Mapping[str, Tensor | str]
"""Of one row, tensors by name. ``caption`` takes the place of the encoded text where encoders are trained."""

CAPTION = "caption"

CONTROLS = ("control", "control_2", "control_3")
"""The latents (C, h, w) of the pictures to start from, in their order."""

Encode = Callable[[Sequence[str]], list[dict[str, Tensor]]]
"""Captions -> what the text encoders give for each, on the device; with gradients where these are made."""


def with_controls(conditioning: Conditioning, latents: Sequence[Tensor]) -> Conditioning:
    """`conditioning` with the `latents` of its control pictures."""
    return {**conditioning, **dict(zip(CONTROLS[: len(latents)], latents, strict=True))}


def controls_in(conditioning: Mapping[str, Tensor]) -> list[Tensor]:
    """The latents of a row's control pictures, in their order."""
    return [conditioning[name] for name in CONTROLS if name in conditioning]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConditioningEncoder:
    """Brings the conditioning of rows to the device, and encodes captions that are not in the cache."""

    device: torch.device
    encode: Encode | None = None
    """What captions are encoded with; None where all are cached."""

    def __call__(self, rows: Sequence[Conditioning]) -> list[dict[str, Tensor]]:
        """The tensors of each row on the device, all captions of the batch encoded at once."""
        captions = [str(row[CAPTION]) for row in rows if CAPTION in row]
        encoded = iter(self.encode(captions)) if captions and self.encode is not None else iter(())
        on_device = []
        for row in rows:
            tensors = {name: value for name, value in row.items() if isinstance(value, Tensor)}
            text = next(encoded) if CAPTION in row else {}
            on_device.append({**text, **text_to_device(tensors, self.device)})
        return on_device
