"""Describes Stable Diffusion 1.5 and its like: parts, blocks, memory, and the check of a base model. Torch-free.

Widths and class names: diffusers `StableDiffusionPipeline` and `UNet2DConditionModel` (0.42). Stable Diffusion 2 has
the same build with another text encoder and often v-prediction, which its own configs say.
"""

from __future__ import annotations

from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair
from backend.families.files.layouts.autoencoder import LDM_VAE
from backend.families.files.layouts.text import HF_CLIP
from backend.families.spec import BaseModel, BlockClass, Geometry
from backend.families.unet import unet_facts
from backend.families.unet.unet_facts import UnetFacts

LEVELS = 4
_WIDTH_V2 = 1024


class Sd15Facts(UnetFacts):
    """The facts of Stable Diffusion 1.5 and 2."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths and channels."""
        return (
            (
                "the text encoder's width",
                self.number(base, "text_encoder", "hidden_size"),
                "the UNet's text width",
                self.number(base, "unet", "cross_attention_dim"),
            ),
            (
                "the VAE's channels",
                self.number(base, "vae", "latent_channels"),
                "the UNet's input channels",
                self.number(base, "unet", "in_channels"),
            ),
        )

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` as sd-scripts writes it; version 2 is known by its width."""
        second = self.number(base, "text_encoder", "hidden_size") == _WIDTH_V2
        return "stable-diffusion-v2-512/lora" if second else "stable-diffusion-v1/lora"


FACTS = Sd15Facts(
    name="sd15",
    title="Stable Diffusion 1.5",
    pipeline_class="StableDiffusionPipeline",
    same_pipelines=("StableDiffusionImg2ImgPipeline",),
    block_classes=(
        *(BlockClass(f"level{n}", unet_facts.level(n, LEVELS), "BasicTransformerBlock") for n in range(LEVELS - 1)),
        # as wide as level 2, but with a quarter of its tokens
        BlockClass("mid", r"mid_block\.attentions\.\d+\.transformer_blocks", "BasicTransformerBlock"),
    ),
    parts=(
        unet_facts.unet("sd15", "a Stable Diffusion 1.5 checkpoint such as v1-5-pruned-emaonly.safetensors"),
        parts.kl_vae("sd15", "a VAE such as vae-ft-mse-840000-ema-pruned.safetensors, or a VAE's folder"),
        unet_facts.clip("sd15", "clip_l.safetensors, or the folder text_encoder of a Stable Diffusion 1.5 model"),
        parts.clip_tokenizer(
            "tokenizer", "the folder tokenizer of stable-diffusion-v1-5 (or of openai/clip-vit-large-patch14)"
        ),
        unet_facts.scheduler("sd15"),
    ),
    default_geometry=Geometry(downscale=8, patch=2 ** (LEVELS - 1), latent_channels=4),
    levels=LEVELS,
    checkpoint={
        "text_encoder": (HF_CLIP, "cond_stage_model.transformer."),
        "vae": (LDM_VAE, "first_stage_model."),
    },
    # as sd-scripts writes it
    lora_version="sd_v1",
    # sd-scripts, ComfyUI, A1111, Forge and diffusers take diffusers' names of it
    kohya_native=False,
    memory=unet_facts.memory({"level0": 64, "level1": 16, "level2": 4, "mid": 1}, around=7_395_000, levels=LEVELS),
)
