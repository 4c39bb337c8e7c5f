"""Describes Qwen-Image: parts, layers, LoRA names, memory, and the check of a base model. Torch-free.

Class names, widths, template and text length: diffusers `QwenImagePipeline` and `QwenImageTransformer2DModel` (0.42);
folders: Qwen/Qwen-Image.
"""

from __future__ import annotations

from backend.base.problems import Problem
from backend.families.activations import BlockActivations, FamilyMemory, Kept, VaeActivations
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair, whole
from backend.families.files.headers import SETTING
from backend.families.qwen_image.layout import QWEN_DIT, QWEN_VL, measure, measure_qwen_vl
from backend.families.spec import FLOW_OPTIONS, BaseModel, BlockClass, FamilyFacts, Geometry

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


class QwenImageFacts(FamilyFacts):
    """The facts of a model of Qwen-Image's build."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths that must agree."""
        channels, text = self.number(base, "vae", "z_dim"), self.config(base, "text_encoder")
        return (
            (
                "the text encoder's width",
                whole(text.get("text_config") or text, "hidden_size"),
                "the transformer's text width",
                self.number(base, "transformer", "joint_attention_dim"),
            ),
            (
                "the VAE's channels a token",
                None if channels is None else channels * PATCH * PATCH,
                "the transformer's input channels",
                self.number(base, "transformer", "in_channels"),
            ),
        )

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """As the class's, and relatives of Qwen-Image that work otherwise."""
        problems, net = super().fit(base), self.config(base, "transformer")
        if net.get("zero_cond_t") and "zero_cond_t" not in self.options:
            text = "the transformer is Qwen-Image-Edit-2511's: its zero_cond_t is set"
            problems.append(Problem(SETTING, None, text, "Choose the family qwen_image_edit_plus."))
        other = [name for name in ("use_additional_t_cond", "use_layer3d_rope", "guidance_embeds") if net.get(name)]
        if other:
            text = f"the transformer is of a model like {self.title} (Layered): its {', '.join(other)} is set"
            remedy = f"Choose {self.title} itself; Monotile does not train this model yet."
            problems.append(Problem(SETTING, None, text, remedy))
        return problems

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` in the spelling that musubi-tuner began."""
        return "Qwen-Image/lora"


# Counted on diffusers' classes (0.42) at full size. Two norms of each stream and those of queries and keys in float32;
# queries, keys, values and the attention's result, and again the queries and keys that came into their norms.
STREAM = Kept(full=4, half=6)

FACTS = QwenImageFacts(
    name="qwen_image",
    title="Qwen-Image",
    pipeline_class="QwenImagePipeline",
    same_pipelines=("QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"),
    denoiser_class="QwenImageTransformer2DModel",
    text_length=512,
    text_rule="masked",
    block_classes=(BlockClass("block", "transformer_blocks", "QwenImageTransformerBlock"),),
    parts=(
        parts.denoiser(
            "qwen_image",
            "the Qwen-Image transformer",
            "QwenImageTransformer2DModel",
            ("img_in.weight", "txt_norm.weight", "transformer_blocks.0.attn.add_q_proj.weight"),
            QWEN_DIT,
            measure,
            "qwen_image_bf16.safetensors or another Qwen-Image transformer",
        ),
        parts.qwen_vae("qwen_image"),
        parts.text_encoder(
            "qwen_image",
            "text_encoder",
            "the Qwen2.5-VL text encoder",
            ("Qwen2_5_VLForConditionalGeneration",),
            ("layers.0.self_attn.q_proj.weight", "visual.patch_embed.proj.weight"),
            (QWEN_VL,),
            measure_qwen_vl,
            "qwen_2.5_vl_7b.safetensors, or the folder text_encoder of a Qwen-Image model",
        ),
        parts.qwen_tokenizer(
            "the Qwen2.5-VL tokenizer",
            "the folder tokenizer of Qwen/Qwen-Image (or of Qwen/Qwen2.5-VL-7B-Instruct)",
        ),
        parts.flow_scheduler("qwen_image"),
    ),
    # Attention and feed-forward of both streams; the modulation stays as it is, as in musubi-tuner.
    default_targets=(
        *(f"attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
        *(f"attn.{name}" for name in ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")),
        *(f"{name}.{layer}" for name in ("img_mlp", "txt_mlp") for layer in ("net.0.proj", "net.2")),
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16),
    options=frozenset({"text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
    caption_template=TEMPLATE,
    template_tokens=TEMPLATE_TOKENS,
    # What ComfyUI's key map takes: its Qwen-Image keeps diffusers' names.
    lora_layers=(
        r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)",
        r"transformer_blocks\.\d+\.(img|txt)_mlp\.net\.(0\.proj|2)",
        r"transformer_blocks\.\d+\.(img|txt)_mod\.1",
        r"(img_in|txt_in|proj_out|norm_out\.linear|time_text_embed\.timestep_embedder\.linear_[12])",
    ),
    # as musubi-tuner writes it
    lora_version="qwen_image",
    memory=FamilyMemory(
        blocks=(
            BlockActivations(
                "block",
                "attn.to_q",
                others=((r"_mod\.", "row"), (r"add_|^txt_", "text")),
                kept={"image": STREAM, "text": STREAM},
                outputs=(r"net\.0\.proj$",),
                shared=(r"to_out\.0$", r"to_add_out$"),
            ),
        ),
        vae=VaeActivations(encode=11, decode=12),
        # the last norm's input in float32, and the rotary tables
        around=13400,
    ),
)
