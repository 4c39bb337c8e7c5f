"""Names what SDXL's code is made of."""

from __future__ import annotations

from backend.models.sdxl.encoders import TextStack, conditions
from backend.models.unet.denoiser import Unet


class Sdxl(Unet):
    """The code of SDXL."""

    text_stack = TextStack
    conditions = staticmethod(conditions)
