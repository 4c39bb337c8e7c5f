"""Describes SD3 and SD3.5 (medium, large): parts, blocks, LoRA names, memory, the check of a base model. Torch-free.

Widths and class names: diffusers `StableDiffusion3Pipeline` and `SD3Transformer2DModel` (0.42). What the published
models differ in (layers, width, norms of queries and keys, blocks with a second attention) is read from their configs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from backend.base.problems import Problem
from backend.families.activations import BlockActivations, FamilyMemory, Kept, VaeActivations
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.check import Families
from backend.families.files.fit import Pair
from backend.families.sd3.layout import SD3_MMDIT, measure
from backend.families.spec import FLOW_OPTIONS, BaseModel, BlockClass, FamilyFacts, Geometry

# A token is 2x2 latent cells; the transformer cuts them itself.
PATCH = 2

CLIP_TOKENS = 77
"""Tokens that both CLIP encoders read; their states come before T5's."""

_MODEL = "an SD3 or SD3.5 model"
_MOST = "pos_embed_max_size"


class Sd3Facts(FamilyFacts):
    """The facts of SD3 and SD3.5."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Widths, channels and the size of a token."""
        clips = [self.number(base, name, "projection_dim") for name in ("text_encoder", "text_encoder_2")]
        net = {
            key: self.number(base, "transformer", key)
            for key in ("joint_attention_dim", "pooled_projection_dim", "in_channels", "patch_size")
        }
        t5, channels = self.number(base, "text_encoder_3", "d_model"), self.number(base, "vae", "latent_channels")
        pooled = None if None in clips else sum(clips)
        return (
            ("T5's width", t5, "the transformer's text width", net["joint_attention_dim"]),
            ("the pooled width of both CLIP encoders", pooled, "the transformer's", net["pooled_projection_dim"]),
            ("the VAE's channels", channels, "the transformer's input channels", net["in_channels"]),
            ("a token's side in latent cells", PATCH, "the transformer's", net["patch_size"]),
        )

    def check_base_model(
        self, base: BaseModel, variant: str | None = None, families: Families | None = None
    ) -> list[Problem]:
        """As the class's; T5 may be missing, which is a warning, and with it goes its tokenizer."""
        base = BaseModelFiles.at(base, variant)
        problems = super().check_base_model(base, families=families or {})
        if problems:
            # of a wrong base model it goes without saying what T5 would be good for
            return problems
        if base.place(self.part("text_encoder_3")) is None:
            text = "SD3 is trained without T5: captions go through its two CLIP encoders only, with 77 tokens"
            remedy = "Set text_encoder_3 to t5xxl_fp16.safetensors, and tokenizer_3, for longer captions."
            return [Problem("model.text_encoder_3", None, text, remedy, "warning")]
        tokenizer = self.part("tokenizer_3")
        if base.place(tokenizer) is None:
            text = "the T5 tokenizer is missing, which the T5 text encoder needs"
            return [Problem("model.tokenizer_3", None, text, f"Set tokenizer_3 to {tokenizer.where}.")]
        return []

    def geometry(self, base: BaseModel) -> Geometry:
        """As the class's; positions are a square table, of which a picture gets the middle: no side is longer."""
        most = self.number(base, "transformer", _MOST)
        if most is None:
            raise ValueError(f"the config of the transformer of {BaseModelFiles.at(base).path} gives no {_MOST}")
        return replace(super().geometry(base), most_side=most)

    def narrowed(self, base: BaseModel) -> FamilyFacts:
        """The facts with the block classes of this model; the family's own where its config can't be read."""
        net = self.config(base, "transformer")
        layers, dual = self.number(base, "transformer", "num_layers"), net.get("dual_attention_layers") or []
        return self if layers is None or layers < 1 else replace(self, block_classes=block_classes(layers, dual))

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` as sd-scripts spells it, told by norms and second attention."""
        try:
            net = BaseModelFiles.at(base).config(self.part("transformer"))
        except (OSError, ValueError):
            return "stable-diffusion-3/lora"
        if not net.get("qk_norm"):
            return "stable-diffusion-3-medium/lora"
        return f"stable-diffusion-3-5-{'medium' if net.get('dual_attention_layers') else 'large'}/lora"


def block_classes(layers: int, dual: Collection[int]) -> tuple[BlockClass, ...]:
    """The block classes of a model of so many layers, in the order in which they run, those that it has none of left
    out. dual: layers with a second attention, of the picture alone.

    All are in one list and of one class; a block's number tells which it is. The last one drops its text.
    """
    numbers = {
        "dual": [n for n in range(layers - 1) if n in dual],
        "joint": [n for n in range(layers - 1) if n not in dual],
        "last": [layers - 1],
    }
    return tuple(
        BlockClass(name, rf"transformer_blocks(?=\.(?:{'|'.join(map(str, which))})\.)", "JointTransformerBlock")
        for name, which in numbers.items()
        if which
    )


PARTS = (
    parts.denoiser(
        "sd3",
        "the SD3 transformer",
        "SD3Transformer2DModel",
        ("pos_embed.pos_embed", "context_embedder.weight", "transformer_blocks.0.attn.add_q_proj.weight"),
        SD3_MMDIT,
        measure,
        "sd3_medium.safetensors, sd3.5_large.safetensors or another SD3 checkpoint",
    ),
    parts.kl_vae("sd3", f"the checkpoint of {_MODEL}, which holds it, or a VAE's folder"),
    parts.clip(
        "sd3",
        "text_encoder",
        f"clip_l.safetensors, or the folder text_encoder of {_MODEL}",
        "CLIPTextModelWithProjection",
    ),
    parts.large_clip("sd3", "text_encoder_2", f"clip_g.safetensors, or the folder text_encoder_2 of {_MODEL}"),
    parts.t5(
        "sd3",
        "text_encoder_3",
        f"t5xxl_fp16.safetensors (or fp8), or the folder text_encoder_3 of {_MODEL}",
        optional=True,
    ),
    parts.clip_tokenizer("tokenizer", f"the folder tokenizer of {_MODEL}"),
    parts.clip_tokenizer("tokenizer_2", f"the folder tokenizer_2 of {_MODEL}", "the larger CLIP's tokenizer"),
    parts.t5_tokenizer("tokenizer_3", f"the folder tokenizer_3 of {_MODEL} (or of google/t5-v1_1-xxl)", optional=True),
    parts.flow_scheduler("sd3"),
)

# Counted on diffusers' classes (0.42) at full size. Queries, keys, values and the attention's result, and of queries
# and keys what comes into their norms, and that in float32, which SD3 itself has none of; norms of both streams in
# float32, of which the last block's text has one.
_ATTENTION = 4
_NORMED = Kept(full=2, half=2)
_NORMS = (r"^attn\.norm_q", {"image": _NORMED, "text": _NORMED}), (r"^attn2\.norm_q", {"image": _NORMED})
_TWO, _ONE = Kept(full=2, half=_ATTENTION), Kept(full=1, half=_ATTENTION)


def _block(name: str, image: Kept, text: Kept) -> BlockActivations:
    return BlockActivations(
        name,
        "attn.to_q",
        others=((r"^norm1", "row"), (r"add_|context", "text")),
        kept={"image": image, "text": text},
        outputs=(r"net\.0\.proj$",),
        shared=(r"to_out\.0$", r"to_add_out$"),
        normed=_NORMS,
    )


FACTS = Sd3Facts(
    name="sd3",
    title="SD3 / SD3.5",
    pipeline_class="StableDiffusion3Pipeline",
    # image to image, inpainting
    same_pipelines=(
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "StableDiffusion3PAGPipeline",
    ),
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
        *(f"attn.{name}" for name in ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")),
        *(f"{name}.{layer}" for name in ("ff", "ff_context") for layer in ("net.0.proj", "net.2")),
    ),
    default_geometry=Geometry(downscale=8, patch=PATCH, latent_channels=16, most_side=192),
    options=frozenset({"text_length", "true_cfg_scale"}) | FLOW_OPTIONS,
    # What ComfyUI's key map of SD3 (``mmdit_to_diffusers`` in comfy/utils.py) takes behind the prefix
    # ``transformer.``, and under their native names behind ``lora_unet_``.
    lora_layers=(
        r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)",
        r"transformer_blocks\.\d+\.attn2\.(to_q|to_k|to_v|to_out\.0)",
        r"transformer_blocks\.\d+\.(norm1|norm1_context)\.linear",
        r"transformer_blocks\.\d+\.(ff|ff_context)\.net\.(0\.proj|2)",
        r"(context_embedder|proj_out|norm_out\.linear)",
        r"time_text_embed\.(timestep_embedder|text_embedder)\.linear_[12]",
    ),
    lora_version="sd3",
    memory=FamilyMemory(
        blocks=(
            _block("dual", Kept(full=2, half=2 * _ATTENTION), _TWO),
            _block("joint", _TWO, _TWO),
            _block("last", _TWO, _ONE),
        ),
        vae=VaeActivations(encode=5, decode=6),
        # the last norm's input in float32, at the width of SD3.5 large
        around=9728,
    ),
)
