"""The FLUX transformer, from a folder in diffusers layout on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import FluxTransformer2DModel

from backend.models.flux import facts
from backend.models.local import load_part


def load_denoiser(base: Path, variant: str | None, dtype: torch.dtype, device: torch.device) -> FluxTransformer2DModel:
    """The transformer of the model at `base`, frozen, in train mode, all weights in `dtype` on `device`.

    variant: of the weight files (``fp16`` for ``diffusion_pytorch_model.fp16.safetensors``); a part without files of
    that variant is read from its plain ones. Refused when files are missing or broken, all of them named.
    """
    denoiser = load_part(FluxTransformer2DModel, base, facts.FACTS.part("transformer"), variant, dtype)
    return denoiser.to(device).requires_grad_(False).train()
