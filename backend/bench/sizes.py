"""Defines the model sizes of the bench: the denoiser's widths, and what a step has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.bench.clips import Clip
from backend.families.table import family


@dataclass(frozen=True)
class Size:
    """A model size, as data: what the family's denoiser is made with, and what a step holds.

    layers: blocks of each stack, replaced by `--layers`; each number goes to the config entry of `layer_names` at its
    place, or all together to a single one. config: the rest of the denoiser's config. text: shape of each tensor of a
    caption, "text" standing for its tokens: those of a control picture that is read with it, `read`, and up to
    `text_length` of its own. tokens: of a picture of a step; divisor: of the bucket sizes, in px. clips: the buckets of
    a video model, replaced by `--clips`; none for a model of pictures, whose buckets follow from `tokens`. behind:
    latent frames besides its own that a section of a clip is made from.
    """

    family: str
    layers: tuple[int, ...]
    layer_names: tuple[str, ...]
    config: Mapping[str, Any]
    text: Mapping[str, tuple[int | str, ...]]
    tokens: int
    divisor: int
    text_length: int
    dtype: str
    read: int = 0
    clips: tuple[Clip, ...] = ()
    behind: int = 0

    @property
    def text_tokens(self) -> int:
        """Most text tokens of a row."""
        return self.read + self.text_length

    @property
    def pictures(self) -> int:
        """Pictures of a row: two where a control picture of the same size stands behind its own."""
        return 1 if family(self.family).controls is None else 2

    @property
    def masked_text(self) -> bool:
        """Whether padding of text is masked: rows then hold a caption's real tokens alone."""
        return family(self.family).text_rule == "masked"

    @property
    def real_text(self) -> bool:
        """Whether rows hold a caption's real tokens alone, be what is added masked or weighed."""
        return family(self.family).text_rule in ("masked", "sink")

    def lacks(self, mode: str) -> str:
        """Why this size's family can't have the shape mode `mode`; empty when it can."""
        facts = family(self.family)
        reason = facts.lacks_modes.get(mode)
        return f"{facts.title} has no shape mode {mode}: {reason}" if reason else ""


_FLUX_LAYERS = ("num_layers", "num_single_layers")
_FLUX = {
    "in_channels": 64,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
    "axes_dims_rope": (16, 56, 56),
}
_TINY_FLUX = _FLUX | {
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 24,
    "axes_dims_rope": (4, 6, 6),
}
_QWEN = {
    "in_channels": 64,
    "out_channels": 16,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 3584,
    "axes_dims_rope": (16, 56, 56),
}
_TINY_QWEN = _QWEN | {
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "axes_dims_rope": (4, 6, 6),
}


def _flux(layers: tuple[int, int], family: str = "flux") -> Size:
    text = {"prompt_embeds": ("text", 4096), "pooled": (768,)}
    return Size(family, layers, _FLUX_LAYERS, _FLUX, text, 4096, 64, 512, "bf16")


def _tiny_flux(family: str = "flux") -> Size:
    text = {"prompt_embeds": ("text", 32), "pooled": (24,)}
    return Size(family, (1, 1), _FLUX_LAYERS, _TINY_FLUX, text, 64, 16, 16, "fp32")


def _qwen(layers: int, family: str = "qwen_image", read: int = 0) -> Size:
    text = {"prompt_embeds": ("text", 3584)}
    return Size(family, (layers,), ("num_layers",), _QWEN, text, 4096, 64, 512, "bf16", read)


def _tiny_qwen(family: str = "qwen_image", read: int = 0) -> Size:
    text = {"prompt_embeds": ("text", 32)}
    return Size(family, (1,), ("num_layers",), _TINY_QWEN, text, 64, 16, 32, "fp32", read)


def _sdxl(layers: tuple[int, ...], width: int, heads: tuple[int, ...], joint: int, tokens: int, dtype: str) -> Size:
    pooled, times = joint * 5 // 8, 256 * width // 320
    config = {
        "sample_size": 128,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "block_out_channels": (width, 2 * width, 4 * width),
        "attention_head_dim": heads,
        "cross_attention_dim": joint,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": times,
        "projection_class_embeddings_input_dim": pooled + 6 * times,
    }
    text = {"prompt_embeds": ("text", joint), "pooled": (pooled,), "time_ids": (6,)}
    return Size("sdxl", layers, ("transformer_layers_per_block",), config, text, tokens, 64, 77, dtype)


_WAN = {
    "num_attention_heads": 40,
    "attention_head_dim": 128,
    "ffn_dim": 13824,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 4096,
    "freq_dim": 256,
}
_TINY_WAN = _WAN | {"num_attention_heads": 2, "attention_head_dim": 16, "ffn_dim": 48, "text_dim": 32, "freq_dim": 16}
_HUNYUAN_LAYERS = ("num_layers", "num_single_layers")
_HUNYUAN = {
    "in_channels": 16,
    "out_channels": 16,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "num_refiner_layers": 2,
    "text_embed_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
    "rope_axes_dim": (16, 56, 56),
}
_TINY_HUNYUAN = _HUNYUAN | {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_refiner_layers": 1,
    "text_embed_dim": 32,
    "pooled_projection_dim": 24,
    "rope_axes_dim": (4, 6, 6),
}
# As people train: a long and a shorter clip at 480p, and one at 720p.
_CLIPS = ((832, 480, 81), (832, 480, 49), (1280, 720, 81))


