"""Reads from the shapes of a single file what its model's config says, over the config that is shipped.

Only what differs among published models of a class is read from shapes (layers, widths, inputs); the rest is the
family's. Torch-free; names are diffusers' and transformers'. What one family alone has lies in its `layout.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]
Config = dict[str, Any]


Measure = Callable[[Shapes, Mapping[str, Any]], Config]
"""Config entries that the shapes (tensor name -> shape) of a part decide, given the shipped config."""


def measured(measure: Measure | None, shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """What `measure` reads from `shapes`; {} for a part without one. ValueError when a tensor that decides is missing.

    config: the shipped one, for what shapes can't tell (head widths).
    """
    try:
        return {} if measure is None else measure(shapes, config)
    except KeyError as error:
        raise ValueError(f"lacks {error.args[0]}") from None


def count_modules(shapes: Shapes, before: str) -> int:
    """Number of the numbered modules at the path `before`."""
    numbers = {int(m[1]) for name in shapes if (m := re.match(re.escape(before) + r"\.(\d+)\.", name))}
    return max(numbers, default=-1) + 1


def clip(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of a CLIP text encoder."""
    vocabulary, width = shapes["text_model.embeddings.token_embedding.weight"]
    head = config["hidden_size"] // config["num_attention_heads"]
    values = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["text_model.encoder.layers.0.mlp.fc1.weight"][0],
        "max_position_embeddings": shapes["text_model.embeddings.position_embedding.weight"][0],
        "num_hidden_layers": count_modules(shapes, "text_model.encoder.layers"),
        "num_attention_heads": width // head,
    }
    # without a projection the pooled vector is as wide as the states
    values["projection_dim"] = shapes["text_projection.weight"][0] if "text_projection.weight" in shapes else width
    # CLIP looks for the end token by its number; in every published vocabulary the last two are start and end.
    if vocabulary != config["vocab_size"]:
        values |= {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
    return values


def clip_vision(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of a CLIP vision encoder."""
    width, channels, patch = shapes["vision_model.embeddings.patch_embedding.weight"][:3]
    places = shapes["vision_model.embeddings.position_embedding.weight"][0]
    head = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_size": width,
        "num_channels": channels,
        "patch_size": patch,
        "image_size": patch * math.isqrt(places - 1),
        "intermediate_size": shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": count_modules(shapes, "vision_model.encoder.layers"),
        "num_attention_heads": max(1, width // head),
    }


def t5(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of T5's encoder."""
    vocabulary, width = shapes["shared.weight"]
    first = "encoder.block.0.layer"
    heads = shapes[f"{first}.0.SelfAttention.relative_attention_bias.weight"][1]
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_ff": shapes[f"{first}.1.DenseReluDense.wo.weight"][1],
        "d_kv": shapes[f"{first}.0.SelfAttention.q.weight"][0] // heads,
        "num_heads": heads,
        "num_layers": count_modules(shapes, "encoder.block"),
    }


def kl_vae(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of ``AutoencoderKL``."""
    levels = count_modules(shapes, "encoder.down_blocks")
    widths = [shapes[f"encoder.down_blocks.{i}.resnets.0.conv1.weight"][0] for i in range(levels)]
    return {
        "block_out_channels": widths,
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "layers_per_block": count_modules(shapes, "encoder.down_blocks.0.resnets"),
        "latent_channels": shapes["decoder.conv_in.weight"][1],
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
    }


def wan_vae(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of ``AutoencoderKLQwenImage``, and of ``AutoencoderKLWan`` of Wan 2.1."""
    return {"base_dim": shapes["encoder.conv_in.weight"][0], "z_dim": shapes["post_quant_conv.weight"][0]}


def wan22_vae(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of ``AutoencoderKLWan`` of Wan 2.2 5B."""
    return wan_vae(shapes, config) | {"decoder_base_dim": shapes["decoder.norm_out.gamma"][0]}
