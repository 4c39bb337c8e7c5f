"""The one table of model families. Adding a family is a folder and a row here."""

from __future__ import annotations

from backend.models.anima.facts import FACTS as ANIMA
from backend.models.flux.facts import FACTS as FLUX
from backend.models.flux.kontext import FACTS as KONTEXT
from backend.models.qwen_image.edit import FACTS as QWEN_IMAGE_EDIT
from backend.models.qwen_image.edit_plus import FACTS as QWEN_IMAGE_EDIT_PLUS
from backend.models.qwen_image.facts import FACTS as QWEN_IMAGE
from backend.models.sd3.facts import FACTS as SD3
from backend.models.sd15.facts import FACTS as SD15
from backend.models.sdxl.facts import FACTS as SDXL
from backend.models.spec import Family, FamilyFacts


def _row(facts: FamilyFacts, folder: str, facts_module: str = "facts", code: str = "code") -> Family:
    """The family whose modules lie in `folder` beside this file."""
    place = f"backend.models.{folder}"
    return Family(facts, f"{place}.{facts_module}", code=f"{place}.{code}", denoise=f"{place}.denoise")


_ROWS = (
    _row(FLUX, "flux"),
    _row(KONTEXT, "flux", "kontext"),
    _row(SDXL, "sdxl"),
    _row(SD15, "sd15"),
    _row(ANIMA, "anima"),
    _row(QWEN_IMAGE, "qwen_image"),
    _row(QWEN_IMAGE_EDIT, "qwen_image", "edit", "edit_code"),
    _row(QWEN_IMAGE_EDIT_PLUS, "qwen_image", "edit_plus", "edit_plus_code"),
    _row(SD3, "sd3"),
)
FAMILIES: dict[str, Family] = {row.facts.name: row for row in _ROWS}


def family(name: str) -> Family:
    """The family called `name`; ValueError that lists the known ones."""
    try:
        return FAMILIES[name]
    except KeyError:
        known = ", ".join(FAMILIES)
        raise ValueError(f"unknown model family {name!r}; known families: {known}") from None


def lacking(name: str) -> frozenset[str]:
    """Settings, by their names, that other families have and the family `name` lacks; none for an unknown family."""
    if name not in FAMILIES:
        return frozenset()
    return frozenset().union(*(row.facts.options for row in FAMILIES.values())) - FAMILIES[name].facts.options


def family_of_denoiser(class_name: str) -> Family:
    """The first family whose denoiser is of class `class_name`; ValueError when none is.

    Families that share a class share its forward too.
    """
    for row in FAMILIES.values():
        if row.facts.denoiser_class == class_name:
            return row
    raise ValueError(f"no model family has a denoiser of class {class_name!r}")
