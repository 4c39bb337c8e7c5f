"""Describes FLUX.1 and FLUX.1 Kontext: parts, layers, LoRA names, memory, and the check of a base model. Torch-free.

Widths and class names: diffusers `FluxPipeline`, `FluxKontextPipeline` and `FluxTransformer2DModel`
(transformer_flux.py, 0.42).
"""

from __future__ import annotations

from typing import Any

from backend.base.problems import Problem
from backend.families.activations import FamilyMemory, VaeActivations, joint_blocks
from backend.families.files import parts
from backend.families.files.base_model import SHIPPED, BaseModelFiles
from backend.families.files.fit import Pair
from backend.families.files.headers import SETTING, read_json
from backend.families.flux.layout import FLUX_BFL, XLABS_LORA, measure
from backend.families.spec import FLOW_OPTIONS, BaseModel, BlockClass, Controls, FamilyFacts, Geometry

# A FLUX token is 2x2 latent cells: the patch is packed outside the transformer (its own patch_size is 1).
PATCH = 2


class FluxFacts(FamilyFacts):
    """The facts of a model of FLUX.1's build."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths that must agree."""
        channels = self.number(base, "vae", "latent_channels")
        return (
            (
                "T5's width",
                self.number(base, "text_encoder_2", "d_model"),
                "the transformer's text width",
                self.number(base, "transformer", "joint_attention_dim"),
            ),
            (
                "CLIP's width",
                self.number(base, "text_encoder", "hidden_size"),
                "the transformer's pooled width",
                self.number(base, "transformer", "pooled_projection_dim"),
            ),
            (
                "the VAE's channels a token",
                None if channels is None else channels * PATCH * PATCH,
                "the transformer's input channels",
                self.number(base, "transformer", "in_channels"),
            ),
        )

    def geometry(self, base: BaseModel) -> Geometry:
        """As the class's; ValueError also when the transformer takes other channels than the VAE gives."""
        usual = super().geometry(base)
        wanted, channels = self.number(base, "transformer", "in_channels"), usual.latent_channels * PATCH * PATCH
        if wanted is not None and wanted != channels:
            raise ValueError(f"the transformer takes {wanted} channels a token, the VAE gives {channels}")
        return usual

    def scheduler_config(self, base: BaseModel) -> dict[str, Any]:
        """As the class's; for single files that of dev or schnell, told by the guidance input."""
        base = BaseModelFiles.at(base)
        guided = self.config(base, "transformer").get("guidance_embeds")
        if base.place(self.part("scheduler")) is None and guided is False:
            return read_json(SHIPPED / "flux/configs/scheduler_schnell.json")
        return super().scheduler_config(base)

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture``: told by the guidance embedding, dev or schnell."""
        try:
            guided = BaseModelFiles.at(base).config(self.part("transformer")).get("guidance_embeds")
        except (OSError, ValueError):
            return "flux-1/lora"
        return "flux-1-dev/lora" if guided else "flux-1-schnell/lora"


class KontextFacts(FluxFacts):
    """The facts of FLUX.1 Kontext: a control picture stands behind the image tokens.

    Its transformer can't be told from FLUX.1-dev's by its tensors, so that a person chooses the family.
    """

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """As FLUX's, and whether the transformer has an input for guidance."""
        problems = super().fit(base)
        if problems or self.config(base, "transformer").get("guidance_embeds", True):
            return problems
        text = "the transformer has no guidance input (like FLUX.1 schnell), but Kontext has one"
        return [Problem(SETTING, None, text, "Choose a FLUX.1 Kontext model, or the family flux.")]


PARTS = (
    parts.denoiser(
        "flux",
        "the FLUX transformer",
        "FluxTransformer2DModel",
        ("x_embedder.weight", "transformer_blocks.0.attn.to_q.weight", "single_transformer_blocks.0.proj_mlp.weight"),
        FLUX_BFL,
        measure,
        "flux1-dev.safetensors or another FLUX.1 transformer",
    ),
    parts.kl_vae("flux", "FLUX's ae.safetensors, or a VAE's folder"),
    parts.clip("flux", "text_encoder", "clip_l.safetensors, or the folder text_encoder of a FLUX.1 model"),
    parts.t5(
        "flux",
        "text_encoder_2",
        "t5xxl_fp16.safetensors (or fp8), or the folder text_encoder_2 of a FLUX.1 model",
    ),
    parts.clip_tokenizer(
        "tokenizer", "the folder tokenizer of black-forest-labs/FLUX.1-dev (or of openai/clip-vit-large-patch14)"
    ),
    parts.t5_tokenizer(
        "tokenizer_2", "the folder tokenizer_2 of black-forest-labs/FLUX.1-dev (or of google/t5-v1_1-xxl)"
    ),
    parts.flow_scheduler("flux"),
)

LORA_LAYERS: tuple[str, ...] = (
    r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v|add_q_proj|add_k_proj|add_v_proj|to_out\.0|to_add_out)",
    r"transformer_blocks\.\d+\.(norm1|norm1_context)\.linear",
    r"transformer_blocks\.\d+\.(ff|ff_context)\.net\.(0\.proj|2)",
    r"single_transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v)",
    r"single_transformer_blocks\.\d+\.(proj_mlp|proj_out)",
    r"single_transformer_blocks\.\d+\.norm\.linear",
    r"(x_embedder|context_embedder|proj_out|norm_out\.linear)",
    r"time_text_embed\.(timestep_embedder|guidance_embedder|text_embedder)\.(linear_1|linear_2)",
)
"""What ComfyUI's key map of FLUX (``flux_to_diffusers`` in comfy/utils.py) takes behind the prefix ``transformer.``;
diffusers takes every linear layer."""

# Counted on diffusers' classes (0.42) at full size. Two norms of the stream and those of queries and keys in float32;
# queries, keys, values and the attention's result.
MEMORY = FamilyMemory(
    blocks=joint_blocks(half=4),
    vae=VaeActivations(encode=5, decode=6),
)

FACTS = FluxFacts(
    name="flux",
    title="FLUX.1",
    pipeline_class="FluxPipeline",
    # image to image, inpainting; Fill and Control hold others
    same_pipelines=("FluxImg2ImgPipeline", "FluxInpaintPipeline"),
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
    lora_layers=LORA_LAYERS,
    lora_version="flux1",
    lora_also=XLABS_LORA,
    memory=MEMORY,
)

KONTEXT = KontextFacts.based_on(
    FACTS,
    name="flux_kontext",
    title="FLUX.1 Kontext",
    pipeline_class="FluxKontextPipeline",
    same_pipelines=("FluxKontextInpaintPipeline",),
    controls=Controls(),
)
