"""What LoRA files of FLUX say about themselves, and where other programs load them, as torch-free data."""

from __future__ import annotations

from pathlib import Path

from backend.models.base import Base
from backend.models.flux.facts import FACTS
from backend.models.layouts.rules import Layout, Rule

LORA_LAYERS: tuple[str, ...] = (
    r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v|add_q_proj|add_k_proj|add_v_proj|to_out\.0|to_add_out)",
    r"transformer_blocks\.\d+\.(norm1|norm1_context)\.linear",
    r"transformer_blocks\.\d+\.(ff|ff_context)\.net\.(0\.proj|2)",
    r"single_transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v)",
    r"single_transformer_blocks\.\d+\.(proj_mlp|proj_out)",
    r"single_transformer_blocks\.\d+\.norm\.linear",
    r"(x_embedder|context_embedder|proj_out|norm_out\.linear)",
    r"time_text_embed\.(timestep_embedder|guidance_embedder|text_embedder)\.(linear_1|linear_2)",
)
"""Module paths (regular expressions for the whole path) that ComfyUI's key map of FLUX (``flux_to_diffusers`` in
comfy/utils.py) takes behind the prefix ``transformer.``; diffusers takes every linear layer."""

LORA_ALSO = Layout(
    name="flux_xlabs",
    title="a FLUX LoRA of XLabs",
    markers=(),
    prefixes=(),
    rules=(
        *(
            Rule(
                rf"double_blocks\.(?P<n>\d+)\.processor\.qkv_lora{number}\.weight",
                tuple(f"transformer_blocks.{{n}}.attn.{name}.weight" for name in qkv),
            )
            for number, qkv in ((1, ("to_q", "to_k", "to_v")), (2, ("add_q_proj", "add_k_proj", "add_v_proj")))
        ),
        *(
            Rule(
                rf"double_blocks\.(?P<n>\d+)\.processor\.proj_lora{number}\.weight",
                (f"transformer_blocks.{{n}}.attn.{name}.weight",),
            )
            for number, name in ((1, "to_out.0"), (2, "to_add_out"))
        ),
        Rule(
            r"single_blocks\.(?P<n>\d+)\.processor\.qkv\.weight",
            tuple(f"single_transformer_blocks.{{n}}.attn.{name}.weight" for name in ("to_q", "to_k", "to_v")),
        ),
        Rule(
            r"single_blocks\.(?P<n>\d+)\.processor\.proj\.weight",
            ("single_transformer_blocks.{n}.proj_out.weight",),
        ),
    ),
)
"""Layers by the attention processors of XLabs-AI/x-flux, without ``_lora`` where no number follows it, as the keys are
cut. Of a single block it has query, key and value without the feed-forward beside them."""

BASE_MODEL_VERSION = "flux1"
"""``ss_base_model_version``, as sd-scripts writes it for FLUX.1."""


def architecture(base: Base | Path) -> str:
    """``modelspec.architecture`` of a LoRA for the model: told by its guidance embedding, dev or schnell."""
    try:
        guided = Base.at(base).config(FACTS.part("transformer")).get("guidance_embeds")
    except (OSError, ValueError):
        return "flux-1/lora"
    return "flux-1-dev/lora" if guided else "flux-1-schnell/lora"
