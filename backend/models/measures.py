"""What the shapes of a single file say about its model: configs by class, over the one that is shipped.

Only what differs among published models of a class is read from shapes (layers, widths, inputs); the rest is the
family's. Torch-free; names are diffusers' and transformers'.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]
Config = dict[str, Any]


def of(class_name: str, shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config entries of the class `class_name` that `shapes` (tensor name -> shape) decide; {} for an unknown class.

    config: the shipped one, for what shapes can't tell (head widths). ValueError when a tensor that decides is missing.
    """
    measure = _MEASURES.get(class_name)
    try:
        return {} if measure is None else measure(shapes, config)
    except KeyError as error:
        raise ValueError(f"lacks {error.args[0]}") from None


def _count(shapes: Shapes, before: str) -> int:
    """How many numbered modules lie at `before`."""
    numbers = {int(m[1]) for name in shapes if (m := re.match(re.escape(before) + r"\.(\d+)\.", name))}
    return max(numbers, default=-1) + 1


def _flux(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    width = shapes["x_embedder.weight"][0]
    head = shapes["transformer_blocks.0.attn.norm_q.weight"][0]
    return {
        "in_channels": shapes["x_embedder.weight"][1],
        "num_layers": _count(shapes, "transformer_blocks"),
        "num_single_layers": _count(shapes, "single_transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": shapes["context_embedder.weight"][1],
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
    }


def _clip(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    vocabulary, width = shapes["text_model.embeddings.token_embedding.weight"]
    head = config["hidden_size"] // config["num_attention_heads"]
    found = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["text_model.encoder.layers.0.mlp.fc1.weight"][0],
        "max_position_embeddings": shapes["text_model.embeddings.position_embedding.weight"][0],
        "num_hidden_layers": _count(shapes, "text_model.encoder.layers"),
        "num_attention_heads": width // head,
    }
    # without a projection the pooled vector is as wide as the states
    found["projection_dim"] = shapes["text_projection.weight"][0] if "text_projection.weight" in shapes else width
    # CLIP looks for the end token by its number; in every published vocabulary the last two are start and end.
    if vocabulary != config["vocab_size"]:
        found |= {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
    return found


def _t5(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    vocabulary, width = shapes["shared.weight"]
    first = "encoder.block.0.layer"
    heads = shapes[f"{first}.0.SelfAttention.relative_attention_bias.weight"][1]
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_ff": shapes[f"{first}.1.DenseReluDense.wo.weight"][1],
        "d_kv": shapes[f"{first}.0.SelfAttention.q.weight"][0] // heads,
        "num_heads": heads,
        "num_layers": _count(shapes, "encoder.block"),
    }


def _vae(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    levels = _count(shapes, "encoder.down_blocks")
    widths = [shapes[f"encoder.down_blocks.{i}.resnets.0.conv1.weight"][0] for i in range(levels)]
    return {
        "block_out_channels": widths,
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "layers_per_block": _count(shapes, "encoder.down_blocks.0.resnets"),
        "latent_channels": shapes["decoder.conv_in.weight"][1],
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
    }


def _unet(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    levels = _count(shapes, "down_blocks")
    found: Config = {
        "in_channels": shapes["conv_in.weight"][1],
        "block_out_channels": [shapes[f"down_blocks.{i}.resnets.0.conv1.weight"][0] for i in range(levels)],
        "cross_attention_dim": shapes["mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight"][1],
        "use_linear_projection": len(shapes["mid_block.attentions.0.proj_in.weight"]) == 2,
    }
    if "add_embedding.linear_1.weight" in shapes:
        found["projection_class_embeddings_input_dim"] = shapes["add_embedding.linear_1.weight"][1]
    heads = config.get("attention_head_dim")
    if isinstance(heads, list):
        # The field means heads a level; SDXL's are all 64 wide.
        found["attention_head_dim"] = [max(1, width // 64) for width in found["block_out_channels"]]
        depths = [_count(shapes, f"down_blocks.{i}.attentions.0.transformer_blocks") for i in range(levels)]
        found["transformer_layers_per_block"] = [max(1, depth) for depth in depths]
    return found


def _cosmos(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    width, inputs = shapes["patch_embed.proj.weight"]
    first = "transformer_blocks.0"
    head = shapes[f"{first}.attn1.norm_q.weight"][0]
    # 4 cells a token, of the latent and one channel more, the padding mask
    channels = shapes["proj_out.weight"][0] // 4
    return {
        "in_channels": channels,
        "out_channels": channels,
        "concat_padding_mask": inputs == 4 * (channels + 1),
        "num_layers": _count(shapes, "transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "text_embed_dim": shapes[f"{first}.attn2.to_k.weight"][1],
        "adaln_lora_dim": shapes[f"{first}.norm1.linear_1.weight"][0],
        "mlp_ratio": shapes[f"{first}.ff.net.0.proj.weight"][0] / width,
    }


def _anima_conditioner(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    vocabulary, target = shapes["embed.weight"]
    width, source = shapes["blocks.0.cross_attn.k_proj.weight"]
    return {
        "target_vocab_size": vocabulary,
        "target_dim": target,
        "model_dim": width,
        "source_dim": source,
        "num_layers": _count(shapes, "blocks"),
        "num_attention_heads": width // shapes["blocks.0.cross_attn.q_norm.weight"][0],
        "mlp_ratio": shapes["blocks.0.mlp.0.weight"][0] / width,
    }


def _qwen3(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    vocabulary, width = shapes["embed_tokens.weight"]
    first = "layers.0.self_attn"
    head = shapes[f"{first}.q_norm.weight"][0]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": _count(shapes, "layers"),
        "head_dim": head,
        "num_attention_heads": shapes[f"{first}.q_proj.weight"][0] // head,
        "num_key_value_heads": shapes[f"{first}.k_proj.weight"][0] // head,
    }


def _qwen_image(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    width, channels = shapes["img_in.weight"]
    head = shapes["transformer_blocks.0.attn.norm_q.weight"][0]
    # The shipped proportions of frame, rows and columns, in even numbers.
    sides = 2 * (7 * head // 32)
    return {
        "in_channels": channels,
        "out_channels": shapes["proj_out.weight"][0] // config["patch_size"] ** 2,
        "num_layers": _count(shapes, "transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": shapes["txt_in.weight"][1],
        "axes_dims_rope": [head - 2 * sides, sides, sides],
    }


def _sd3(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    width, channels, patch, _ = shapes["pos_embed.proj.weight"]
    layers = _count(shapes, "transformer_blocks")
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


def _qwen_vl(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    vocabulary, width = shapes["model.embed_tokens.weight"]
    first = "model.layers.0.self_attn"
    old, vision = dict(config["text_config"]), dict(config["vision_config"])
    head = old["hidden_size"] // old["num_attention_heads"]
    text = old | {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["model.layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": _count(shapes, "model.layers"),
        "num_attention_heads": shapes[f"{first}.q_proj.weight"][0] // head,
        "num_key_value_heads": shapes[f"{first}.k_proj.weight"][0] // head,
    }
    vision |= {
        "depth": _count(shapes, "visual.blocks"),
        "hidden_size": shapes["visual.patch_embed.proj.weight"][0],
        "intermediate_size": shapes["visual.blocks.0.mlp.gate_proj.weight"][0],
        "out_hidden_size": width,
    }
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": "lm_head.weight" not in shapes}


def _qwen_vae(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    return {"base_dim": shapes["encoder.conv_in.weight"][0], "z_dim": shapes["post_quant_conv.weight"][0]}


_MEASURES: dict[str, Callable[[Shapes, Mapping[str, Any]], Config]] = {
    "FluxTransformer2DModel": _flux,
    "CLIPTextModel": _clip,
    "CLIPTextModelWithProjection": _clip,
    "T5EncoderModel": _t5,
    "AutoencoderKL": _vae,
    "UNet2DConditionModel": _unet,
    "CosmosTransformer3DModel": _cosmos,
    "AnimaTextConditioner": _anima_conditioner,
    "QwenImageTransformer2DModel": _qwen_image,
    "SD3Transformer2DModel": _sd3,
    "Qwen2_5_VLForConditionalGeneration": _qwen_vl,
    "Qwen3Model": _qwen3,
    "AutoencoderKLQwenImage": _qwen_vae,
}