def _lying_and_standing(sizes: tuple[tuple[int, int], ...], lengths: tuple[int, ...]) -> tuple[Clip, ...]:
    """Clips of each size, of the same turned by a quarter, and of each length."""
    turned = [side for width, height in sizes for side in ((width, height), (height, width))]
    return tuple((width, height, frames) for frames in lengths for width, height in turned)


# 8 buckets of a folder of clips, of two lengths: the graphs that they take.
_BUCKETS = _lying_and_standing(((832, 480), (720, 544)), (81, 49))
_TINY_CLIPS = _lying_and_standing(((128, 80), (144, 64)), (9, 5))


def _wan(layers: int, clips: tuple[Clip, ...]) -> Size:
    text = {"prompt_embeds": ("text", 4096)}
    return Size("wan", (layers,), ("num_layers",), _WAN, text, 32760, 16, 512, "bf16", clips=clips)


def _tiny_wan() -> Size:
    text = {"prompt_embeds": ("text", 32)}
    return Size("wan", (1,), ("num_layers",), _TINY_WAN, text, 120, 16, 512, "fp32", clips=_TINY_CLIPS)


def _hunyuan(layers: tuple[int, int], clips: tuple[Clip, ...]) -> Size:
    text = {"prompt_embeds": ("text", 4096), "pooled": (768,)}
    return Size("hunyuan_video", layers, _HUNYUAN_LAYERS, _HUNYUAN, text, 32760, 16, 256, "bf16", clips=clips)


def _tiny_hunyuan() -> Size:
    text = {"prompt_embeds": ("text", 32), "pooled": (24,)}
    config = _TINY_HUNYUAN
    return Size("hunyuan_video", (1, 1), _HUNYUAN_LAYERS, config, text, 120, 16, 32, "fp32", clips=_TINY_CLIPS)


def _framepack(layers: tuple[int, int], clips: tuple[Clip, ...], tiny: bool = False) -> Size:
    config = (_TINY_HUNYUAN if tiny else _HUNYUAN) | {
        "has_image_proj": True,
        "image_proj_dim": 24 if tiny else 1152,
        "has_clean_x_embedder": True,
    }
    # SigLIP's tokens of a picture
    seen = 729
    text = {
        "prompt_embeds": ("text", config["text_embed_dim"]),
        "pooled": (config["pooled_projection_dim"],),
        "image_embeds": (seen, config["image_proj_dim"]),
    }
    length, dtype = (32, "fp32") if tiny else (256, "bf16")
    return Size("framepack", layers, _HUNYUAN_LAYERS, config, text, 0, 16, length, dtype, seen, clips, behind=20)


SIZES = {
    # FLUX.1-dev's widths; 4 + 8 of its 19 + 38 blocks, so that a step fits any GPU and a bench its time.
    "flux": _flux((4, 8)),
    "flux-whole": _flux((19, 38)),
    # FLUX.1 Kontext is FLUX.1-dev with a control picture in the row: twice the tokens.
    "kontext": _flux((4, 8), "flux_kontext"),
    # 12 of Qwen-Image's 60 blocks: 4 of its 20 billion weights.
    "qwen": _qwen(12),
    # Qwen-Image-Edit: twice the picture's tokens, and those that Qwen2.5-VL makes of one of 1024 x 1024 px.
    "qwen-edit": _qwen(12, "qwen_image_edit", 37 * 37),
    # SDXL whole: 1024 x 1024 px is 1024 tokens of its lowest level.
    "sdxl": _sdxl((1, 2, 10), 320, (5, 10, 20), 2048, 1024, "bf16"),
    # Wan 2.1 14B's widths; 4 of its 40 blocks.
    "wan": _wan(4, _CLIPS),
    # The same over 8 buckets; one block, since graphs don't depend on their number.
    "wan-buckets": _wan(1, _BUCKETS),
    # 2 + 4 of HunyuanVideo's 20 + 40 blocks.
    "hunyuan": _hunyuan((2, 4), _CLIPS),
    "hunyuan-buckets": _hunyuan((1, 1), _BUCKETS),
    # The same blocks; a section of 9 latent frames, whatever the clip's length.
    "framepack": _framepack((2, 4), ((832, 480, 37), (640, 640, 37), (1280, 720, 37))),
    # For tests on a CPU.
    "tiny": _tiny_flux(),
    "tiny-kontext": _tiny_flux("flux_kontext"),
    "tiny-qwen": _tiny_qwen(),
    "tiny-qwen-edit": _tiny_qwen("qwen_image_edit", 25),
    "tiny-wan": _tiny_wan(),
    "tiny-hunyuan": _tiny_hunyuan(),
    "tiny-framepack": _framepack((1, 1), _lying_and_standing(((128, 80), (144, 64)), (37,)), tiny=True),
    "tiny-sdxl": _sdxl((1, 1, 1), 32, (1, 2, 4), 64, 64, "fp32"),
}
