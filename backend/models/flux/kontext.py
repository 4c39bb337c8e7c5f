"""Torch-free facts of FLUX.1 Kontext: FLUX.1-dev's parts and layers, and a control picture behind the image tokens.

The transformer can't be told from FLUX.1-dev's by its tensors, so that a person chooses the family. Class names:
diffusers `FluxKontextPipeline` (0.42).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backend.base.problems import Problem
from backend.models.base import Base
from backend.models.files import SETTING
from backend.models.fit import config_of
from backend.models.flux import facts
from backend.models.flux.facts import geometry, scheduler_config
from backend.models.spec import Controls

__all__ = ["FACTS", "check_base_model", "geometry", "scheduler_config"]

FACTS = replace(
    facts.FACTS,
    name="flux_kontext",
    title="FLUX.1 Kontext",
    pipeline_class="FluxKontextPipeline",
    controls=Controls(),
)


def check_base_model(base: Base | Path, variant: str | None = None) -> list[Problem]:
    """Every problem of the base model; empty when it can be loaded. Reads configs and safetensors headers only."""
    base = Base.at(base, variant)
    problems = facts.check(base, FACTS, ("FluxKontextInpaintPipeline",))
    if problems or config_of(base, FACTS, "transformer").get("guidance_embeds", True):
        return problems
    text = "the transformer has no input for guidance, as FLUX.1 schnell, and Kontext has one"
    return [Problem(SETTING, None, text, "Choose a FLUX.1 Kontext model, or the family flux.")]
