"""Layouts of single files, as data: what a project calls the tensors of a part, and what diffusers calls them."""

from __future__ import annotations

from backend.models.layouts.anima import ANIMA_ADAPTER, ANIMA_DIT, QWEN3
from backend.models.layouts.autoencoder import LDM_VAE
from backend.models.layouts.flux import FLUX_BFL
from backend.models.layouts.qwen import QWEN_DIT, QWEN_VL, WAN_VAE
from backend.models.layouts.rules import Layout, Piece, Rule, UnknownNames
from backend.models.layouts.sd3 import SD3_MMDIT
from backend.models.layouts.text import HF_CLIP, HF_CLIP_BARE, HF_CLIP_G, OPEN_CLIP, T5
from backend.models.layouts.unet import LDM_UNET

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        FLUX_BFL,
        LDM_UNET,
        LDM_VAE,
        HF_CLIP,
        HF_CLIP_BARE,
        HF_CLIP_G,
        OPEN_CLIP,
        T5,
        QWEN_DIT,
        QWEN_VL,
        WAN_VAE,
        ANIMA_DIT,
        ANIMA_ADAPTER,
        QWEN3,
        SD3_MMDIT,
    )
}

__all__ = ["LAYOUTS", "Layout", "Piece", "Rule", "UnknownNames"]
