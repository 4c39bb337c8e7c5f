"""Torch-free facts of FLUX.1 in diffusers layout, and the check of a base model before anything loads.

Widths and class names: diffusers `FluxPipeline` and `FluxTransformer2DModel` (transformer_flux.py, 0.42).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from backend.config.problems import Problem
from backend.models import files
from backend.models.spec import BlockClass, FamilyFacts, Geometry, Part

# A FLUX token is 2x2 latent cells: the patch is packed outside the transformer (its own patch_size is 1).
PATCH = 2

PARTS = (
    Part(
        "transformer",
        "the FLUX transformer",
        "transformer",
        ("FluxTransformer2DModel",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("x_embedder.weight", "transformer_blocks.0.attn.to_q.weight", "single_transformer_blocks.0.proj_mlp.weight"),
    ),
    Part(
        "vae",
        "the VAE",
        "vae",
        ("AutoencoderKL",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("encoder.conv_in.weight", "decoder.conv_in.weight"),
    ),
    Part(
        "text_encoder",
        "the CLIP text encoder",
        "text_encoder",
        ("CLIPTextModel",),
        (("config.json",),),
        "model",
        ("embeddings.token_embedding.weight",),
    ),
    Part(
        "text_encoder_2",
        "the T5 text encoder",
        "text_encoder_2",
        ("T5EncoderModel",),
        (("config.json",),),
        "model",
        ("SelfAttention.q.weight",),
    ),
    Part(
        "tokenizer",
        "the CLIP tokenizer",
        "tokenizer",
        ("CLIPTokenizer", "CLIPTokenizerFast"),
        (("tokenizer_config.json",), ("vocab.json", "tokenizer.json"), ("merges.txt", "tokenizer.json")),
    ),
    Part(
        "tokenizer_2",
        "the T5 tokenizer",
        "tokenizer_2",
        ("T5TokenizerFast", "T5Tokenizer"),
        (("tokenizer_config.json",), ("tokenizer.json", "spiece.model")),
    ),
    Part(
        "scheduler",
        "the scheduler",
        "scheduler",
        ("FlowMatchEulerDiscreteScheduler",),
        (("scheduler_config.json",),),
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
        BlockClass("single", "single_transformer_blocks", "FluxSingleTransformerBlock"),
    ),
    parts=PARTS,
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
    options=frozenset({"guidance_scale", "text_length", "true_cfg_scale"}),
)


def _number(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _config(base: Path, part: str) -> dict[str, Any]:
    """Config of a part, or {} where it can't be read: `check_part` has said so already."""
    try:
        return files.read_json(base / FACTS.part(part).folder / "config.json")
    except (OSError, ValueError):
        return {}


def _check_index(base: Path) -> list[Problem]:
    index = base / "model_index.json"
    if not index.is_file():
        hint = "a transformer alone" if (base / "config.json").is_file() else "no model_index.json in it"
        return [
            Problem(
                files.SETTING,
                None,
                f"{base} is not a model in diffusers layout ({hint})",
                "Choose the folder that holds model_index.json and the folders transformer, vae, text_encoder, ...",
            )
        ]
    try:
        data = files.read_json(index)
    except ValueError as error:
        return [Problem(files.SETTING, None, f"model_index.json {error}", "Copy the file again.")]
    found = data.get("_class_name")
    problems = []
    # The other FLUX pipelines (image to image, inpainting) hold the same parts; Kontext, Fill and Control do not.
    if found not in {FACTS.pipeline_class, "FluxImg2ImgPipeline", "FluxInpaintPipeline"}:
        problems.append(
            Problem(
                files.SETTING,
                None,
                f"model_index.json says {found or 'nothing'}, but this family needs {FACTS.pipeline_class}",
                f"Choose a {FACTS.title} model, or the family that {found or 'the model'} belongs to.",
            )
        )
    for part in FACTS.parts:
        entry = data.get(part.name)
        name = entry[1] if isinstance(entry, list) and len(entry) == 2 else None
        if name is not None and name not in part.class_names:
            problems.append(
                Problem(
                    files.SETTING,
                    None,
                    f"model_index.json gives {name} as {part.name}, but {part.title} must be {part.class_names[0]}",
                    "Use the model's own model_index.json and parts; this one was put together from two models.",
                )
            )
    return problems


def _check_fit(base: Path) -> list[Problem]:
    """Parts that are each whole but don't belong together: widths that must agree."""
    transformer, vae = _config(base, "transformer"), _config(base, "vae")
    clip, t5 = _config(base, "text_encoder"), _config(base, "text_encoder_2")
    pairs = (
        (
            "T5's width",
            _number(t5, "d_model"),
            "the transformer's text width",
            _number(transformer, "joint_attention_dim"),
        ),
        (
            "CLIP's width",
            _number(clip, "hidden_size"),
            "the transformer's pooled width",
            _number(transformer, "pooled_projection_dim"),
        ),
        (
            "the VAE's channels a token",
            None if _number(vae, "latent_channels") is None else _number(vae, "latent_channels") * PATCH * PATCH,
            "the transformer's input channels",
            _number(transformer, "in_channels"),
        ),
    )
    return [
        Problem(
            files.SETTING,
            None,
            f"parts of different models: {left_name} is {left}, {right_name} is {right}",
            "Take both parts from the same FLUX model.",
        )
        for left_name, left, right_name, right in pairs
        if left is not None and right is not None and left != right
    ]


def check_base_model(path: str | os.PathLike[str], variant: str | None = None) -> list[Problem]:
    """Every problem of the base model folder at `path`; empty when it can be loaded.

    Reads configs and safetensors headers only. `variant` is the file variant as in diffusers ("fp16").
    """
    base = Path(path)
    if base.is_file():
        return files.check_single_file(base, FACTS.title)
    if not base.is_dir():
        return [
            Problem(
                files.SETTING,
                None,
                f"the base model folder {base} does not exist",
                f"Give the folder of a {FACTS.title} model in diffusers layout.",
            )
        ]
    problems = _check_index(base)
    if not (base / "model_index.json").is_file():
        return problems
    for part in FACTS.parts:
        problems += files.check_part(base, part, variant)
    return problems + _check_fit(base)


def geometry(path: str | os.PathLike[str]) -> Geometry:
    """Geometry of the model at `path`, from vae/config.json and transformer/config.json.

    Raises ValueError when the configs can't be read or don't agree.
    """
    base = Path(path)
    vae, transformer = _config(base, "vae"), _config(base, "transformer")
    levels, channels = vae.get("block_out_channels"), _number(vae, "latent_channels")
    if not isinstance(levels, list) or not levels or channels is None:
        raise ValueError(f"{base / 'vae' / 'config.json'} gives no block_out_channels and latent_channels")
    wanted = _number(transformer, "in_channels")
    if wanted is not None and wanted != channels * PATCH * PATCH:
        raise ValueError(f"the transformer takes {wanted} channels a token, the VAE gives {channels * PATCH * PATCH}")
    return Geometry(downscale=2 ** (len(levels) - 1), patch=PATCH, latent_channels=channels)


def sizes(path: str | os.PathLike[str], variant: str | None = None) -> dict[str, int]:
    """Bytes on disk of each part's weights, by part name (parts without weights are left out)."""
    base = Path(path)
    return {part.name: files.part_bytes(base, part, variant) for part in FACTS.parts if part.weights}
