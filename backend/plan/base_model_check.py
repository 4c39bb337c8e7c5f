"""Checks the base model that the settings name, and finds its family if that is another. Torch-free."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from backend.base.problems import Problem, errors
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import SETTING
from backend.families.spec import FamilyFacts
from backend.families.table import FAMILIES, PIPELINES, family

if TYPE_CHECKING:
    from backend.config.schema import Config


def problems(cfg: Config) -> list[Problem]:
    """Every problem of the base model; one alone where it is whole, but of another family. Headers only are read."""
    return check(cfg, BaseModelFiles.of(cfg.model))[0]


def check(cfg: Config, base: BaseModelFiles) -> tuple[list[Problem], FamilyFacts | None]:
    """The problems, and the family that the base model belongs to where that is another than the chosen one."""
    facts = family(cfg.model.family)
    problems = facts.check_base_model(base, families=PIPELINES)
    if not errors(problems):
        problems = problems + facts.expert_problems(base, cfg.timesteps.train_experts)
    # A part that is given beside it says nothing of its family.
    alone = replace(base, given={})
    if not _misfit(problems) or not _misfit(facts.check_base_model(alone)):
        return problems, None
    other = next((each for each in FAMILIES.values() if not _misfit(each.check_base_model(alone))), None)
    if other is None:
        return problems, None
    text = f"the base model is {other.title}, but the chosen family is {facts.title}"
    return [Problem("model.family", None, text, f"Choose the family {other.name}, or another base model")], other


def _misfit(problems: list[Problem]) -> bool:
    """Whether the base model itself is refused; a part that is missing beside it says nothing of its family."""
    return any(problem.path == SETTING and problem.severity == "error" for problem in problems)
