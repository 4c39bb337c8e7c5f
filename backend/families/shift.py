"""Computes how the shift of noise levels follows an image's size, by a model's own scheduler. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ShiftLine:
    """The line of a scheduler_config.json, whose names the fields have.

    mu is `base_shift` at `base_image_seq_len` image tokens and `max_shift` at `max_image_seq_len`, linear between and
    beyond (diffusers' ``calculate_shift``). The defaults are those of ``FlowMatchEulerDiscreteScheduler``: FLUX's line
    (black-forest-labs/flux, ``sampling.py``). Qwen-Image's is 0.5 at 256 to 0.9 at 8192 tokens, which musubi-tuner
    calls qwen_shift. time_shift_type: mu is the shift's logarithm (``exponential``) or the shift (``linear``).
    """

    base_shift: float = 0.5
    max_shift: float = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    time_shift_type: str = "exponential"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ShiftLine:
        """The line of a scheduler's config; what it leaves out has its default."""
        return cls(**{field.name: config[field.name] for field in fields(cls) if config.get(field.name) is not None})

    def mu(self, image_tokens: int) -> float:
        """The shift that the scheduler receives for an image of so many tokens."""
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return self.base_shift + slope * (image_tokens - self.base_image_seq_len)

    def shift(self, image_tokens: int) -> float:
        """The factor in odds by which levels of such a picture are moved towards noise."""
        mu = self.mu(image_tokens)
        return math.exp(mu) if self.time_shift_type == "exponential" else mu
