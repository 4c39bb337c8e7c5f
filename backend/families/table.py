"""Lists the model families, torch-free: each is a folder, a row here, and one of `backend.models.family_classes`."""

from __future__ import annotations

from backend.families.anima.facts import FACTS as ANIMA
from backend.families.files.layouts.rules import Layout
from backend.families.flux.facts import FACTS as FLUX
from backend.families.flux.facts import KONTEXT
from backend.families.hunyuan_video.facts import FACTS as HUNYUAN_VIDEO
from backend.families.hunyuan_video.framepack_facts import F1_FACTS, FRAMEPACK_FACTS
from backend.families.qwen_image.edit_facts import EDIT, EDIT_PLUS
from backend.families.qwen_image.facts import FACTS as QWEN_IMAGE
from backend.families.sd3.facts import FACTS as SD3
from backend.families.sd15.facts import FACTS as SD15
from backend.families.sdxl.facts import FACTS as SDXL
from backend.families.spec import VIDEO_OPTIONS, FamilyFacts
from backend.families.wan.expert_facts import FACTS as WAN22
from backend.families.wan.expert_facts import I2V as WAN22_I2V
from backend.families.wan.facts import FACTS as WAN
from backend.families.wan.i2v_facts import I2V as WAN_I2V
from backend.families.wan.small_facts import FACTS as WAN22_5B
from backend.families.wan.small_facts import I2V as WAN22_5B_I2V

_ROWS = (
    *(FLUX, KONTEXT, SDXL, SD15, ANIMA, QWEN_IMAGE, EDIT, EDIT_PLUS, SD3),
    *(WAN, WAN_I2V, WAN22, WAN22_I2V, WAN22_5B, WAN22_5B_I2V, HUNYUAN_VIDEO, FRAMEPACK_FACTS, F1_FACTS),
)
FAMILIES: dict[str, FamilyFacts] = {facts.name: facts for facts in _ROWS}

# the first of a pipeline's families comes last, and stays
PIPELINES: dict[str, str] = {facts.pipeline_class: facts.name for facts in reversed(_ROWS)}
"""Pipeline class of model_index.json -> the family that it belongs to."""

LAYOUTS: dict[str, Layout] = {layout.name: layout for facts in _ROWS for part in facts.parts for layout in part.layouts}
"""The layouts of single files that any family reads, by name."""


def family(name: str) -> FamilyFacts:
    """The facts of the family called `name`; ValueError that lists the known ones."""
    try:
        return FAMILIES[name]
    except KeyError:
        known = ", ".join(FAMILIES)
        raise ValueError(f"unknown model family {name!r}; known families: {known}") from None


def lacking(name: str) -> frozenset[str]:
    """Settings, by their names, that other families have and the family `name` lacks; none for an unknown family."""
    if name not in FAMILIES:
        return frozenset()
    every = VIDEO_OPTIONS.union(*(facts.own_options for facts in FAMILIES.values()))
    return every - FAMILIES[name].own_options


def family_of_denoiser(class_name: str) -> FamilyFacts:
    """The first family whose denoiser is of class `class_name`; ValueError when none is.

    Families that share a class share its forward too.
    """
    for facts in FAMILIES.values():
        if facts.denoiser_class == class_name:
            return facts
    raise ValueError(f"no model family has a denoiser of class {class_name!r}")
