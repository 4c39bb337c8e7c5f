"""Describes HunyuanVideo (text to video): parts, layers, LoRA names, memory, and the check of a base model. Torch-free.

Class names, widths, template and text length: diffusers `HunyuanVideoPipeline` and `HunyuanVideoTransformer3DModel`
(0.42); folders: hunyuanvideo-community/HunyuanVideo.
"""

from __future__ import annotations

from backend.base.problems import Problem
from backend.families.activations import FamilyMemory, VaeActivations, joint_blocks
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair
from backend.families.files.headers import SETTING
from backend.families.files.parts import CONFIG, Part
from backend.families.hunyuan_video.layout import (
    HUNYUAN_COMFY,
    HUNYUAN_TENCENT,
    HUNYUAN_VAE,
    LLAMA,
    measure,
    measure_llama,
    measure_vae,
)
from backend.families.spec import FLOW_OPTIONS, BaseModel, BlockClass, FamilyFacts, Geometry, VideoRule

# A token is 1x2x2 latent cells; the transformer cuts them itself.
PATCH = 2

FOLDER = "hunyuan_video"

TEMPLATE = (
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
)
"""What LLaVA-Llama-3 is asked; the model was trained on the states behind these very words."""

TEMPLATE_TOKENS = 95
"""Tokens of the template before the caption: their states are left out."""

_MODEL = "hunyuanvideo-community/HunyuanVideo"


class HunyuanVideoFacts(FamilyFacts):
    """The facts of a model of HunyuanVideo's build."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths, channels and the size of a token."""
        net = {
            key: self.number(base, "transformer", key)
            for key in ("text_embed_dim", "pooled_projection_dim", "in_channels", "patch_size", "patch_size_t")
        }
        llama, clip = (self.number(base, name, "hidden_size") for name in ("text_encoder", "text_encoder_2"))
        channels = self.number(base, "vae", "latent_channels")
        return (
            ("the language model's width", llama, "the transformer's text width", net["text_embed_dim"]),
            ("CLIP's width", clip, "the transformer's pooled width", net["pooled_projection_dim"]),
            ("the VAE's channels", channels, "the transformer's input channels", net["in_channels"]),
            ("a token's side in latent cells", PATCH, "the transformer's", net["patch_size"]),
            ("latent frames a token", 1, "the transformer's", net["patch_size_t"]),
        )

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """As the class's, and relatives of HunyuanVideo that work otherwise."""
        if "clean_x_embedder.proj.weight" in base.tensors(self.part("transformer")):
            text = "the transformer is FramePack's, which looks behind the section that it makes"
            return [Problem(SETTING, None, text, "Choose the family framepack.")]
        kind = self.config(base, "transformer").get("image_condition_type")
        if kind is None:
            return super().fit(base)
        text = f"the transformer is HunyuanVideo's for images to video: its image_condition_type is {kind}"
        return [Problem(SETTING, None, text, f"Choose {self.title} itself; Monotile does not train this model yet.")]

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` as musubi-tuner spells it."""
        return "hunyuan-video/lora"


def vae(family: str) -> Part:
    """HunyuanVideo's VAE. family: the folder that holds the shipped config."""
    return Part(
        "vae",
        "the VAE",
        "vae",
        ("AutoencoderKLHunyuanVideo",),
        CONFIG,
        "diffusion_pytorch_model",
        ("encoder.conv_in.conv.weight", "decoder.mid_block.attentions.0.to_q.weight"),
        setting="vae",
        layouts=(HUNYUAN_VAE,),
        measure=measure_vae,
        shipped=f"{family}/configs/vae.json",
        where="hunyuan_video_vae_bf16.safetensors, or a VAE's folder",
    )


TEXT_PARTS = (
    parts.text_encoder(
        FOLDER,
        "text_encoder",
        "the LLaVA-Llama-3 text encoder",
        ("LlamaModel",),
        ("layers.0.self_attn.q_proj.weight", "embed_tokens.weight", "norm.weight"),
        (LLAMA,),
        measure_llama,
        f"llava_llama3_fp16.safetensors (or fp8_scaled), or the folder text_encoder of {_MODEL}",
    ),
    parts.clip(FOLDER, "text_encoder_2", f"clip_l.safetensors, or the folder text_encoder_2 of {_MODEL}"),
    parts.clip_tokenizer("tokenizer_2", f"the folder tokenizer_2 of {_MODEL} (or of openai/clip-vit-large-patch14)"),
    # the last one, which captions are counted with
    Part(
        "tokenizer",
        "the Llama tokenizer",
        "tokenizer",
        ("LlamaTokenizerFast", "LlamaTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"),
        (("tokenizer_config.json",), ("tokenizer.json",)),
        setting="tokenizer",
        where=f"the folder tokenizer of {_MODEL}",
    ),
)

MARKERS = (
    "x_embedder.proj.weight",
    "context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight",
    "single_transformer_blocks.0.proj_mlp.weight",
)

FACTS = HunyuanVideoFacts(
    name="hunyuan_video",
    title="HunyuanVideo",
    pipeline_class="HunyuanVideoPipeline",
    denoiser_class="HunyuanVideoTransformer3DModel",
    text_length=256,
    text_rule="masked",
    block_classes=(
        BlockClass("double", "transformer_blocks", "HunyuanVideoTransformerBlock"),
        BlockClass("single", "single_transformer_blocks", "HunyuanVideoSingleTransformerBlock", joint=True),
    ),
    parts=(
        Part(
            "transformer",
            "the HunyuanVideo transformer",
            "transformer",
            ("HunyuanVideoTransformer3DModel",),
            CONFIG,
            "diffusion_pytorch_model",
            MARKERS,
            layouts=(HUNYUAN_COMFY, HUNYUAN_TENCENT),
            measure=measure,
            shipped=f"{FOLDER}/configs/transformer.json",
            where="hunyuan_video_t2v_720p_bf16.safetensors or another HunyuanVideo transformer",
        ),
        vae(FOLDER),
        *TEXT_PARTS,
        parts.flow_scheduler(FOLDER),
    ),
    # diffusers reads its own names, and Tencent's in peft's spelling.
    diffusers_layers=(),
    # Attention and feed-forward of both block classes; the modulation stays as it is, as in musubi-tuner. As patterns,
    # since the text refiner's blocks have layers of the same names.
    default_targets=(
        r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)",
        r"transformer_blocks\.\d+\.(ff|ff_context)\.net\.(0\.proj|2)",
        r"single_transformer_blocks\.\d+\.(attn\.(to_q|to_k|to_v)|proj_mlp|proj_out)",
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16, frame_step=4),
    video=VideoRule(rate=24.0, frames=129, vae_frames=17),
    options=frozenset({"guidance_scale", "text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
    caption_template=TEMPLATE,
    template_tokens=TEMPLATE_TOKENS,
    # Every linear layer: ComfyUI's key map has the whole of its model behind ``lora_unet_`` and ``diffusion_model.``.
    lora_layers=(
        r"(single_)?transformer_blocks\.\d+\..+",
        r"context_embedder\..+",
        r"(proj_out|norm_out\.linear)",
        r"time_text_embed\.(timestep_embedder|guidance_embedder|text_embedder)\.linear_[12]",
    ),
    lora_also=HUNYUAN_TENCENT,
    lora_version="hunyuan_video",
    memory=FamilyMemory(
        # counted on diffusers' classes (0.42) at full size: of queries and keys also what came into their norms
        blocks=joint_blocks(half=6),
        # of a piece of 17 frames, or of a picture
        vae=VaeActivations(encode=6, decode=9),
        # the last norm's input in float32, and the rotary tables
        around=13400,
    ),
)
