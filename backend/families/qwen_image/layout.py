"""Names and shapes of Qwen-Image's transformer and text encoder as ComfyUI publishes them in single files.

Both keep the names of their first publication (diffusers', and Hugging Face's before transformers moved the language
model); a prefix may come before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules

QWEN_DIT = Layout(
    name="qwen_dit",
    title="a Qwen-Image transformer",
    markers=("transformer_blocks.0.attn.add_q_proj.weight", "txt_norm.weight", "img_in.weight"),
    prefixes=("", "model.diffusion_model.", "diffusion_model."),
    # Qwen-Image-Edit-2511's, by which ComfyUI tells it from 2509
    marks=(("__index_timestep_zero__", "zero_cond_t"),),
    rules=(
        Rule(
            r"(?P<name>(?:transformer_blocks|img_in|txt_in|txt_norm|time_text_embed|norm_out|proj_out)\..+)",
            ("{name}",),
        ),
    ),
)

QWEN_VL = Layout(
    name="qwen_vl",
    title="a Qwen2.5-VL language model",
    markers=("model.layers.0.self_attn.q_proj.weight", "visual.patch_embed.proj.weight"),
    prefixes=("", "text_encoders.qwen25_7b.transformer."),
    rules=(Rule(r"(?P<name>(?:model|visual)\..+|lm_head\.weight)", ("{name}",)),),
)


def measure(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of Qwen-Image's transformer."""
    width, channels = shapes["img_in.weight"]
    head = shapes["transformer_blocks.0.attn.norm_q.weight"][0]
    # The shipped proportions of frame, rows and columns, in even numbers.
    sides = 2 * (7 * head // 32)
    return {
        "in_channels": channels,
        "out_channels": shapes["proj_out.weight"][0] // config["patch_size"] ** 2,
        "num_layers": count_modules(shapes, "transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": shapes["txt_in.weight"][1],
        "axes_dims_rope": [head - 2 * sides, sides, sides],
    }


def measure_qwen_vl(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of Qwen2.5-VL."""
    vocabulary, width = shapes["model.embed_tokens.weight"]
    first = "model.layers.0.self_attn"
    old, vision = dict(config["text_config"]), dict(config["vision_config"])
    head = old["hidden_size"] // old["num_attention_heads"]
    text = old | {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["model.layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": count_modules(shapes, "model.layers"),
        "num_attention_heads": shapes[f"{first}.q_proj.weight"][0] // head,
        "num_key_value_heads": shapes[f"{first}.k_proj.weight"][0] // head,
    }
    vision |= {
        "depth": count_modules(shapes, "visual.blocks"),
        "hidden_size": shapes["visual.patch_embed.proj.weight"][0],
        "intermediate_size": shapes["visual.blocks.0.mlp.gate_proj.weight"][0],
        "out_hidden_size": width,
    }
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": "lm_head.weight" not in shapes}
