"""Torch-free facts of FLUX.1 in diffusers layout, and the check of a base model before anything loads.

Widths and class names: diffusers `FluxPipeline` and `FluxTransformer2DModel` (transformer_flux.py, 0.42).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.models import files
from backend.models.base import SHIPPED, Base
from backend.models.check import check_model
from backend.models.fit import config_of, differing, whole
from backend.models.spec import FLOW_OPTIONS, BlockClass, FamilyFacts, Geometry, Part

# A FLUX token is 2x2 latent cells: the patch is packed outside the transformer (its own patch_size is 1).
PATCH = 2

# The other FLUX pipelines hold the same parts (image to image, inpainting); Fill and Control do not.
SAME_PARTS = ("FluxImg2ImgPipeline", "FluxInpaintPipeline")

PARTS = (
    Part(
        "transformer",
        "the FLUX transformer",
        "transformer",
        ("FluxTransformer2DModel",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("x_embedder.weight", "transformer_blocks.0.attn.to_q.weight", "single_transformer_blocks.0.proj_mlp.weight"),
        layouts=("flux_bfl",),
        shipped="flux/configs/transformer.json",
        where="flux1-dev.safetensors or another FLUX.1 transformer",
    ),
    Part(
        "vae",
        "the VAE",
        "vae",
        ("AutoencoderKL",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("encoder.down_blocks.0.resnets.0.conv1.weight", "decoder.conv_in.weight"),
        setting="vae",
        layouts=("ldm_vae",),
        shipped="flux/configs/vae.json",
        where="FLUX's ae.safetensors, or a VAE's folder",
    ),
    Part(
        "text_encoder",
        "the CLIP text encoder",
        "text_encoder",
        ("CLIPTextModel",),
        (("config.json",),),
        "model",
        ("embeddings.token_embedding.weight",),
        setting="text_encoder",
        layouts=("hf_clip",),
        shipped="flux/configs/text_encoder.json",
        where="clip_l.safetensors, or the folder text_encoder of a FLUX.1 model",
    ),
    Part(
        "text_encoder_2",
        "the T5 text encoder",
        "text_encoder_2",
        ("T5EncoderModel",),
        (("config.json",),),
        "model",
        ("SelfAttention.q.weight",),
        setting="text_encoder_2",
        layouts=("t5",),
        shipped="flux/configs/text_encoder_2.json",
        where="t5xxl_fp16.safetensors (or fp8), or the folder text_encoder_2 of a FLUX.1 model",
    ),
    Part(
        "tokenizer",
        "the CLIP tokenizer",
        "tokenizer",
        ("CLIPTokenizer", "CLIPTokenizerFast"),
        (("tokenizer_config.json",), ("vocab.json", "tokenizer.json"), ("merges.txt", "tokenizer.json")),
        setting="tokenizer",
        where="the folder tokenizer of black-forest-labs/FLUX.1-dev (or of openai/clip-vit-large-patch14)",
    ),
    Part(
        "tokenizer_2",
        "the T5 tokenizer",
        "tokenizer_2",
        ("T5TokenizerFast", "T5Tokenizer"),
        (("tokenizer_config.json",), ("tokenizer.json", "spiece.model")),
        setting="tokenizer_2",
        where="the folder tokenizer_2 of black-forest-labs/FLUX.1-dev (or of google/t5-v1_1-xxl)",
    ),
    Part(
        "scheduler",
        "the scheduler",
        "scheduler",
        ("FlowMatchEulerDiscreteScheduler",),
        (("scheduler_config.json",),),
        shipped="flux/configs/scheduler.json",
    ),
)

FACTS = FamilyFacts(
    name="flux",
    title="FLUX.1",
    pipeline_class="FluxPipeline",
    denoiser_class="FluxTransformer2DModel",
    text_length=512,
    text_rule="attended",
    block_classes=(
        BlockClass("double", "transformer_blocks", "FluxTransformerBlock"),
        BlockClass("single", "single_transformer_blocks", "FluxSingleTransformerBlock", joint=True),
    ),
    parts=PARTS,
    # diffusers gives those outside of the blocks names that its loader then skips.
    diffusers_layers=(r"(single_)?transformer_blocks\.\d+\..+",),
    # Attention and feed-forward of both block classes. The single blocks' proj_out needs a pattern: as a suffix it
    # would also match the final projection of the whole model.
    default_targets=(
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
        "ff.net.0.proj",
        "ff.net.2",
        "ff_context.net.0.proj",
        "ff_context.net.2",
        "proj_mlp",
        r"single_transformer_blocks\.\d+\.proj_out",
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16),
    options=frozenset({"guidance_scale", "text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
)


def _check_fit(base: Base) -> list[Problem]:
    """Parts that are each whole but don't belong together: widths that must agree."""
    transformer, vae = config_of(base, FACTS, "transformer"), config_of(base, FACTS, "vae")
    clip, t5 = config_of(base, FACTS, "text_encoder"), config_of(base, FACTS, "text_encoder_2")
    pairs = (
        (
            "T5's width",
            whole(t5, "d_model"),
            "the transformer's text width",
            whole(transformer, "joint_attention_dim"),
        ),
        (
            "CLIP's width",
            whole(clip, "hidden_size"),
            "the transformer's pooled width",
            whole(transformer, "pooled_projection_dim"),
        ),
        (
            "the VAE's channels a token",
            None if whole(vae, "latent_channels") is None else whole(vae, "latent_channels") * PATCH * PATCH,
            "the transformer's input channels",
            whole(transformer, "in_channels"),
        ),
    )
    return differing(pairs, "FLUX")


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; empty when it can be loaded. Reads configs and safetensors headers only.

    variant: of the weight files ("fp16"), where `base` is a path.
    """
    return check(Base.at(base, variant), FACTS, SAME_PARTS)


def check(base: Base, of: FamilyFacts, pipelines: tuple[str, ...]) -> list[Problem]:
    """The same for a model of FLUX's build whose facts are `of`. pipelines: that model_index.json may name too."""
    return check_model(base, of, pipelines, _check_fit)


def geometry(base: Base | Path) -> Geometry:
    """Geometry of the model, from the configs of its VAE and transformer.

    Raises ValueError when they can't be read or don't agree.
    """
    base = Base.at(base)
    vae, transformer = config_of(base, FACTS, "vae"), config_of(base, FACTS, "transformer")
    levels, channels = vae.get("block_out_channels"), whole(vae, "latent_channels")
    if not isinstance(levels, list) or not levels or channels is None:
        raise ValueError(f"the config of the VAE of {base.path} gives no block_out_channels and latent_channels")
    wanted = whole(transformer, "in_channels")
    if wanted is not None and wanted != channels * PATCH * PATCH:
        raise ValueError(f"the transformer takes {wanted} channels a token, the VAE gives {channels * PATCH * PATCH}")
    return Geometry(downscale=2 ** (len(levels) - 1), patch=PATCH, latent_channels=channels)


def scheduler_config(base: Base | Path) -> dict[str, Any]:
    """The scheduler's config: the folder's own, or for single files that of dev or schnell, told by the guidance input.

    ValueError when the folder's can't be read.
    """
    base = Base.at(base)
    net = config_of(base, FACTS, "transformer")
    if base.place(FACTS.part("scheduler")) is None and net.get("guidance_embeds") is False:
        return files.read_json(SHIPPED / "flux/configs/scheduler_schnell.json")
    return base.config(FACTS.part("scheduler"))
