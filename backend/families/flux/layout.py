r"""Reads FLUX.1's transformer as Black Forest Labs publish it (``flux1-dev.safetensors``), alone or in ComfyUI's files.

Names: black-forest-labs/flux ``src/flux/model.py`` and ``modules/layers.py``. Shift and scale of the last layer's
modulation are the other way round in diffusers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules

_LEAF = r"(?P<leaf>weight|bias)"
_DOUBLE = r"double_blocks\.(?P<n>\d+)"
_SINGLE = r"single_blocks\.(?P<n>\d+)"
_TO_DOUBLE, _TO_SINGLE = "transformer_blocks.{n}", "single_transformer_blocks.{n}"


def _embedder(theirs: str, ours: str) -> tuple[Rule, ...]:
    return (
        Rule(rf"{theirs}\.in_layer\.{_LEAF}", (f"time_text_embed.{ours}.linear_1.{{leaf}}",)),
        Rule(rf"{theirs}\.out_layer\.{_LEAF}", (f"time_text_embed.{ours}.linear_2.{{leaf}}",)),
    )


def _stream(theirs: str, norm: str, qkv: tuple[str, str, str], out: str, added: str, ff: str) -> tuple[Rule, ...]:
    """One stream (image or text) of a double block."""
    return (
        Rule(rf"{_DOUBLE}\.{theirs}_mod\.lin\.{_LEAF}", (f"{_TO_DOUBLE}.{norm}.linear.{{leaf}}",)),
        Rule(rf"{_DOUBLE}\.{theirs}_attn\.qkv\.{_LEAF}", tuple(f"{_TO_DOUBLE}.attn.{name}.{{leaf}}" for name in qkv)),
        Rule(rf"{_DOUBLE}\.{theirs}_attn\.norm\.query_norm\.scale", (f"{_TO_DOUBLE}.attn.norm_{added}q.weight",)),
        Rule(rf"{_DOUBLE}\.{theirs}_attn\.norm\.key_norm\.scale", (f"{_TO_DOUBLE}.attn.norm_{added}k.weight",)),
        Rule(rf"{_DOUBLE}\.{theirs}_attn\.proj\.{_LEAF}", (f"{_TO_DOUBLE}.attn.{out}.{{leaf}}",)),
        Rule(rf"{_DOUBLE}\.{theirs}_mlp\.0\.{_LEAF}", (f"{_TO_DOUBLE}.{ff}.net.0.proj.{{leaf}}",)),
        Rule(rf"{_DOUBLE}\.{theirs}_mlp\.2\.{_LEAF}", (f"{_TO_DOUBLE}.{ff}.net.2.{{leaf}}",)),
    )


FLUX_BFL = Layout(
    name="flux_bfl",
    title="a FLUX transformer in Black Forest Labs' own layout",
    markers=("double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight", "txt_in.weight"),
    # Chroma and others share the blocks but not this.
    absent=("distilled_guidance_layer.in_proj.weight", "double_stream_modulation_img.lin.weight"),
    prefixes=("", "model.diffusion_model.", "diffusion_model."),
    rules=(
        Rule(rf"img_in\.{_LEAF}", ("x_embedder.{leaf}",)),
        Rule(rf"txt_in\.{_LEAF}", ("context_embedder.{leaf}",)),
        *_embedder("time_in", "timestep_embedder"),
        *_embedder("vector_in", "text_embedder"),
        *_embedder("guidance_in", "guidance_embedder"),
        *_stream("img", "norm1", ("to_q", "to_k", "to_v"), "to_out.0", "", "ff"),
        *_stream(
            "txt", "norm1_context", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", "added_", "ff_context"
        ),
        Rule(rf"{_SINGLE}\.modulation\.lin\.{_LEAF}", (f"{_TO_SINGLE}.norm.linear.{{leaf}}",)),
        # query, key, value and the feed-forward's four widths in one matrix
        Rule(
            rf"{_SINGLE}\.linear1\.{_LEAF}",
            (
                f"{_TO_SINGLE}.attn.to_q.{{leaf}}",
                f"{_TO_SINGLE}.attn.to_k.{{leaf}}",
                f"{_TO_SINGLE}.attn.to_v.{{leaf}}",
                f"{_TO_SINGLE}.proj_mlp.{{leaf}}",
            ),
            ratio=(1, 1, 1, 4),
        ),
        Rule(rf"{_SINGLE}\.norm\.query_norm\.scale", (f"{_TO_SINGLE}.attn.norm_q.weight",)),
        Rule(rf"{_SINGLE}\.norm\.key_norm\.scale", (f"{_TO_SINGLE}.attn.norm_k.weight",)),
        Rule(rf"{_SINGLE}\.linear2\.{_LEAF}", (f"{_TO_SINGLE}.proj_out.{{leaf}}",)),
        Rule(rf"final_layer\.linear\.{_LEAF}", ("proj_out.{leaf}",)),
        Rule(rf"final_layer\.adaLN_modulation\.1\.{_LEAF}", ("norm_out.linear.{leaf}",), turn="swap_halves"),
    ),
)


def measure(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of FLUX's transformer."""
    width = shapes["x_embedder.weight"][0]
    head = shapes["transformer_blocks.0.attn.norm_q.weight"][0]
    return {
        "in_channels": shapes["x_embedder.weight"][1],
        "num_layers": count_modules(shapes, "transformer_blocks"),
        "num_single_layers": count_modules(shapes, "single_transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": shapes["context_embedder.weight"][1],
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
    }


XLABS_LORA = Layout(
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
