"""Torch-free facts of Anima, and the check of a base model before anything loads.

Anima is a Cosmos Predict2 transformer whose text comes from Qwen3 through a conditioner that asks with the ids of T5's
tokenizer. Class names: diffusers `AnimaModularPipeline` (0.42); folders: circlestone-labs/Anima-Base-v1.0-Diffusers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.models.base import Base
from backend.models.check import check_model
from backend.models.files import SETTING
from backend.models.fit import config_of, differing, video_vae_geometry, whole
from backend.models.spec import FLOW_OPTIONS, BlockClass, FamilyFacts, Geometry, Part

PATCH = 2

PADDED_TO = 512
"""Text rows that the transformer sees at least: a caption's own, then zeros (``min_sequence_length`` of
`AnimaTextConditioner`). No mask takes the zeros out, so that they are attention sinks."""

PARTS = (
    Part(
        "transformer",
        "the Anima transformer",
        "transformer",
        ("CosmosTransformer3DModel",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("patch_embed.proj.weight", "transformer_blocks.0.attn2.to_q.weight"),
        layouts=("anima_dit",),
        shipped="anima/configs/transformer.json",
        where="anima-base-v1.0.safetensors or another Anima transformer",
    ),
    Part(
        "text_conditioner",
        "Anima's text conditioner",
        "text_conditioner",
        ("AnimaTextConditioner",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("embed.weight", "blocks.0.cross_attn.q_proj.weight"),
        layouts=("anima_adapter",),
        shipped="anima/configs/text_conditioner.json",
        where="the Anima transformer's own file, which holds it",
    ),
    Part(
        "vae",
        "the VAE",
        "vae",
        ("AutoencoderKLQwenImage",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("encoder.mid_block.attentions.0.to_qkv.weight", "decoder.conv_in.weight"),
        setting="vae",
        layouts=("wan_vae",),
        shipped="anima/configs/vae.json",
        where="qwen_image_vae.safetensors, or a VAE's folder",
    ),
    Part(
        "text_encoder",
        "the Qwen3 text encoder",
        "text_encoder",
        ("Qwen3Model", "Qwen3ForCausalLM"),
        (("config.json",),),
        "model",
        ("layers.0.self_attn.q_norm.weight", "embed_tokens.weight"),
        setting="text_encoder",
        layouts=("qwen3",),
        shipped="anima/configs/text_encoder.json",
        where="qwen_3_06b_base.safetensors, or the folder text_encoder of an Anima model",
    ),
    Part(
        "tokenizer",
        "the Qwen3 tokenizer",
        "tokenizer",
        ("Qwen2Tokenizer", "Qwen2TokenizerFast"),
        (("tokenizer_config.json",), ("vocab.json", "tokenizer.json"), ("merges.txt", "tokenizer.json")),
        setting="tokenizer",
        where="the folder tokenizer of circlestone-labs/Anima-Base-v1.0-Diffusers (or of Qwen/Qwen3-0.6B-Base)",
    ),
    # the last of the tokenizers: the text that the transformer sees has a row for each of its tokens
    Part(
        "tokenizer_2",
        "the T5 tokenizer",
        "t5_tokenizer",
        ("T5TokenizerFast", "T5Tokenizer"),
        (("tokenizer_config.json",), ("tokenizer.json", "spiece.model")),
        setting="tokenizer_2",
        where="the folder t5_tokenizer of circlestone-labs/Anima-Base-v1.0-Diffusers (or of google/t5-v1_1-xxl)",
    ),
    Part(
        "scheduler",
        "the scheduler",
        "scheduler",
        ("FlowMatchEulerDiscreteScheduler",),
        (("scheduler_config.json",),),
        shipped="anima/configs/scheduler.json",
    ),
)

FACTS = FamilyFacts(
    name="anima",
    title="Anima",
    pipeline_class="AnimaModularPipeline",
    denoiser_class="CosmosTransformer3DModel",
    text_length=PADDED_TO,
    text_rule="sink",
    block_classes=(BlockClass("block", "transformer_blocks", "CosmosTransformerBlock"),),
    parts=PARTS,
    # Attention and feed-forward; the small matrices of the modulation stay as they are, as in sd-scripts.
    diffusers_layers=(),
    default_targets=(
        "attn1.to_q",
        "attn1.to_k",
        "attn1.to_v",
        "attn1.to_out.0",
        "attn2.to_q",
        "attn2.to_k",
        "attn2.to_v",
        "attn2.to_out.0",
        "ff.net.0.proj",
        "ff.net.2",
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16),
    options=frozenset({"text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
)


def _check_fit(base: Base) -> list[Problem]:
    """Parts that are each whole but don't belong together, and Cosmos models that are not built like Anima."""
    net, vae = config_of(base, FACTS, "transformer"), config_of(base, FACTS, "vae")
    conditioner, qwen = config_of(base, FACTS, "text_conditioner"), config_of(base, FACTS, "text_encoder")
    pairs = (
        ("Qwen3's width", whole(qwen, "hidden_size"), "the conditioner's source", whole(conditioner, "source_dim")),
        (
            "the conditioner's width",
            whole(conditioner, "target_dim"),
            "the transformer's text width",
            whole(net, "text_embed_dim"),
        ),
        ("the VAE's channels", whole(vae, "z_dim"), "the transformer's input channels", whole(net, "in_channels")),
    )
    problems = differing(pairs, FACTS.title)
    return problems + _check_build(net)


def _check_build(net: dict[str, Any]) -> list[Problem]:
    """Other Cosmos models: learned positions, pictures or wider text as further inputs, other patches."""
    if net.get("_class_name") != FACTS.denoiser_class:
        return []
    usual = {"extra_pos_embed_type": None, "use_crossattn_projection": False, "img_context_dim_in": None}
    other = [name for name, value in usual.items() if net.get(name, value) != value]
    other += ["patch_size"] if list(net.get("patch_size", (1, PATCH, PATCH))) != [1, PATCH, PATCH] else []
    if not other:
        return []
    text = f"the transformer is of another Cosmos model than Anima: its {', '.join(other)} differs"
    return [Problem(SETTING, None, text, "Give an Anima model; other Cosmos models are not trained here.")]


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; empty when it can be loaded. Reads configs and safetensors headers only."""
    return check_model(Base.at(base, variant), FACTS, (), _check_fit)


def geometry(base: Base | Path) -> Geometry:
    """Geometry of the model, from the config of its VAE; ValueError when it can't be read."""
    return video_vae_geometry(Base.at(base), FACTS, PATCH)


def scheduler_config(base: Base | Path) -> dict[str, Any]:
    """The scheduler's config; ValueError when it can't be read."""
    return Base.at(base).config(FACTS.part("scheduler"))
