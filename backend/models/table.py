"""The one table of model families. Adding a family is a folder and a row here."""

from __future__ import annotations

from backend.models.anima.facts import FACTS as ANIMA
from backend.models.flux.facts import FACTS as FLUX
from backend.models.flux.kontext import FACTS as KONTEXT
from backend.models.qwen_image.facts import FACTS as QWEN_IMAGE
from backend.models.sd15.facts import FACTS as SD15
from backend.models.sdxl.facts import FACTS as SDXL
from backend.models.spec import Family

FAMILIES: dict[str, Family] = {
    FLUX.name: Family(
        facts=FLUX,
        facts_module="backend.models.flux.facts",
        code="backend.models.flux.code",
        denoise="backend.models.flux.denoise",
    ),
    KONTEXT.name: Family(
        facts=KONTEXT,
        facts_module="backend.models.flux.kontext",
        code="backend.models.flux.code",
        denoise="backend.models.flux.denoise",
    ),
    SDXL.name: Family(
        facts=SDXL,
        facts_module="backend.models.sdxl.facts",
        code="backend.models.sdxl.code",
        denoise="backend.models.sdxl.denoise",
    ),
    SD15.name: Family(
        facts=SD15,
        facts_module="backend.models.sd15.facts",
        code="backend.models.sd15.code",
        denoise="backend.models.sd15.denoise",
    ),
    ANIMA.name: Family(
        facts=ANIMA,
        facts_module="backend.models.anima.facts",
        code="backend.models.anima.code",
        denoise="backend.models.anima.denoise",
    ),
    QWEN_IMAGE.name: Family(
        facts=QWEN_IMAGE,
        facts_module="backend.models.qwen_image.facts",
        code="backend.models.qwen_image.code",
        denoise="backend.models.qwen_image.denoise",
    ),
}


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
