"""Reads Anima's single files: the transformer in Cosmos Predict2's names with its text conditioner, and Qwen3.

Names: nvidia-cosmos/cosmos-predict2 ``cosmos_predict2/models/text2image_dit.py``; the conditioner keeps, behind
``llm_adapter.``, the names that diffusers has too. Published with ``net.`` or ``model.diffusion_model.`` before all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules

_ROOTS = ("net.", "model.diffusion_model.", "diffusion_model.", "")

_ATTENTION = {
    "q_proj": "to_q",
    "k_proj": "to_k",
    "v_proj": "to_v",
    "output_proj": "to_out.0",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
_BLOCK, _OURS = r"blocks\.(?P<n>\d+)", "transformer_blocks.{n}"


def _blocks() -> list[Rule]:
    rules = []
    for number, part in enumerate(("self_attn", "cross_attn", "mlp"), start=1):
        rules += [
            Rule(
                rf"{_BLOCK}\.adaln_modulation_{part}\.{layer}\.weight",
                (f"{_OURS}.norm{number}.linear_{layer}.weight",),
            )
            for layer in (1, 2)
        ]
    for number, part in enumerate(("self_attn", "cross_attn"), start=1):
        rules += [
            Rule(rf"{_BLOCK}\.{part}\.{theirs}\.weight", (f"{_OURS}.attn{number}.{ours}.weight",))
            for theirs, ours in _ATTENTION.items()
        ]
    feed_forward = (("layer1", "net.0.proj"), ("layer2", "net.2"))
    return rules + [
        Rule(rf"{_BLOCK}\.mlp\.{theirs}\.weight", (f"{_OURS}.ff.{ours}.weight",)) for theirs, ours in feed_forward
    ]


ANIMA_DIT = Layout(
    name="anima_dit",
    title="an Anima transformer",
    # The conditioner tells Anima's file from other Cosmos models.
    markers=(
        "blocks.0.self_attn.q_proj.weight",
        "x_embedder.proj.1.weight",
        "llm_adapter.blocks.0.cross_attn.q_proj.weight",
    ),
    prefixes=_ROOTS,
    # Tables that are computed again, counters of the training run, and the part below.
    ignored=(r"llm_adapter\..+", r"pos_embedder\..+", r"accum_.+", r"(.+\.)?_extra_state"),
    rules=(
        *_blocks(),
        Rule(r"x_embedder\.proj\.1\.weight", ("patch_embed.proj.weight",)),
        Rule(r"t_embedder\.1\.linear_1\.weight", ("time_embed.t_embedder.linear_1.weight",)),
        Rule(r"t_embedder\.1\.linear_2\.weight", ("time_embed.t_embedder.linear_2.weight",)),
        Rule(r"t_embedding_norm\.weight", ("time_embed.norm.weight",)),
        Rule(r"final_layer\.linear\.weight", ("proj_out.weight",)),
        Rule(r"final_layer\.adaln_modulation\.1\.weight", ("norm_out.linear_1.weight",)),
        Rule(r"final_layer\.adaln_modulation\.2\.weight", ("norm_out.linear_2.weight",)),
    ),
)

ANIMA_ADAPTER = Layout(
    name="anima_adapter",
    title="Anima's text conditioner",
    markers=("blocks.0.cross_attn.q_proj.weight", "embed.weight", "out_proj.weight"),
    prefixes=tuple(f"{root}llm_adapter." for root in _ROOTS),
    ignored=(r"rotary_emb\.inv_freq",),
    rules=(Rule(r"(?P<name>(?:blocks|embed|in_proj|out_proj|norm)\..+)", ("{name}",)),),
)

QWEN3 = Layout(
    name="qwen3",
    title="a Qwen3 language model",
    markers=("layers.0.self_attn.q_norm.weight", "embed_tokens.weight"),
    prefixes=("model.", "", "text_encoders.qwen3_06b.transformer.model.", "qwen3_06b.transformer.model."),
    ignored=(r"lm_head\.weight",),
    rules=(Rule(r"(?P<name>(?:layers|embed_tokens|norm)\..+)", ("{name}",)),),
)


def measure(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of Anima's transformer."""
    width, inputs = shapes["patch_embed.proj.weight"]
    first = "transformer_blocks.0"
    head = shapes[f"{first}.attn1.norm_q.weight"][0]
    # 4 cells a token, of the latent and one channel more, the padding mask
    channels = shapes["proj_out.weight"][0] // 4
    return {
        "in_channels": channels,
        "out_channels": channels,
        "concat_padding_mask": inputs == 4 * (channels + 1),
        "num_layers": count_modules(shapes, "transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "text_embed_dim": shapes[f"{first}.attn2.to_k.weight"][1],
        "adaln_lora_dim": shapes[f"{first}.norm1.linear_1.weight"][0],
        "mlp_ratio": shapes[f"{first}.ff.net.0.proj.weight"][0] / width,
    }


def measure_conditioner(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of the text conditioner."""
    vocabulary, target = shapes["embed.weight"]
    width, source = shapes["blocks.0.cross_attn.k_proj.weight"]
    return {
        "target_vocab_size": vocabulary,
        "target_dim": target,
        "model_dim": width,
        "source_dim": source,
        "num_layers": count_modules(shapes, "blocks"),
        "num_attention_heads": width // shapes["blocks.0.cross_attn.q_norm.weight"][0],
        "mlp_ratio": shapes["blocks.0.mlp.0.weight"][0] / width,
    }


def measure_qwen3(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of Qwen3."""
    vocabulary, width = shapes["embed_tokens.weight"]
    first = "layers.0.self_attn"
    head = shapes[f"{first}.q_norm.weight"][0]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": count_modules(shapes, "layers"),
        "head_dim": head,
        "num_attention_heads": shapes[f"{first}.q_proj.weight"][0] // head,
        "num_key_value_heads": shapes[f"{first}.k_proj.weight"][0] // head,
    }
