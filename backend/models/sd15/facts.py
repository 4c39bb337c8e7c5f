"""Torch-free facts of Stable Diffusion 1.5 and its like in diffusers layout, and the check of a base model.

Widths and class names: diffusers `StableDiffusionPipeline` and `UNet2DConditionModel` (0.42). Stable Diffusion 2 has
the same build with another text encoder and often v-prediction, which its own configs say.
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

LEVELS = 4

SAME_PARTS = ("StableDiffusionImg2ImgPipeline",)

_WHERE = {
    "unet": "a Stable Diffusion 1.5 checkpoint such as v1-5-pruned-emaonly.safetensors",
    "vae": "a VAE such as vae-ft-mse-840000-ema-pruned.safetensors, or a VAE's folder",
    "text_encoder": "clip_l.safetensors, or the folder text_encoder of a Stable Diffusion 1.5 model",
    "tokenizer": "the folder tokenizer of stable-diffusion-v1-5 (or of openai/clip-vit-large-patch14)",
}

FACTS = FamilyFacts(
    name="sd15",
    title="Stable Diffusion 1.5",
    pipeline_class="StableDiffusionPipeline",
    denoiser_class="UNet2DConditionModel",
    text_length=unet.TEXT_LENGTH,
    text_rule="attended",
    block_classes=(
        *(BlockClass(f"level{n}", unet.level(n, LEVELS), "BasicTransformerBlock") for n in range(LEVELS - 1)),
        # as wide as level 2, but with a quarter of its tokens
        BlockClass("mid", r"mid_block\.attentions\.\d+\.transformer_blocks", "BasicTransformerBlock"),
    ),
    parts=unet.in_checkpoints(
        "sd15",
        (
            unet.UNET,
            unet.VAE,
            unet.clip("text_encoder", "the CLIP text encoder", "CLIPTextModel"),
            unet.clip_tokenizer("tokenizer", "the CLIP tokenizer"),
            unet.SCHEDULER,
        ),
        _WHERE,
    ),
    # What sd-scripts trains by default: every layer of the transformers; proj_in and proj_out are convolutions here.
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
    clip = config_of(base, FACTS, "text_encoder")
    return unet.check_levels(net, LEVELS, FACTS.title) + differing(
        (
            (
                "the text encoder's width",
                whole(clip, "hidden_size"),
                "the UNet's text width",
                whole(net, "cross_attention_dim"),
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
