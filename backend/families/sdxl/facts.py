"""Describes SDXL: parts, blocks, memory, and the check of a base model. Torch-free.

Widths and class names: diffusers `StableDiffusionXLPipeline` and `UNet2DConditionModel` (0.42).
"""

from __future__ import annotations

from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair
from backend.families.files.layouts.autoencoder import LDM_VAE
from backend.families.files.layouts.text import HF_CLIP, HF_CLIP_G, OPEN_CLIP
from backend.families.spec import BaseModel, BlockClass, Geometry
from backend.families.unet import unet_facts
from backend.families.unet.unet_facts import UnetFacts

LEVELS = 3
_TIME_IDS = 6
_TIME_WIDTH = 256
_REPOSITORY = "stabilityai/stable-diffusion-xl-base-1.0"


class SdxlFacts(UnetFacts):
    """The facts of SDXL."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths and channels."""
        widths = [self.number(base, name, "hidden_size") for name in ("text_encoder", "text_encoder_2")]
        added = self.number(base, "unet", "projection_class_embeddings_input_dim")
        times = self.number(base, "unet", "addition_time_embed_dim") or _TIME_WIDTH
        return (
            (
                "the width of both text encoders",
                None if None in widths else sum(widths),
                "the UNet's text width",
                self.number(base, "unet", "cross_attention_dim"),
            ),
            (
                "the larger text encoder's pooled width",
                self.number(base, "text_encoder_2", "projection_dim"),
                "the UNet's",
                None if added is None else added - _TIME_IDS * times,
            ),
            (
                "the VAE's channels",
                self.number(base, "vae", "latent_channels"),
                "the UNet's input channels",
                self.number(base, "unet", "in_channels"),
            ),
        )

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` as sd-scripts writes it."""
        try:
            velocity = self.scheduler_config(base).get("prediction_type") == "v_prediction"
        except (OSError, ValueError):
            velocity = False
        return "stable-diffusion-xl-v1-base-v/lora" if velocity else "stable-diffusion-xl-v1-base/lora"


FACTS = SdxlFacts(
    name="sdxl",
    title="SDXL",
    pipeline_class="StableDiffusionXLPipeline",
    # image to image
    same_pipelines=("StableDiffusionXLImg2ImgPipeline",),
    block_classes=(
        BlockClass("level1", unet_facts.level(1, LEVELS), "BasicTransformerBlock"),
        BlockClass(
            "level2",
            unet_facts.level(2, LEVELS) + r"|mid_block\.attentions\.\d+\.transformer_blocks",
            "BasicTransformerBlock",
        ),
    ),
    parts=(
        unet_facts.unet("sdxl", "an SDXL checkpoint such as sd_xl_base_1.0.safetensors"),
        parts.kl_vae("sdxl", "a VAE such as sdxl_vae.safetensors, or a VAE's folder"),
        unet_facts.clip("sdxl", "clip_l.safetensors, or the folder text_encoder of an SDXL model"),
        parts.large_clip(
            "sdxl",
            "text_encoder_2",
            "clip_g.safetensors, or the folder text_encoder_2 of an SDXL model",
            (OPEN_CLIP, HF_CLIP_G),
            ("embeddings.token_embedding.weight", "text_projection.weight"),
        ),
        parts.clip_tokenizer("tokenizer", f"the folder tokenizer of {_REPOSITORY}"),
        parts.clip_tokenizer("tokenizer_2", f"the folder tokenizer_2 of {_REPOSITORY}", "the larger CLIP's tokenizer"),
        unet_facts.scheduler("sdxl"),
    ),
    default_geometry=Geometry(downscale=8, patch=2 ** (LEVELS - 1), latent_channels=4),
    levels=LEVELS,
    # as sd-scripts writes it
    lora_version="sdxl_base_v1-0",
    # sd-scripts keeps this UNet in latent diffusion's names: by diffusers' it would load nothing, without a word, and
    # A1111 all but one upsampler and two embedders
    kohya_native=True,
    checkpoint={
        "text_encoder": (HF_CLIP, "conditioner.embedders.0.transformer."),
        "text_encoder_2": (OPEN_CLIP, "conditioner.embedders.1.model."),
        "vae": (LDM_VAE, "first_stage_model."),
    },
    memory=unet_facts.memory({"level1": 4, "level2": 1}, around=1_557_000, levels=LEVELS),
)
