"""Checks the chosen base model for the Model tab: what it contains, what it lacks, and its family."""

from __future__ import annotations

from typing import Any

from backend.config.schema import Config
from backend.families.files.base_model import BaseModelFiles, Place
from backend.families.spec import FamilyFacts
from backend.families.table import FAMILIES, family
from backend.plan import base_model_check as family_check
from backend.plan.texts import text_length_of
from gui import messages

# The shape mode that every family has.
_MODE = "auto"


def facts(config: Config | None) -> dict[str, Any]:
    """What the base model contains and lacks: checked as soon as it is typed, without loading anything.

    fits: the family that it belongs to, where that is not the chosen one, and what choosing it changes.
    """
    empty: dict[str, Any] = {"path": "", "title": "", "problems": [], "parts": [], "facts": [], "total": 0}
    if config is None or config.model.base_model is None or config.model.family not in FAMILIES:
        return empty
    row = family(config.model.family)
    base = BaseModelFiles.of(config.model)
    problems, other = family_check.check(config, base)
    part_sizes = sizes(config)
    facts = []
    if not any(problem.severity == "error" for problem in problems):
        geometry = row.geometry(base)
        facts = [
            f"One token covers {geometry.pixels_per_token} × {geometry.pixels_per_token} px",
            f"captions of up to {text_length_of(config, row)} tokens",
        ]
    return {
        "path": str(base.path),
        "title": row.title,
        "problems": messages.all_problem_facts(problems),
        "fits": other and {"title": other.title, "change": change_to(other, config.compile.shape_mode)},
        "parts": _parts(row, base, part_sizes) if any(part_sizes.values()) and not other else [],
        "facts": facts,
        "total": sum(part_sizes.values()),
    }


def change_to(to: FamilyFacts, shape_mode: str) -> dict[str, str]:
    """The settings that choosing a family changes: with it a shape mode that it has, where it lacks the present one."""
    other = {"compile.shape_mode": _MODE} if shape_mode in to.lacks_modes else {}
    return {"model.family": to.name, **other}


def _parts(of: FamilyFacts, base: BaseModelFiles, part_sizes: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": part.title.removeprefix("the "),
            "place": _lies(base.place(part), part.folder),
            "bytes": part_sizes.get(part.name) or None,
        }
        for part in of.parts
        if part.weights
    ]


def _lies(place: Place | None, folder: str) -> str:
    """Where a part is, for the list of parts: its folder's or file's name."""
    return folder if place is None else place.path.name


def sizes(config: Config) -> dict[str, int]:
    """Bytes on disk of each part of the base model; empty where it can't be read."""
    if config.model.base_model is None:
        return {}
    try:
        return family(config.model.family).sizes(BaseModelFiles.of(config.model))
    except (OSError, ValueError, KeyError):
        # Not a model yet: the check says why.
        return {}


def denoiser(config: Config) -> str:
    """Name of the part that is trained."""
    of = family(config.model.family)
    return next(part.name for part in of.parts if of.denoiser_class in part.class_names)
