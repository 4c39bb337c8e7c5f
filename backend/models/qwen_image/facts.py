"""Torch-free facts of Qwen-Image, and the check of a base model before anything loads.

Class names, widths, template and text length: diffusers `QwenImagePipeline` and `QwenImageTransformer2DModel` (0.42);
folders: Qwen/Qwen-Image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.models.base import Base
from backend.models.check import check_files
from backend.models.files import SETTING
from backend.models.fit import config_of, differing, video_vae_geometry, whole
from backend.models.spec import FLOW_OPTIONS, BlockClass, FamilyFacts, Geometry, Part

# A token is 2x2 latent cells, packed outside the transformer.
PATCH = 2

TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""What Qwen2.5-VL is asked; the model was trained on the states behind these very words."""

TEMPLATE_TOKENS = 34
"""Tokens of the template before the caption: their states are left out."""

MOST_TOKENS = 1024
"""Tokens behind those that the pipeline lets the text encoder read."""

# Pipelines that hold the same parts.
SAME_PARTS = ("QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline")

PARTS = (
    Part(
        "transformer",
        "the Qwen-Image transformer",
        "transformer",
        ("QwenImageTransformer2DModel",),
        (("config.json",),),
        "diffusion_pytorch_model",
        ("img_in.weight", "txt_norm.weight", "transformer_blocks.0.attn.add_q_proj.weight"),
        layouts=("qwen_dit",),
        shipped="qwen_image/configs/transformer.json",
        where="qwen_image_bf16.safetensors or another Qwen-Image transformer",
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
        shipped="qwen_image/configs/vae.json",
        where="qwen_image_vae.safetensors, or a VAE's folder",
    ),
    Part(
        "text_encoder",
        "the Qwen2.5-VL text encoder",
        "text_encoder",
        ("Qwen2_5_VLForConditionalGeneration",),
        (("config.json",),),
        "model",
        ("layers.0.self_attn.q_proj.weight", "visual.patch_embed.proj.weight"),
        setting="text_encoder",
        layouts=("qwen_vl",),
        shipped="qwen_image/configs/text_encoder.json",
        where="qwen_2.5_vl_7b.safetensors, or the folder text_encoder of a Qwen-Image model",
    ),
    Part(
        "tokenizer",
        "the Qwen2.5-VL tokenizer",
        "tokenizer",
        ("Qwen2Tokenizer", "Qwen2TokenizerFast"),
        (("tokenizer_config.json",), ("vocab.json", "tokenizer.json"), ("merges.txt", "tokenizer.json")),
        setting="tokenizer",
        where="the folder tokenizer of Qwen/Qwen-Image (or of Qwen/Qwen2.5-VL-7B-Instruct)",
    ),
    Part(
        "scheduler",
        "the scheduler",
        "scheduler",
        ("FlowMatchEulerDiscreteScheduler",),
        (("scheduler_config.json",),),
        shipped="qwen_image/configs/scheduler.json",
    ),
)

FACTS = FamilyFacts(
    name="qwen_image",
    title="Qwen-Image",
    pipeline_class="QwenImagePipeline",
    denoiser_class="QwenImageTransformer2DModel",
    text_length=512,
    text_rule="masked",
    block_classes=(BlockClass("block", "transformer_blocks", "QwenImageTransformerBlock"),),
    parts=PARTS,
    # Attention and feed-forward of both streams; the modulation stays as it is, as in musubi-tuner.
    default_targets=(
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
        "img_mlp.net.0.proj",
        "img_mlp.net.2",
        "txt_mlp.net.0.proj",
        "txt_mlp.net.2",
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16),
    options=frozenset({"text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
    caption_template=TEMPLATE,
    template_tokens=TEMPLATE_TOKENS,
)


def _check_fit(base: Base, of: FamilyFacts) -> list[Problem]:
    """Parts that are each whole but don't belong together, and relatives of Qwen-Image that work otherwise."""
    net, vae, text = (config_of(base, FACTS, name) for name in ("transformer", "vae", "text_encoder"))
    channels = whole(vae, "z_dim")
    language = text.get("text_config") or text
    pairs = (
        (
            "the text encoder's width",
            whole(language, "hidden_size"),
            "the transformer's text width",
            whole(net, "joint_attention_dim"),
        ),
        (
            "the VAE's channels a token",
            None if channels is None else channels * PATCH * PATCH,
            "the transformer's input channels",
            whole(net, "in_channels"),
        ),
    )
    problems = differing(pairs, of.title)
    if net.get("zero_cond_t") and "zero_cond_t" not in of.options:
        said = "the transformer is Qwen-Image-Edit-2511's: its zero_cond_t is set"
        problems.append(Problem(SETTING, None, said, "Choose the family qwen_image_edit_plus."))
    other = [name for name in ("use_additional_t_cond", "use_layer3d_rope", "guidance_embeds") if net.get(name)]
    if other:
        said = f"the transformer is of a relative of {of.title} (Layered): its {', '.join(other)} is set"
        problems.append(Problem(SETTING, None, said, f"Give {of.title} itself; this relative is not trained here yet."))
    return problems


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; empty when it can be loaded. Reads configs and safetensors headers only."""
    return check(Base.at(base, variant), FACTS, SAME_PARTS)


def check(base: Base, of: FamilyFacts, pipelines: tuple[str, ...]) -> list[Problem]:
    """The same for a model of this build whose facts are `of`. pipelines: that model_index.json may name too."""
    problems = check_files(base, of, pipelines)
    return problems if base.path is None or not base.path.exists() else problems + _check_fit(base, of)


def geometry(base: Base | Path) -> Geometry:
    """Geometry of the model, from the config of its VAE; ValueError when it can't be read."""
    return video_vae_geometry(Base.at(base), FACTS, PATCH)


def scheduler_config(base: Base | Path) -> dict[str, Any]:
    """The scheduler's config; ValueError when it can't be read."""
    return Base.at(base).config(FACTS.part("scheduler"))
