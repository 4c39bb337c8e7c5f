r"""Reads SD3's and SD3.5's transformer as Stability AI publish it (``sd3_medium.safetensors``).

Names: Stability-AI/sd3.5 ``mmditx.py``. Shift and scale of a modulation that has nothing else are the other way round
in diffusers: those of the last layer, and of the text in the last block, which goes no further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules

_LEAF = r"(?P<leaf>weight|bias)"
_BLOCK, _OURS = r"joint_blocks\.(?P<n>\d+)", "transformer_blocks.{n}"


def _attention(theirs: str, ours: str, qkv: tuple[str, str, str], out: str, added: str) -> tuple[Rule, ...]:
    return (
        Rule(rf"{_BLOCK}\.{theirs}\.qkv\.{_LEAF}", tuple(f"{_OURS}.{ours}.{name}.{{leaf}}" for name in qkv)),
        Rule(rf"{_BLOCK}\.{theirs}\.proj\.{_LEAF}", (f"{_OURS}.{ours}.{out}.{{leaf}}",)),
        Rule(rf"{_BLOCK}\.{theirs}\.ln_q\.weight", (f"{_OURS}.{ours}.norm_{added}q.weight",)),
        Rule(rf"{_BLOCK}\.{theirs}\.ln_k\.weight", (f"{_OURS}.{ours}.norm_{added}k.weight",)),
    )


def _stream(theirs: str, ending: str) -> tuple[Rule, ...]:
    """What lies around the attention of one stream of a block."""
    modulation = rf"{_BLOCK}\.{theirs}\.adaLN_modulation\.1\.{_LEAF}", (f"{_OURS}.norm1{ending}.linear.{{leaf}}",)
    turned = (Rule(*modulation, turn="swap_halves", last="n"),) if ending else ()
    return (
        *turned,
        Rule(*modulation),
        Rule(rf"{_BLOCK}\.{theirs}\.mlp\.fc1\.{_LEAF}", (f"{_OURS}.ff{ending}.net.0.proj.{{leaf}}",)),
        Rule(rf"{_BLOCK}\.{theirs}\.mlp\.fc2\.{_LEAF}", (f"{_OURS}.ff{ending}.net.2.{{leaf}}",)),
    )


def _embedder(theirs: str, ours: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(rf"{theirs}\.mlp\.{number}\.{_LEAF}", (f"time_text_embed.{ours}.linear_{at}.{{leaf}}",))
        for at, number in enumerate((0, 2), start=1)
    )


_QKV = ("to_q", "to_k", "to_v")

SD3_MMDIT = Layout(
    name="sd3_mmdit",
    title="an SD3 transformer in Stability AI's own layout",
    markers=("joint_blocks.0.x_block.attn.qkv.weight", "x_embedder.proj.weight", "pos_embed"),
    prefixes=("model.diffusion_model.", "", "diffusion_model."),
    rules=(
        Rule("pos_embed", ("pos_embed.pos_embed",)),
        Rule(rf"x_embedder\.proj\.{_LEAF}", ("pos_embed.proj.{leaf}",)),
        Rule(rf"context_embedder\.{_LEAF}", ("context_embedder.{leaf}",)),
        *_embedder("t_embedder", "timestep_embedder"),
        *_embedder("y_embedder", "text_embedder"),
        *_attention(r"x_block\.attn", "attn", _QKV, "to_out.0", ""),
        *_attention(r"x_block\.attn2", "attn2", _QKV, "to_out.0", ""),
        *_attention(r"context_block\.attn", "attn", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", "added_"),
        *_stream("x_block", ""),
        *_stream("context_block", "_context"),
        Rule(rf"final_layer\.linear\.{_LEAF}", ("proj_out.{leaf}",)),
        Rule(rf"final_layer\.adaLN_modulation\.1\.{_LEAF}", ("norm_out.linear.{leaf}",), turn="swap_halves"),
    ),
)


def measure(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of SD3's transformer."""
    width, channels, patch, _ = shapes["pos_embed.proj.weight"]
    layers = count_modules(shapes, "transformer_blocks")
    norm = shapes.get("transformer_blocks.0.attn.norm_q.weight")
    head = norm[0] if norm else config["attention_head_dim"]
    return {
        "in_channels": channels,
        "out_channels": shapes["proj_out.weight"][0] // patch**2,
        "patch_size": patch,
        "num_layers": layers,
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": shapes["context_embedder.weight"][1],
        "caption_projection_dim": shapes["context_embedder.weight"][0],
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        "pos_embed_max_size": math.isqrt(shapes["pos_embed.pos_embed"][1]),
        "dual_attention_layers": [n for n in range(layers) if f"transformer_blocks.{n}.attn2.to_q.weight" in shapes],
        "qk_norm": "rms_norm" if norm else None,
    }
