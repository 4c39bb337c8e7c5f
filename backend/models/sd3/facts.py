"""Torch-free facts of SD3 and SD3.5 (medium, large), and the check of a base model before anything loads.

Widths and class names: diffusers `StableDiffusion3Pipeline` and `SD3Transformer2DModel` (0.42). What the published
models differ in (layers, width, norms of queries and keys, blocks with a second attention) is read from their configs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.models.base import Base
from backend.models.check import check_model
from backend.models.fit import config_of, differing, whole
from backend.models.spec import FLOW_OPTIONS, BlockClass, FamilyFacts, Geometry, Part
from backend.models.unet.parts import clip_tokenizer

# A token is 2x2 latent cells; the transformer cuts them itself.
PATCH = 2

CLIP_TOKENS = 77
"""Tokens that both CLIP encoders read; their states come before T5's."""

# The other SD3 pipelines hold the same parts (image to image, inpainting).
SAME_PARTS = ("StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline", "StableDiffusion3PAGPipeline")

_MODEL = "an SD3 or SD3.5 model"


def _encoder(name: str, title: str, cls: str, marker: str, layout: str, file: str) -> Part:
    return Part(
        name,
        title,
        name,
        (cls,),
        (("config.json",),),
        "model",
        (marker,),
        setting=name,
        layouts=(layout,),
        shipped=f"sd3/configs/{name}.json",
        where=f"{file}, or the folder {name} of {_MODEL}",
    )


def _clip(name: str, title: str, layout: str, file: str) -> Part:
    return _encoder(
        name, title, "CLIPTextModelWithProjection", "embeddings.token_embedding.weight", layout, f"{file}.safetensors"
    )


