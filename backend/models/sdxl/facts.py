"""Torch-free facts of SDXL in diffusers layout, and the check of a base model before anything loads.

Widths and class names: diffusers `StableDiffusionXLPipeline` and `UNet2DConditionModel` (0.42).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.models.base import Base
from backend.models.check import check_model
from backend.models.fit import config_of, differing, whole
from backend.models.spec import BlockClass, FamilyFacts, Geometry
from backend.models.unet import parts as unet

LEVELS = 3
_TIME_IDS = 6
_TIME_WIDTH = 256

# The other SDXL pipelines hold the same parts (image to image).
SAME_PARTS = ("StableDiffusionXLImg2ImgPipeline",)

_REPOSITORY = "stabilityai/stable-diffusion-xl-base-1.0"
_WHERE = {
    "unet": "an SDXL checkpoint such as sd_xl_base_1.0.safetensors",
    "vae": "a VAE such as sdxl_vae.safetensors, or a VAE's folder",
    "text_encoder": "clip_l.safetensors, or the folder text_encoder of an SDXL model",
    "text_encoder_2": "clip_g.safetensors, or the folder text_encoder_2 of an SDXL model",
    "tokenizer": f"the folder tokenizer of {_REPOSITORY}",
    "tokenizer_2": f"the folder tokenizer_2 of {_REPOSITORY}",
}

FACTS = FamilyFacts(
    name="sdxl",
    title="SDXL",
    pipeline_class="StableDiffusionXLPipeline",
    denoiser_class="UNet2DConditionModel",
    text_length=unet.TEXT_LENGTH,
    text_rule="attended",
    block_classes=(
        BlockClass("level1", unet.level(1, LEVELS), "BasicTransformerBlock"),
        BlockClass(
            "level2",
            unet.level(2, LEVELS) + r"|mid_block\.attentions\.\d+\.transformer_blocks",
            "BasicTransformerBlock",
        ),
    ),
    parts=unet.in_checkpoints(
        "sdxl",
        (
            unet.UNET,
            unet.VAE,
            unet.clip("text_encoder", "the CLIP text encoder", "CLIPTextModel"),
            unet.clip(
                "text_encoder_2",
                "the larger CLIP text encoder",
                "CLIPTextModelWithProjection",
                ("text_projection.weight",),
            ),
            unet.clip_tokenizer("tokenizer", "the CLIP tokenizer"),
            unet.clip_tokenizer("tokenizer_2", "the larger CLIP's tokenizer"),
            unet.SCHEDULER,
        ),
        _WHERE,
    ),
    # What sd-scripts trains by default: every linear layer of the transformers.
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
        "proj_in",
        "proj_out",
    ),
    default_geometry=Geometry(downscale=8, patch=2 ** (LEVELS - 1), latent_channels=4),
    options=unet.OPTIONS,
    text_targets=unet.TEXT_TARGETS,
    conv_targets=unet.CONV_TARGETS,
    objective="diffusion",
    lacks_modes=unet.NO_STATIC,
    fixed_text_length=True,
    one_size_batches=True,
)


def _check_fit(base: Base) -> list[Problem]:
    """Parts that are each whole but don't belong together."""
    net, vae = config_of(base, FACTS, "unet"), config_of(base, FACTS, "vae")
    first, second = config_of(base, FACTS, "text_encoder"), config_of(base, FACTS, "text_encoder_2")
    widths = whole(first, "hidden_size"), whole(second, "hidden_size")
    text = None if None in widths else widths[0] + widths[1]
    pooled, added = whole(second, "projection_dim"), whole(net, "projection_class_embeddings_input_dim")
    times = whole(net, "addition_time_embed_dim") or _TIME_WIDTH
    return unet.check_levels(net, LEVELS, FACTS.title) + differing(
        (
            ("the width of both text encoders", text, "the UNet's text width", whole(net, "cross_attention_dim")),
            (
                "the larger text encoder's pooled width",
                pooled,
                "the UNet's",
                None if added is None else added - _TIME_IDS * times,
            ),
            (
                "the VAE's channels",
                whole(vae, "latent_channels"),
                "the UNet's input channels",
                whole(net, "in_channels"),
            ),
        ),
        FACTS.title,
    )


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; empty when it can be loaded. Reads configs and safetensors headers only."""
    return check_model(Base.at(base, variant), FACTS, SAME_PARTS, _check_fit)


def geometry(base: Base | Path) -> Geometry:
    """Geometry of the model, from the configs of its VAE and UNet; ValueError when they can't be read."""
    return unet.geometry(Base.at(base), FACTS)


def scheduler_config(base: Base | Path) -> dict[str, Any]:
    """The model's schedule; ValueError when it can't be read."""
    return unet.scheduler_config(Base.at(base), FACTS)
