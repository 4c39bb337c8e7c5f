"""Torch-free facts of Qwen-Image-Edit: Qwen-Image's parts and layers, and a control picture that goes in twice.

Behind the image tokens, as latents, and to Qwen2.5-VL, which reads it together with the caption. The transformer can't
be told from Qwen-Image's by its tensors, so that a person chooses the family. Class names, template and order of
tokens: diffusers `QwenImageEditPipeline` (0.42); folders: Qwen/Qwen-Image-Edit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.models import files
from backend.models.base import Base
from backend.models.qwen_image import facts
from backend.models.qwen_image.facts import geometry, scheduler_config
from backend.models.spec import Controls, Part, PictureTokens

__all__ = ["FACTS", "check_base_model", "geometry", "picture_config", "picture_tokens", "scheduler_config"]

IMAGE_TOKEN = "<|image_pad|>"
"""Stands in the template for each token that the picture becomes."""

PICTURE = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
"""Stands in the template for a picture."""

ASKED = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""What Qwen2.5-VL is asked, of pictures and caption; the model was trained on the states behind these very words."""

TEMPLATE_TOKENS = 64
"""Tokens of the template before the pictures: their states are left out."""

_TRANSFORMER, *_OTHERS = facts.PARTS

PROCESSOR = Part(
    "processor",
    "the picture processor of Qwen2.5-VL",
    "processor",
    ("Qwen2VLProcessor", "Qwen2_5_VLProcessor"),
    (("preprocessor_config.json", "processor_config.json"),),
    shipped="qwen_image/configs/processor.json",
)

FACTS = replace(
    facts.FACTS,
    name="qwen_image_edit",
    title="Qwen-Image-Edit",
    pipeline_class="QwenImageEditPipeline",
    parts=(
        replace(_TRANSFORMER, where="qwen_image_edit_bf16.safetensors or another Qwen-Image-Edit transformer"),
        *_OTHERS,
        PROCESSOR,
    ),
    controls=Controls(needed=True),
    # the picture's tokens are counted by its size
    caption_template=ASKED.replace("{}", PICTURE.replace(IMAGE_TOKEN, "") + "{}"),
    template_tokens=TEMPLATE_TOKENS,
)


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; empty when it can be loaded. Reads configs and safetensors headers only."""
    return facts.check(Base.at(base, variant), FACTS, ("QwenImageEditInpaintPipeline",))


def picture_config(base: Base | Path) -> dict[str, Any]:
    """What the model's processor does with a picture; the published one's where the model is of single files.

    ValueError when it can't be read.
    """
    place = Base.at(base).place(PROCESSOR)
    if place is None:
        return Base.at(base).config(PROCESSOR)
    own, whole = (place.path / name for name in PROCESSOR.files[0])
    return files.read_json(own) if own.is_file() else files.read_json(whole).get("image_processor", {})


def picture_tokens(base: Base | Path) -> PictureTokens:
    """Counts the tokens that Qwen2.5-VL makes of a picture, by its size in px.

    The picture is scaled to whole tokens at nearly its own size, within the least and the most pixels of the config
    (transformers `smart_resize`). A config that can't be read counts as the published one: the check names it.
    """
    try:
        config = picture_config(base)
    except (OSError, ValueError):
        config = picture_config(Base(None))
    size = config.get("size") or {}
    least = config.get("min_pixels") or size.get("shortest_edge", 56 * 56)
    most = config.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280)
    side = config.get("patch_size", 14) * config.get("merge_size", 2)

    def count(width: int, height: int) -> int:
        rows, columns = round(height / side), round(width / side)
        if rows * columns * side**2 > most:
            shrunk = math.sqrt(width * height / most)
            rows, columns = (max(1, math.floor(edge / shrunk / side)) for edge in (height, width))
        elif rows * columns * side**2 < least:
            grown = math.sqrt(least / (width * height))
            rows, columns = (math.ceil(edge * grown / side) for edge in (height, width))
        return rows * columns

    return count
