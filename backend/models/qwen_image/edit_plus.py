"""Torch-free facts of Qwen-Image-Edit-2509 and -2511: Qwen-Image-Edit with up to three control pictures.

Each keeps its proportions, at one area as latents and at a smaller one for Qwen2.5-VL, and has a label with its number
in the template. 2511 also tells the tokens of control pictures a timestep of zero (``zero_cond_t`` of the transformer),
which a folder's config says, and of single files ComfyUI's. Sizes and template: diffusers `QwenImageEditPlusPipeline`
(0.42); folders: Qwen/Qwen-Image-Edit-2509, Qwen/Qwen-Image-Edit-2511.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backend.base.problems import Problem
from backend.models.base import Base
from backend.models.fit import config_of
from backend.models.qwen_image import edit, facts
from backend.models.qwen_image.facts import geometry, scheduler_config
from backend.models.spec import Controls, PictureTokens

__all__ = ["FACTS", "check_base_model", "geometry", "picture_tokens", "scheduler_config"]

LABEL = "Picture {}: "
"""In front of each picture in the template."""

LABEL_TOKENS = 7
"""Tokens of a label and of what encloses the picture behind it: a word, a blank, a digit, a colon, a blank and two."""

_TRANSFORMER, *_OTHERS = edit.FACTS.parts

FACTS = replace(
    edit.FACTS,
    name="qwen_image_edit_plus",
    title="Qwen-Image-Edit-2509/2511",
    pipeline_class="QwenImageEditPlusPipeline",
    parts=(
        replace(_TRANSFORMER, where="qwen_image_edit_2509_bf16.safetensors, qwen_image_edit_2511_bf16.safetensors"),
        *_OTHERS,
    ),
    controls=Controls(most=3, needed=True, area=1024, read_area=384),
    options=edit.FACTS.options | {"control_resolution", "zero_cond_t"},
    # pictures and their labels are counted by their sizes
    caption_template=edit.ASKED,
)


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; empty when it can be loaded. Reads configs and safetensors headers only."""
    base = Base.at(base, variant)
    problems = facts.check(base, FACTS, ())
    said, told = config_of(base, FACTS, "transformer").get("zero_cond_t"), base.told.get("zero_cond_t")
    if told is not None and bool(said) != told:
        text = f"zero_cond_t is {'on' if told else 'off'}, but the transformer's config says otherwise, which holds"
        problems.append(Problem("model.zero_cond_t", None, text, "Set it to auto: a folder says it.", "warning"))
    return problems


def picture_tokens(base: Base | Path) -> PictureTokens:
    """Counts the tokens that Qwen2.5-VL makes of a picture with its label, by its size in px as it is read."""
    count = edit.picture_tokens(base)
    return lambda width, height: count(width, height) + LABEL_TOKENS
