"""Names what the caches need of a family's VAE and text encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor


class Vae(Protocol):
    """What is needed of a family's VaeStack."""

    @property
    def dtype(self) -> torch.dtype: ...
    def encode_row(self, pixels: Tensor) -> dict[str, Tensor]: ...
    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Vae: ...


class Encoders(Protocol):
    """What is needed of a family's TextStack."""

    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]: ...


class SeeingEncoders(Encoders, Protocol):
    """The same of a family whose text encoder reads a caption together with its control pictures."""

    def encode_with_pictures(
        self, caption: str, pictures: Sequence[Image.Image], text_length: int
    ) -> dict[str, Tensor]: ...