PARTS = (
    Part(
        "transformer",
        "the SD3 transformer",
        "transformer",
        ("SD3Transformer2DModel",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("pos_embed.pos_embed", "context_embedder.weight", "transformer_blocks.0.attn.add_q_proj.weight"),
        layouts=("sd3_mmdit",),
        shipped="sd3/configs/transformer.json",
        where="sd3_medium.safetensors, sd3.5_large.safetensors or another SD3 checkpoint",
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
        shipped="sd3/configs/vae.json",
        where=f"the checkpoint of {_MODEL}, which holds it, or a VAE's folder",
    ),
    _clip("text_encoder", "the CLIP text encoder", "hf_clip", "clip_l"),
    _clip("text_encoder_2", "the larger CLIP text encoder", "hf_clip_g", "clip_g"),
    replace(
        _encoder(
            "text_encoder_3",
            "the T5 text encoder",
            "T5EncoderModel",
            "SelfAttention.q.weight",
            "t5",
            "t5xxl_fp16.safetensors (or fp8)",
        ),
        optional=True,
    ),
    replace(clip_tokenizer("tokenizer", "the CLIP tokenizer"), where=f"the folder tokenizer of {_MODEL}"),
    replace(clip_tokenizer("tokenizer_2", "the larger CLIP's tokenizer"), where=f"the folder tokenizer_2 of {_MODEL}"),
    Part(
        "tokenizer_3",
        "the T5 tokenizer",
        "tokenizer_3",
        ("T5TokenizerFast", "T5Tokenizer"),
        (("tokenizer_config.json",), ("tokenizer.json", "spiece.model")),
        setting="tokenizer_3",
        where=f"the folder tokenizer_3 of {_MODEL} (or of google/t5-v1_1-xxl)",
        optional=True,
    ),
    Part(
        "scheduler",
        "the scheduler",
        "scheduler",
        ("FlowMatchEulerDiscreteScheduler",),
        (("scheduler_config.json",),),
        shipped="sd3/configs/scheduler.json",
    ),
)


def block_classes(layers: int, dual: Collection[int]) -> tuple[BlockClass, ...]:
    """The block classes of a model of so many layers, in the order in which they run, those that it has none of left
    out. dual: layers with a second attention, of the picture alone.

    All are in one list and of one class; a block's number tells which it is.
    """
    numbers = {
        "dual": [n for n in range(layers - 1) if n in dual],
        "joint": [n for n in range(layers - 1) if n not in dual],
        # its text goes no further
        "last": [layers - 1],
    }
    return tuple(
        BlockClass(name, rf"transformer_blocks(?=\.(?:{_either(which)})\.)", "JointTransformerBlock")
        for name, which in numbers.items()
        if which
    )


def _either(numbers: Iterable[int]) -> str:
    return "|".join(map(str, numbers))


FACTS = FamilyFacts(
    name="sd3",
    title="SD3 / SD3.5",
    pipeline_class="StableDiffusion3Pipeline",
    denoiser_class="SD3Transformer2DModel",
    # of T5 (``max_sequence_length``)
    text_length=256,
    text_before=CLIP_TOKENS,
    text_rule="attended",
    # of SD3.5 medium, which has all three
    block_classes=block_classes(24, range(13)),
    parts=PARTS,
    # Attention and feed-forward of both streams; the modulation stays as it is. The second
    # attention, which not all models have, shares its pattern with the first: one that matches nothing is an error.
    diffusers_layers=(),
    default_targets=(
        r"transformer_blocks\.\d+\.attn2?\.(to_q|to_k|to_v|to_out\.0)",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
        "ff.net.0.proj",
        "ff.net.2",
        "ff_context.net.0.proj",
        "ff_context.net.2",
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16, most_side=192),
    options=frozenset({"text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
)


def facts_of(base: Base | Path) -> FamilyFacts:
    """The facts with the block classes of this model; the family's own where its config can't be read."""
    net = config_of(Base.at(base), FACTS, "transformer")
    layers, dual = whole(net, "num_layers"), net.get("dual_attention_layers") or []
    return FACTS if layers is None or layers < 1 else replace(FACTS, block_classes=block_classes(layers, dual))


def pooled_width(first: Mapping[str, Any], second: Mapping[str, Any]) -> int | None:
    """Numbers of both CLIP encoders' pooled vectors together; None where a config doesn't say."""
    widths = whole(first, "projection_dim"), whole(second, "projection_dim")
    return None if None in widths else sum(widths)


def _check_fit(base: Base) -> list[Problem]:
    """Parts that are each whole but don't belong together."""
    net, vae, t5 = (config_of(base, FACTS, name) for name in ("transformer", "vae", "text_encoder_3"))
    first, second = config_of(base, FACTS, "text_encoder"), config_of(base, FACTS, "text_encoder_2")
    pairs = (
        ("T5's width", whole(t5, "d_model"), "the transformer's text width", whole(net, "joint_attention_dim")),
        (
            "the pooled width of both CLIP encoders",
            pooled_width(first, second),
            "the transformer's",
            whole(net, "pooled_projection_dim"),
        ),
        (
            "the VAE's channels",
            whole(vae, "latent_channels"),
            "the transformer's input channels",
            whole(net, "in_channels"),
        ),
        ("a token's side in latent cells", PATCH, "the transformer's", whole(net, "patch_size")),
    )
    return differing(pairs, "SD3")


def _check_t5(base: Base) -> list[Problem]:
    """T5 may be missing, and that is said; with it goes its tokenizer."""
    encoder, tokenizer = FACTS.part("text_encoder_3"), FACTS.part("tokenizer_3")
    if base.place(encoder) is None:
        text = "SD3 is trained without T5: captions reach it through its two CLIP encoders alone, 77 tokens of them"
        remedy = "Set text_encoder_3 to t5xxl_fp16.safetensors, and tokenizer_3, for longer captions."
        return [Problem("model.text_encoder_3", None, text, remedy, "warning")]
    if base.place(tokenizer) is None:
        text = "the T5 tokenizer is missing, which the T5 text encoder needs"
        return [Problem("model.tokenizer_3", None, text, f"Set tokenizer_3 to {tokenizer.where}.")]
    return []


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; no error when it can be loaded. Reads configs and safetensors headers only.

    A missing T5 is a warning.
    """
    base = Base.at(base, variant)
    problems = check_model(base, FACTS, SAME_PARTS, _check_fit)
    # of a wrong base model it goes without saying what T5 would be good for
    return problems or _check_t5(base)


def geometry(base: Base | Path) -> Geometry:
    """Geometry of the model, from the configs of its VAE and transformer; ValueError when they can't be read.

    Its positions are a square table of which a picture gets the middle, so that no side may be longer than it.
    """
    base = Base.at(base)
    vae, net = config_of(base, FACTS, "vae"), config_of(base, FACTS, "transformer")
    levels, channels, most = vae.get("block_out_channels"), whole(vae, "latent_channels"), whole(net, _MOST)
    if not isinstance(levels, list) or not levels or channels is None or most is None:
        raise ValueError(
            f"the configs of VAE and transformer of {base.path} give no block_out_channels, latent_channels and {_MOST}"
        )
    return Geometry(downscale=2 ** (len(levels) - 1), patch=PATCH, latent_channels=channels, most_side=most)


_MOST = "pos_embed_max_size"


def scheduler_config(base: Base | Path) -> dict[str, Any]:
    """The scheduler's config; ValueError when it can't be read."""
    return Base.at(base).config(FACTS.part("scheduler"))
