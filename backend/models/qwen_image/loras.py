"""What LoRA files of Qwen-Image say about themselves, and where other programs load them, as torch-free data."""

from __future__ import annotations

from pathlib import Path

from backend.models.base import Base
from backend.models.qwen_image.edit_plus import FACTS

LORA_LAYERS: tuple[str, ...] = (
    r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)",
    r"transformer_blocks\.\d+\.(img|txt)_mlp\.net\.(0\.proj|2)",
    r"transformer_blocks\.\d+\.(img|txt)_mod\.1",
    r"(img_in|txt_in|proj_out|norm_out\.linear|time_text_embed\.timestep_embedder\.linear_[12])",
)
"""Module paths (regular expressions for the whole path) that ComfyUI's key map takes: its Qwen-Image keeps diffusers'
names."""

BASE_MODEL_VERSION = "qwen_image"
"""``ss_base_model_version``, as musubi-tuner writes it for Qwen-Image."""


EDIT_MODEL_VERSION = "qwen_image_edit"
"""The same for Qwen-Image-Edit."""


def architecture(base: Base | Path) -> str:
    """``modelspec.architecture`` of a LoRA for the model, in the spelling that musubi-tuner began."""
    return "Qwen-Image/lora"


def edit_architecture(base: Base | Path) -> str:
    """The same of a LoRA for Qwen-Image-Edit."""
    return "Qwen-Image-Edit/lora"


def edit_plus_architecture(base: Base | Path) -> str:
    """The same of a LoRA for Qwen-Image-Edit-2509, which is called Plus, or -2511; told by what its file says."""
    try:
        net = Base.at(base).config(FACTS.part("transformer"))
    except (OSError, ValueError):
        return edit_architecture(base)
    return f"Qwen-Image-Edit-{'2511' if net.get('zero_cond_t') else 'Plus'}/lora"
