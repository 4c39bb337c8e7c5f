"""Describes Anima: parts, layers, LoRA names, memory, and the check of a base model. Torch-free.

Anima is a Cosmos Predict2 transformer whose text comes from Qwen3 through a conditioner that asks with the ids of T5's
tokenizer. Class names: diffusers `AnimaModularPipeline` (0.42); folders: circlestone-labs/Anima-Base-v1.0-Diffusers.
"""

from __future__ import annotations

from backend.base.problems import Problem
from backend.families.activations import BlockActivations, FamilyMemory, Kept, VaeActivations
from backend.families.anima.layout import ANIMA_ADAPTER, ANIMA_DIT, QWEN3, measure, measure_conditioner, measure_qwen3
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair
from backend.families.files.headers import SETTING
from backend.families.spec import FLOW_OPTIONS, BaseModel, BlockClass, FamilyFacts, Geometry

PATCH = 2

PADDED_TO = 512
"""Text rows that the transformer sees at least: a caption's own, then zeros (``min_sequence_length`` of
`AnimaTextConditioner`). No mask takes the zeros out, so that they are attention sinks."""

_REPOSITORY = "circlestone-labs/Anima-Base-v1.0-Diffusers"


class AnimaFacts(FamilyFacts):
    """The facts of Anima."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths and channels."""
        return (
            (
                "Qwen3's width",
                self.number(base, "text_encoder", "hidden_size"),
                "the conditioner's source",
                self.number(base, "text_conditioner", "source_dim"),
            ),
            (
                "the conditioner's width",
                self.number(base, "text_conditioner", "target_dim"),
                "the transformer's text width",
                self.number(base, "transformer", "text_embed_dim"),
            ),
            (
                "the VAE's channels",
                self.number(base, "vae", "z_dim"),
                "the transformer's input channels",
                self.number(base, "transformer", "in_channels"),
            ),
        )

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """As the class's, and other Cosmos models: learned positions, further inputs, other patches."""
        problems, net = super().fit(base), self.config(base, "transformer")
        if net.get("_class_name") != self.denoiser_class:
            return problems
        usual = {"extra_pos_embed_type": None, "use_crossattn_projection": False, "img_context_dim_in": None}
        other = [name for name, value in usual.items() if net.get(name, value) != value]
        other += ["patch_size"] if list(net.get("patch_size", (1, PATCH, PATCH))) != [1, PATCH, PATCH] else []
        if not other:
            return problems
        text = f"the transformer is of another Cosmos model than Anima: its {', '.join(other)} differs"
        return [
            *problems,
            Problem(SETTING, None, text, "Choose an Anima model; Monotile does not train other Cosmos models."),
        ]

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` in the spelling that sd-scripts began."""
        return "anima-preview/lora"


PARTS = (
    parts.denoiser(
        "anima",
        "the Anima transformer",
        "CosmosTransformer3DModel",
        ("patch_embed.proj.weight", "transformer_blocks.0.attn2.to_q.weight"),
        ANIMA_DIT,
        measure,
        "anima-base-v1.0.safetensors or another Anima transformer",
    ),
    parts.denoiser(
        "anima",
        "Anima's text conditioner",
        "AnimaTextConditioner",
        ("embed.weight", "blocks.0.cross_attn.q_proj.weight"),
        ANIMA_ADAPTER,
        measure_conditioner,
        "the Anima transformer's own file, which holds it",
        "text_conditioner",
    ),
    parts.qwen_vae("anima"),
    parts.text_encoder(
        "anima",
        "text_encoder",
        "the Qwen3 text encoder",
        ("Qwen3Model", "Qwen3ForCausalLM"),
        ("layers.0.self_attn.q_norm.weight", "embed_tokens.weight"),
        (QWEN3,),
        measure_qwen3,
        "qwen_3_06b_base.safetensors, or the folder text_encoder of an Anima model",
    ),
    parts.qwen_tokenizer("the Qwen3 tokenizer", f"the folder tokenizer of {_REPOSITORY} (or of Qwen/Qwen3-0.6B-Base)"),
    # the last of the tokenizers: the text that the transformer sees has a row for each of its tokens
    parts.t5_tokenizer(
        "tokenizer_2", f"the folder t5_tokenizer of {_REPOSITORY} (or of google/t5-v1_1-xxl)", "t5_tokenizer"
    ),
    parts.flow_scheduler("anima"),
)

FACTS = AnimaFacts(
    name="anima",
    title="Anima",
    pipeline_class="AnimaModularPipeline",
    denoiser_class="CosmosTransformer3DModel",
    text_length=PADDED_TO,
    text_rule="sink",
    block_classes=(BlockClass("block", "transformer_blocks", "CosmosTransformerBlock"),),
    parts=PARTS,
    # Attention and feed-forward; the small matrices of the modulation stay as they are, as in sd-scripts.
    diffusers_layers=(),
    default_targets=(
        "attn1.to_q",
        "attn1.to_k",
        "attn1.to_v",
        "attn1.to_out.0",
        "attn2.to_q",
        "attn2.to_k",
        "attn2.to_v",
        "attn2.to_out.0",
        "ff.net.0.proj",
        "ff.net.2",
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16),
    options=frozenset({"text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
    # What ComfyUI's key map takes, under the published names of the weights (``blocks.0.self_attn.q_proj``);
    # diffusers' converter takes the same.
    lora_layers=(
        r"transformer_blocks\.\d+\.attn[12]\.(to_q|to_k|to_v|to_out\.0)",
        r"transformer_blocks\.\d+\.ff\.net\.(0\.proj|2)",
        r"transformer_blocks\.\d+\.norm[123]\.linear_[12]",
        r"(patch_embed\.proj|proj_out|norm_out\.linear_[12]|time_embed\.t_embedder\.linear_[12])",
    ),
    # as sd-scripts writes it
    lora_version="anima",
    # Counted on diffusers' classes (0.42) at full size. Three norms of the stream, and those of the queries and keys of
    # both attentions, in float32; what both attentions are given and give, and their normed queries and keys.
    memory=FamilyMemory(
        blocks=(
            BlockActivations(
                "block",
                "attn1.to_q",
                others=((r"attn2\.to_[kv]$", "text"), (r"^norm", "row")),
                kept={"image": Kept(full=6, half=7), "text": Kept(full=1, half=3)},
                outputs=(r"net\.0\.proj$",),
            ),
        ),
        vae=VaeActivations(encode=11, decode=12),
        around=9400,
    ),
)
