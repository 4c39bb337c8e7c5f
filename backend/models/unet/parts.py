"""What the facts of Stable Diffusion's UNet families have in common, torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.base.problems import Problem
from backend.models import files
from backend.models.base import Base, header_of
from backend.models.fit import config_of, whole
from backend.models.spec import CONVOLUTION_OPTIONS, DIFFUSION_OPTIONS, TEXT_OPTIONS, FamilyFacts, Geometry, Part

NO_STATIC = {"static": "its convolutions see the edge of a picture, so that a padded one would not be exact"}

TEXT_LENGTH = 77
"""Tokens that CLIP reads; the padding is attended to."""

OPTIONS = DIFFUSION_OPTIONS | TEXT_OPTIONS | CONVOLUTION_OPTIONS | {"true_cfg_scale", "max_token_length"}

TEXT_TARGETS = (r".+\.layers\.\d+\.(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])",)
"""Layers of CLIP that sd-scripts trains."""

CONV_TARGETS = (
    r".+\.resnets\.\d+\.(conv1|conv2|conv_shortcut|time_emb_proj)",
    r".+\.(down|up)samplers\.\d+\.conv",
)
"""Layers that sd-scripts trains too where ``conv_dim`` is set: all of the ResNets, and what changes the size."""

UNET = Part(
    "unet",
    "the UNet",
    "unet",
    ("UNet2DConditionModel",),
    (("config.json",),),
    "diffusion_pytorch_model",
    ("conv_in.weight", "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight"),
)
VAE = Part(
    "vae",
    "the VAE",
    "vae",
    ("AutoencoderKL",),
    (("config.json",),),
    "diffusion_pytorch_model",
    ("encoder.down_blocks.0.resnets.0.conv1.weight", "decoder.conv_in.weight"),
    setting="vae",
)
SCHEDULER = Part(
    "scheduler",
    "the scheduler",
    "scheduler",
    (
        "EulerDiscreteScheduler",
        "PNDMScheduler",
        "DDIMScheduler",
        "DDPMScheduler",
        "EulerAncestralDiscreteScheduler",
        "DPMSolverMultistepScheduler",
        "DPMSolverSinglestepScheduler",
        "LMSDiscreteScheduler",
        "HeunDiscreteScheduler",
        "KDPM2DiscreteScheduler",
        "UniPCMultistepScheduler",
        "LCMScheduler",
    ),
    (("scheduler_config.json",),),
)


def clip(name: str, title: str, cls: str, markers: tuple[str, ...] = ()) -> Part:
    """A CLIP text encoder."""
    wanted = ("embeddings.token_embedding.weight", *markers)
    return Part(name, title, name, (cls,), (("config.json",),), "model", wanted, setting=name)


def clip_tokenizer(name: str, title: str) -> Part:
    """A CLIP tokenizer."""
    inside = (("tokenizer_config.json",), ("vocab.json", "tokenizer.json"), ("merges.txt", "tokenizer.json"))
    return Part(name, title, name, ("CLIPTokenizer", "CLIPTokenizerFast"), inside, setting=name)


_LAYOUTS = {
    "unet": ("ldm_unet",),
    "vae": ("ldm_vae",),
    "text_encoder": ("hf_clip", "hf_clip_bare"),
    "text_encoder_2": ("open_clip", "hf_clip_g"),
}


def in_checkpoints(family: str, parts: tuple[Part, ...], where: Mapping[str, str]) -> tuple[Part, ...]:
    """`parts` as whole checkpoints hold them, with the configs that the family ships. where: what to take for each."""
    return tuple(
        replace(
            part,
            layouts=_LAYOUTS.get(part.name, ()),
            shipped="" if part.name.startswith("tokenizer") else f"{family}/configs/{part.name}.json",
            where=where.get(part.name, ""),
        )
        for part in parts
    )


# Tensors without a value to read, by which makers of checkpoints mark how they were trained (as ComfyUI reads them).
_MARKS = {"v_pred": {"prediction_type": "v_prediction"}, "ztsnr": {"rescale_betas_zero_snr": True}}


def scheduler_config(base: Base, facts: FamilyFacts) -> dict[str, Any]:
    """The model's schedule, a single file's with what its marks say; ValueError when it can't be read."""
    config = base.config(facts.part("scheduler"))
    if base.path is None or not base.path.is_file():
        return config
    names = header_of(base.path).names
    return config | {key: value for mark, said in _MARKS.items() if mark in names for key, value in said.items()}


def level(number: int, levels: int) -> str:
    """The transformer blocks' lists of one level of a UNet of `levels`, as a pattern of their paths."""
    inside = r"attentions\.\d+\.transformer_blocks"
    return rf"(?:down_blocks\.{number}|up_blocks\.{levels - 1 - number})\.{inside}"


def check_levels(unet: Mapping[str, Any], levels: int, title: str) -> list[Problem]:
    """A UNet of another build, such as one with fewer levels."""
    found = unet.get("block_out_channels")
    if not isinstance(found, list) or len(found) == levels:
        return []
    text = f"the UNet has {len(found)} levels, and {title} has {levels}"
    return [Problem(files.SETTING, None, text, f"Choose a {title} model, or the family that this one belongs to.")]


def geometry(base: Base, facts: FamilyFacts) -> Geometry:
    """Geometry of the model: a token is what one cell of the UNet's coarsest level stands for.

    Raises ValueError when the configs can't be read or don't agree.
    """
    vae, unet = config_of(base, facts, "vae"), config_of(base, facts, "unet")
    inside, channels = vae.get("block_out_channels"), whole(vae, "latent_channels")
    outside = unet.get("block_out_channels")
    if not isinstance(inside, list) or not inside or channels is None or not isinstance(outside, list):
        raise ValueError(f"the configs of VAE and UNet of {base.path} give no block_out_channels and latent_channels")
    wanted = whole(unet, "in_channels")
    if wanted is not None and wanted != channels:
        raise ValueError(f"the UNet takes {wanted} channels, the VAE gives {channels}")
    return Geometry(downscale=2 ** (len(inside) - 1), patch=2 ** (len(outside) - 1), latent_channels=channels)
