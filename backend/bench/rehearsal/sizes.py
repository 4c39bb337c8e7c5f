"""Defines the base models that a rehearsal writes: a family, and what differs from its published configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.bench.clips import Clip
from backend.families.files import headers
from backend.families.files.base_model import SHIPPED
from backend.families.files.parts import Part
from backend.families.spec import FamilyFacts
from backend.families.table import family

TOKENIZERS = ("CLIPTokenizer", "T5TokenizerFast", "Qwen2Tokenizer", "LlamaTokenizerFast")
"""Classes of parts that are tokenizers: these have no config that is shipped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSize:
    """A base model of `family` and how it is trained.

    depth: entries of the denoiser's config that count the blocks of its stacks; none where the depth can't be cut.
    parts: part name -> entries that replace those of the published config. settings: ``section.name`` -> value, where
    the rehearsal differs from the defaults. resolution: px. true_guidance: of the sample picture. steps: before the run
    is stopped; resumed: after that; inputs: pictures or clips. clip: of a video model, what is trained on and sampled.
    fp8: parts whose matrices are written as float8_e4m3fn, as ComfyUI's smaller files hold them.
    """

    family: str
    depth: tuple[str, ...] = ()
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    resolution: int = 1024
    true_guidance: float = 1.0
    steps: int = 40
    resumed: int = 4
    inputs: int = 8
    clip: Clip | None = None
    fp8: frozenset[str] = frozenset()

    @property
    def facts(self) -> FamilyFacts:
        """The facts of the family."""
        return family(self.family)

    def denoiser(self) -> Part:
        """The part that is trained."""
        return self.facts.denoiser

    def config(self, part: Part, blocks: int | None = None) -> dict[str, Any]:
        """The config of `part` as its folder holds it. blocks: of the denoiser in all, None for all of them.

        ValueError, in words, for a number of blocks that the denoiser can't have.
        """
        config = headers.read_json(SHIPPED / part.shipped) | dict(self.parts.get(part.name, {}))
        if blocks is not None and part.class_names == self.denoiser().class_names:
            config |= self._cut(config, blocks)
        return config

    def _cut(self, config: Mapping[str, Any], blocks: int) -> dict[str, int]:
        """Blocks of each stack, in the published proportion, `blocks` in all."""
        counts = [int(config[name]) for name in self.depth]
        if not counts:
            raise ValueError(f"--blocks can't be used with {self.facts.title}: its depth is fixed; leave it out")
        if not len(counts) <= blocks <= sum(counts):
            span = f"give {len(counts)} to {sum(counts)}"
            raise ValueError(f"--blocks is {blocks}; {self.facts.title} has {sum(counts)} blocks: {span}")
        left, cut = blocks, []
        for at, count in enumerate(counts):
            behind = len(counts) - at - 1
            share = left if not behind else round(blocks * count / sum(counts))
            cut.append(min(max(1, share), left - behind))
            left -= cut[-1]
        return dict(zip(self.depth, cut, strict=True))


_FLUX_DEPTH = ("num_layers", "num_single_layers")
_UNET_SETTINGS = {"compile.shape_mode": "exact_buckets"}
_TINY_VAE = {"block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 4}


def _tiny_clip(width: int, pooled: int) -> dict[str, Any]:
    sizes = {"vocab_size": 1024, "hidden_size": width, "intermediate_size": 2 * width, "projection_dim": pooled}
    return sizes | {"num_hidden_layers": 2, "num_attention_heads": 2}


_TINY_FLUX = {
    "transformer": {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 24,
        "axes_dims_rope": [4, 6, 6],
    },
    "vae": _TINY_VAE | {"latent_channels": 4},
    "text_encoder": _tiny_clip(24, 24),
    "text_encoder_2": {"vocab_size": 256, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
}
_TINY_SDXL = {
    "unet": {
        "block_out_channels": [8, 16, 32],
        "layers_per_block": 1,
        "transformer_layers_per_block": [1, 1, 2],
        "attention_head_dim": [1, 2, 4],
        "cross_attention_dim": 40,
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 72,
        "norm_num_groups": 4,
        "sample_size": 16,
    },
    "vae": _TINY_VAE,
    "text_encoder": _tiny_clip(16, 16),
    "text_encoder_2": _tiny_clip(24, 24),
}

_TINY_WAN = {
    "transformer": {
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "ffn_dim": 48,
        "freq_dim": 32,
        "text_dim": 16,
    },
    "vae": {"base_dim": 8, "z_dim": 4, "latents_mean": [0.1] * 4, "latents_std": [1.5] * 4},
    "text_encoder": {"vocab_size": 256, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
}
_TINY_HUNYUAN = {
    "transformer": {
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 2,
        "num_single_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "text_embed_dim": 32,
        "pooled_projection_dim": 16,
        "rope_axes_dim": [4, 6, 6],
    },
    "vae": {"block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4},
    "text_encoder": {
        "vocab_size": 1024,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    },
    "text_encoder_2": _tiny_clip(16, 16),
}
# A real clip at 480p.
_CLIP = (832, 480, 81)
_SHORT = {"steps": 4, "resumed": 1, "inputs": 4}
_EXPERTS = frozenset({"transformer", "transformer_2"})
# So that the few steps train each.
_BOTH = {"timesteps.train_experts": "both", "timesteps.switch_boundary_every": 2}

SIZES = {
    "flux": RehearsalSize(family="flux", depth=_FLUX_DEPTH),
    "sdxl": RehearsalSize(family="sdxl", settings=_UNET_SETTINGS, true_guidance=7.0),
    "qwen_image": RehearsalSize(family="qwen_image", depth=("num_layers",)),
    "wan21_14b": RehearsalSize(family="wan", depth=("num_layers",), clip=_CLIP, **_SHORT),
    # Both experts by turns, with their matrices in 8 bits, as files and in memory.
    "wan22": RehearsalSize(
        family="wan22",
        depth=("num_layers",),
        settings={"memory.base_quantization": "fp8", **_BOTH},
        clip=_CLIP,
        fp8=_EXPERTS,
        **_SHORT,
    ),
    "hunyuan_video": RehearsalSize(family="hunyuan_video", depth=_FLUX_DEPTH, clip=_CLIP, **_SHORT),
    # For tests on a CPU.
    "tiny-flux": RehearsalSize(family="flux", depth=_FLUX_DEPTH, parts=_TINY_FLUX, resolution=64),
    "tiny-wan": RehearsalSize(family="wan", depth=("num_layers",), parts=_TINY_WAN, clip=(64, 64, 5), **_SHORT),
    "tiny-wan22": RehearsalSize(
        family="wan22",
        depth=("num_layers",),
        parts=_TINY_WAN | {"transformer_2": _TINY_WAN["transformer"]},
        settings=_BOTH,
        clip=(64, 64, 5),
        **_SHORT,
    ),
    "tiny-hunyuan": RehearsalSize(
        family="hunyuan_video", depth=_FLUX_DEPTH, parts=_TINY_HUNYUAN, clip=(64, 64, 5), **_SHORT
    ),
    "tiny-sdxl": RehearsalSize(
        family="sdxl", parts=_TINY_SDXL, settings=_UNET_SETTINGS, resolution=128, true_guidance=7.0
    ),
}
