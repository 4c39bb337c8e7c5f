"""Base models at full size without their numbers: published files' names and shapes as headers, the rest a hole."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "models" / "golden"
_RANGE = re.compile(r"\{(\d+)-(\d+)\}")

# Preset family -> the published file of each place in [model].
FILES = {
    "flux": {"base_model": "flux1-dev", "vae": "ae", "text_encoder": "clip_l", "text_encoder_2": "t5xxl"},
    "flux_kontext": {"base_model": "flux1-dev", "vae": "ae", "text_encoder": "clip_l", "text_encoder_2": "t5xxl"},
    "sdxl": {"base_model": "sd_xl_base_1.0"},
    "sd15": {"base_model": "v1-5-pruned-emaonly"},
    "anima": {"base_model": "anima-base-v1.0", "vae": "qwen_image_vae", "text_encoder": "qwen_3_06b_base"},
    "qwen_image": {"base_model": "qwen_image", "vae": "qwen_image_vae", "text_encoder": "qwen_2.5_vl_7b"},
    "qwen_image_edit": {"base_model": "qwen_image", "vae": "qwen_image_vae", "text_encoder": "qwen_2.5_vl_7b"},
    "qwen_image_edit_plus": {"base_model": "qwen_image", "vae": "qwen_image_vae", "text_encoder": "qwen_2.5_vl_7b"},
    "framepack": {
        "base_model": "framepack_i2v_hy",
        "vae": "hunyuan_video_vae",
        "text_encoder": "llava_llama3",
        "text_encoder_2": "clip_l",
        "image_encoder": "sigclip_vision_patch14_384",
    },
    "hunyuan_video": {
        "base_model": "hunyuan_video_t2v_720p",
        "vae": "hunyuan_video_vae",
        "text_encoder": "llava_llama3",
        "text_encoder_2": "clip_l",
    },
    "sd3": {
        "base_model": "sd3.5_large",
        "text_encoder": "clip_l",
        "text_encoder_2": "clip_g",
        "text_encoder_3": "t5xxl",
    },
    "wan": {"base_model": "wan2.1_t2v_14B", "vae": "wan_2.1_vae", "text_encoder": "umt5_xxl"},
    "wan-1.3b": {"base_model": "wan2.1_t2v_1.3B", "vae": "wan_2.1_vae", "text_encoder": "umt5_xxl"},
    "wan_i2v": {
        "base_model": "wan2.1_i2v_480p_14B",
        "vae": "wan_2.1_vae",
        "text_encoder": "umt5_xxl",
        "image_encoder": "clip_vision_h",
    },
    "wan22": {"base_model": "wan2.1_t2v_14B", "vae": "wan_2.1_vae", "text_encoder": "umt5_xxl"},
    "wan22_i2v": {"base_model": "wan2.2_i2v_14B", "vae": "wan_2.1_vae", "text_encoder": "umt5_xxl"},
    "wan22_5b": {"base_model": "wan2.2_ti2v_5B", "vae": "wan2.2_vae", "text_encoder": "umt5_xxl"},
    "wan22_5b_i2v": {"base_model": "wan2.2_ti2v_5B", "vae": "wan2.2_vae", "text_encoder": "umt5_xxl"},
    "wan22-both": {
        "base_model": "wan2.1_t2v_14B",
        "transformer_2": "wan2.1_t2v_14B",
        "vae": "wan_2.1_vae",
        "text_encoder": "umt5_xxl",
    },
}

FILES["framepack_f1"] = FILES["framepack"]


def shapes(name: str) -> dict[str, list[int]]:
    """Names and shapes of a published file, its ranges written out."""
    listed = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["tensors"]
    sizes: dict[str, list[int]] = {}
    for pattern, shape in listed.items():
        ranges = [range(int(low), int(high) + 1) for low, high in _RANGE.findall(pattern)]
        for numbers in itertools.product(*ranges):
            left = iter(numbers)
            sizes[_RANGE.sub(lambda _, left=left: str(next(left)), pattern)] = shape
    return sizes


def hollow(name: str, folder: Path) -> Path:
    """A safetensors file in 16 bits with that file's header; its numbers take no room on the disk."""
    path = folder / f"{name}.safetensors"
    if path.exists():
        return path
    header, at = {}, 0
    for key, shape in shapes(name).items():
        size = 2 * math.prod(shape)
        header[key] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return path


def full_size(family: str, folder: Path) -> dict[str, str]:
    """[model] of a base model of this family."""
    return {place: str(hollow(name, folder)) for place, name in FILES[family].items()}
