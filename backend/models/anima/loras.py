"""What LoRA files of Anima say about themselves, and where other programs load them, as torch-free data."""

from __future__ import annotations

from pathlib import Path

from backend.models.base import Base

LORA_LAYERS: tuple[str, ...] = (
    r"transformer_blocks\.\d+\.attn[12]\.(to_q|to_k|to_v|to_out\.0)",
    r"transformer_blocks\.\d+\.ff\.net\.(0\.proj|2)",
    r"transformer_blocks\.\d+\.norm[123]\.linear_[12]",
    r"(patch_embed\.proj|proj_out|norm_out\.linear_[12]|time_embed\.t_embedder\.linear_[12])",
)
"""Module paths (regular expressions for the whole path) that ComfyUI's key map takes, under the published names of the
weights (``blocks.0.self_attn.q_proj``); diffusers' converter takes the same."""

BASE_MODEL_VERSION = "anima"
"""``ss_base_model_version``, as sd-scripts writes it for Anima."""


def architecture(base: Base | Path) -> str:
    """``modelspec.architecture`` of a LoRA for the model, in the spelling that sd-scripts began."""
    return "anima-preview/lora"
