"""Describes Wan 2.1, text to video: parts, layers, LoRA names, memory, and the check of a base model. Torch-free.

Class names and text length: diffusers `WanPipeline` and `WanTransformer3DModel` (0.42); folders:
Wan-AI/Wan2.1-T2V-1.3B-Diffusers, Wan-AI/Wan2.1-T2V-14B-Diffusers. A picture is a clip of one frame.
"""

from __future__ import annotations

from backend.base.problems import Problem
from backend.families.activations import BlockActivations, FamilyMemory, Kept, VaeActivations
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair
from backend.families.files.headers import SETTING
from backend.families.spec import FLOW_OPTIONS, BaseModel, BlockClass, FamilyFacts, Geometry, VideoRule
from backend.families.wan.layout import WAN_DIT, measure

PATCH = 2

PADDED_TO = 512
"""Text rows that the transformer sees: a caption's own, then zeros. No mask takes the zeros out, so that all of them
are one and the same key and value."""

_TEXT_ENCODER = "umt5_xxl_fp16.safetensors or another umT5-XXL text encoder in safetensors"


class WanFacts(FamilyFacts):
    """The facts of a model of Wan's build."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths and channels."""
        return (
            (
                "the text encoder's width",
                self.number(base, "text_encoder", "d_model"),
                "the transformer's text width",
                self.number(base, "transformer", "text_dim"),
            ),
            (
                "the VAE's channels",
                self.number(base, "vae", "z_dim"),
                "the transformer's output channels",
                self.number(base, "transformer", "out_channels"),
            ),
        )

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """As the class's, and relatives of the model that take more than it, or see larger cells."""
        problems, net = super().fit(base), self.config(base, "transformer")
        inputs, outputs = net.get("in_channels"), net.get("out_channels")
        if inputs != outputs and inputs is not None and outputs is not None:
            text = f"the transformer takes {inputs} channels, of which {outputs} are noise: it starts from a picture"
            family = "wan22_i2v" if net.get("image_dim") is None else "wan_i2v"
            return [Problem(SETTING, None, text, f"Choose a {self.title} text-to-video model, or the family {family}.")]
        patched = bool(self.config(base, "vae").get("patch_size"))
        if not problems and patched != (self.default_geometry.downscale == 16):
            text = f"the VAE is that of Wan {'2.2 5B' if patched else '2.1'}, and so is the transformer"
            remedy = f"Choose the family {'wan22_5b' if patched else 'wan'}."
            return [Problem(SETTING, None, text, remedy)]
        return problems or self.of_experts(base)

    def of_experts(self, base: BaseModelFiles) -> list[Problem]:
        """What is wrong with a folder that holds the two experts of Wan 2.2."""
        if not has_experts(base):
            return []
        text = "the folder holds two transformers, for high and for low noise: it is of Wan 2.2"
        family = "wan22_i2v" if self.video is not None and self.video.starts else "wan22"
        return [Problem(SETTING, None, text, f"Choose the family {family}.")]

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` in the spelling that musubi-tuner began."""
        return "wan2.1/lora"


def has_experts(base: BaseModelFiles) -> bool:
    """Whether the base model is a folder with the two experts of Wan 2.2."""
    return base.path is not None and (base.path / "transformer_2").is_dir()


# Counted on diffusers' classes (0.42) at full size. In float32: three norms of the stream, those of the clip's queries
# and keys and of the queries of text. Queries, keys, values and the first attention's result; the second's queries and
# result.
BLOCK = BlockActivations(
    "block",
    "attn1.to_q",
    others=((r"attn2\.to_[kv]$", "text"),),
    kept={"image": Kept(full=6, half=6), "text": Kept(full=1, half=2)},
    outputs=(r"net\.0\.proj$",),
    # one norm's result goes to queries, keys and values; the text is the same for all blocks
    same=(r"attn[12]\.to_[kv]$", r"to_out\.0$"),
)

PARTS = (
    parts.denoiser(
        "wan",
        "the Wan transformer",
        "WanTransformer3DModel",
        ("patch_embedding.weight", "blocks.0.attn2.to_k.weight", "condition_embedder.time_proj.weight"),
        WAN_DIT,
        measure,
        "wan2.1_t2v_14B_bf16.safetensors, wan2.1_t2v_1.3B_bf16.safetensors or another Wan transformer",
    ),
    parts.wan_vae("wan"),
    parts.umt5("wan", _TEXT_ENCODER),
    parts.t5_tokenizer(
        "tokenizer",
        "the folder tokenizer of Wan-AI/Wan2.1-T2V-1.3B-Diffusers (or of google/umt5-xxl)",
        title="the umT5 tokenizer",
    ),
    parts.scheduler("wan", ("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler")),
)

# Attention and feed-forward, as in musubi-tuner.
_TARGETS = (
    *(f"{attention}.{name}" for attention in ("attn1", "attn2") for name in ("to_q", "to_k", "to_v", "to_out.0")),
    "ffn.net.0.proj",
    "ffn.net.2",
)

FACTS = WanFacts(
    name="wan",
    title="Wan 2.1",
    pipeline_class="WanPipeline",
    same_pipelines=("WanVideoToVideoPipeline",),
    denoiser_class="WanTransformer3DModel",
    text_length=PADDED_TO,
    text_rule="sink",
    block_classes=(BlockClass("block", "blocks", "WanTransformerBlock"),),
    parts=PARTS,
    default_targets=_TARGETS,
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16, frame_step=4),
    video=VideoRule(rate=16.0, frames=81),
    options=frozenset({"text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
    diffusers_layers=(r"blocks\.\d+\..+",),
    # its converter of musubi-tuner's files looks each of these up, in every block up to the last
    diffusers_together=(_TARGETS,),
    # What ComfyUI's key map takes, under the published names of the weights.
    lora_layers=(
        r"blocks\.\d+\.attn[12]\.(to_q|to_k|to_v|to_out\.0)",
        r"blocks\.\d+\.ffn\.net\.(0\.proj|2)",
        r"condition_embedder\.(time_proj|(text|time)_embedder\.linear_[12])",
        r"proj_out",
    ),
    # as musubi-tuner writes it
    lora_version="wan",
    memory=FamilyMemory(blocks=(BLOCK,), vae=VaeActivations(encode=11, decode=12), around=1024, around_full=1),
)
