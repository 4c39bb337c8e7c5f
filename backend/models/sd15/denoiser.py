"""Names what Stable Diffusion 1.5's code is made of."""

from __future__ import annotations

from backend.models.sd15.encoders import TextStack
from backend.models.unet.denoiser import Unet


class Sd15(Unet):
    """The code of Stable Diffusion 1.5."""

    text_stack = TextStack
