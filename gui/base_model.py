"""What the chosen base model holds and lacks, and which family it belongs to, for the Model tab and for Start."""

from __future__ import annotations

from typing import Any

from backend.config.problems import Problem
from backend.config.schema import Config
from backend.models.base import Base, Place
from backend.models.spec import FamilyFacts
from backend.models.table import FAMILIES, family
from backend.plan.texts import text_length_of
from gui import messages

_PATH = "model.base_model"
# What every family has, and takes fewest graphs of what is left.
_MODE = "exact_buckets"


def facts(config: Config | None) -> dict[str, Any]:
    """What the base model holds and lacks: checked as soon as it is typed, without loading anything.

    fits: the family that it belongs to, where that is another than the chosen one, and what choosing it changes.
    """
    empty: dict[str, Any] = {"path": "", "title": "", "problems": [], "parts": [], "facts": [], "total": 0}
    if config is None or config.model.base_model is None or config.model.family not in FAMILIES:
        return empty
    chosen = family(config.model.family)
    base = Base.of(config.model)
    found, other = _check(config, base)
    held = sizes(config)
    known = []
    if not any(problem.severity == "error" for problem in found):
        geometry = chosen.geometry(base)
        known = [
            f"one token covers {geometry.pixels_per_token} × {geometry.pixels_per_token} px",
            f"text of {text_length_of(config, chosen.facts)} tokens",
        ]
    return {
        "path": str(base.path),
        "title": chosen.facts.title,
        "problems": messages.all_problem_facts(found),
        "fits": other and {"title": other.title, "change": change_to(other, config.compile.shape_mode)},
        "parts": _parts(chosen.facts, base, held) if any(held.values()) and not other else [],
        "facts": known,
        "total": sum(held.values()),
    }


def problems(config: Config) -> list[Problem]:
    """What is wrong with the base model; one problem alone where it is whole, but of another family."""
    return _check(config, Base.of(config.model))[0]


def change_to(chosen: FamilyFacts, shape_mode: str) -> dict[str, str]:
    """The settings that choosing a family changes: with it a shape mode that it has, where it lacks the present one."""
    other = {"compile.shape_mode": _MODE} if shape_mode in chosen.lacks_modes else {}
    return {"model.family": chosen.name, **other}


def _check(config: Config, base: Base) -> tuple[list[Problem], FamilyFacts | None]:
    """The problems, and the family that the base model belongs to where that is another than the chosen one."""
    chosen = family(config.model.family)
    found = chosen.check_base_model(base)
    if not _misfit(found):
        return found, None
    other = next((row.facts for row in FAMILIES.values() if not _misfit(row.check_base_model(base))), None)
    if other is None:
        return found, None
    text = f"the base model is {other.title}, but the chosen family is {chosen.facts.title}"
    return [Problem("model.family", None, text, f"Choose the family {other.name}, or another base model")], other


def _misfit(found: list[Problem]) -> bool:
    """Whether the base model itself is refused; a part that is missing beside it says nothing of its family."""
    return any(problem.path == _PATH and problem.severity == "error" for problem in found)


def _parts(chosen: FamilyFacts, base: Base, held: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {"name": part.title, "place": _lies(base.place(part), part.folder), "bytes": held.get(part.name) or None}
        for part in chosen.parts
        if part.weights
    ]


def _lies(place: Place | None, folder: str) -> str:
    """Where a part lies, for the list of parts: its folder's or file's name."""
    return folder if place is None else place.path.name


def sizes(config: Config) -> dict[str, int]:
    """Bytes on disk of each part of the base model; empty where it can't be read."""
    if config.model.base_model is None:
        return {}
    try:
        return family(config.model.family).sizes(Base.of(config.model))
    except (OSError, ValueError, KeyError):
        # A folder that is no model yet: the check beside it says why.
        return {}


def denoiser(config: Config) -> str:
    """Name of the part that is trained."""
    chosen = family(config.model.family).facts
    return next(part.name for part in chosen.parts if chosen.denoiser_class in part.class_names)
