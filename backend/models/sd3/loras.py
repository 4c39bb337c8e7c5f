"""What LoRA files of SD3 say about themselves, and where other programs load them, as torch-free data."""

from __future__ import annotations

from pathlib import Path

from backend.models.base import Base
from backend.models.sd3.facts import FACTS

LORA_LAYERS: tuple[str, ...] = (
    r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)",
    r"transformer_blocks\.\d+\.attn2\.(to_q|to_k|to_v|to_out\.0)",
    r"transformer_blocks\.\d+\.(norm1|norm1_context)\.linear",
    r"transformer_blocks\.\d+\.(ff|ff_context)\.net\.(0\.proj|2)",
    r"(context_embedder|proj_out|norm_out\.linear)",
    r"time_text_embed\.(timestep_embedder|text_embedder)\.linear_[12]",
)
"""Module paths (regular expressions for the whole path) that ComfyUI's key map of SD3 (``mmdit_to_diffusers`` in
comfy/utils.py) takes behind the prefix ``transformer.``, and under their native names behind ``lora_unet_``."""

BASE_MODEL_VERSION = "sd3"
"""``ss_base_model_version`` of all models of the family."""


def architecture(base: Base | Path) -> str:
    """``modelspec.architecture`` of a LoRA for the model, as sd-scripts spells it: told by norms and second attention.

    sd-scripts writes ``stable-diffusion-3`` and ``-medium``, ``-5-medium`` or ``-5-large`` behind it.
    """
    try:
        net = Base.at(base).config(FACTS.part("transformer"))
    except (OSError, ValueError):
        return "stable-diffusion-3/lora"
    if not net.get("qk_norm"):
        return "stable-diffusion-3-medium/lora"
    return f"stable-diffusion-3-5-{'medium' if net.get('dual_attention_layers') else 'large'}/lora"
