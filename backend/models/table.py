"""The one table of model families. Adding a family is a folder and a row here."""

from __future__ import annotations

from backend.models.flux.facts import FACTS as FLUX
from backend.models.spec import Family

FAMILIES: dict[str, Family] = {
    FLUX.name: Family(
        facts=FLUX,
        facts_module="backend.models.flux.facts",
        code="backend.models.flux.code",
        denoise="backend.models.flux.denoise",
    ),
}


def family(name: str) -> Family:
    """The family called `name`; ValueError that lists the known ones."""
    try:
        return FAMILIES[name]
    except KeyError:
        known = ", ".join(FAMILIES)
        raise ValueError(f"unknown model family {name!r}; known families: {known}") from None


def family_of_denoiser(class_name: str) -> Family:
    """The family whose denoiser is of class `class_name`; ValueError when none is."""
    for row in FAMILIES.values():
        if row.facts.denoiser_class == class_name:
            return row
    raise ValueError(f"no model family has a denoiser of class {class_name!r}")
