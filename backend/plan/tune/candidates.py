"""Makes candidates of a tune out of choices: settings that no rule refuses, their plan, and whether they will fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from backend.base.problems import errors
from backend.config.load import ready
from backend.config.rules.check import check
from backend.config.schema import Config, get, with_values
from backend.dataset.items import DatasetScan
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.plan.finish.machine import visible_gpus
from backend.plan.make_plan import plan_for
from backend.plan.memory.estimate_result import Estimate
from backend.plan.memory.machine import Gpu, ram
from backend.plan.memory.nearest import Search
from backend.plan.memory.parts import Parts, read_parts
from backend.plan.memory.work import work_of
from backend.plan.plan import Plan
from backend.plan.tune.trials import WORTH

_MOST_KEPT = 400
_PLANNED = (
    *("dataset.", "training.gradient_accumulation_steps", "compile.compile", "compile.shape_mode"),
    "compile.static_token_count",
)
"""Of what a tune varies, the settings that a plan is made of, by how their names begin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """Settings that may be trained."""

    name: str
    factor: str
    values: Mapping[str, Any]
    """All that differs from the present settings."""
    changes: tuple[str, ...]
    config: Config
    plan: Plan
    estimate: Estimate | None
    """None where the base model can't be read."""

    @property
    def fits(self) -> bool:
        """Whether it is worth a probe: also where it is tight, or nothing is known."""
        return self.estimate is None or self.estimate.verdict != "does_not_fit"


class Candidates:
    """Makes candidates that differ from the present settings. Reads the base model's headers and the GPU once."""

    def __init__(self, config: Config, scan: DatasetScan) -> None:
        self.config, self.scan = config, scan
        self._refused = _refusals(config)
        self._known: dict[str, Candidate | None] = {}
        self._plans: dict[str, Plan] = {}

    @cached_property
    def gpu(self) -> Gpu | None:
        """What a run computes on; None for the CPU."""
        return next(iter(visible_gpus()), None)

    @cached_property
    def parts(self) -> Parts | None:
        """The base model's layers."""
        return read_parts(family(self.config.model.family), BaseModelFiles.of(self.config.model))

    def of(
        self, values: Mapping[str, Any], name: str, factor: str = "", changes: tuple[str, ...] = ()
    ) -> Candidate | None:
        """The present settings with these values; None where a rule refuses them, or less would be trained."""
        kept = {path: value for path, value in values.items() if value != get(self.config, path)}
        key = repr(sorted(kept.items()))
        if key not in self._known:
            if len(self._known) > _MOST_KEPT:
                self._known.clear()
            self._known[key] = self._made(kept)
        made = self._known[key]
        return None if made is None else replace(made, name=name, factor=factor, changes=changes)

    def _made(self, values: Mapping[str, Any]) -> Candidate | None:
        try:
            config = with_values(self.config, values)
        except ValidationError:
            return None
        if not _refusals(config) <= self._refused:
            return None
        plan = self._plan(config, values)
        if errors(plan.problems) or not plan.steps.steps or _trains_less(plan, self._plan(self.config, {})):
            return None
        search = Search(
            config,
            work_of(config, plan),
            self.gpu,
            self.parts,
            on_gpu=self.gpu is not None,
            ram_room=ram().total,
        )
        estimate = search.after({})
        if estimate is not None and errors(estimate.problems):
            return None
        return Candidate(name="", factor="", values=values, changes=(), config=config, plan=plan, estimate=estimate)

    def _plan(self, config: Config, values: Mapping[str, Any]) -> Plan:
        """The plan of `config`, made once for all that differ only in what no plan reads."""
        key = repr(sorted(item for item in values.items() if item[0].startswith(_PLANNED)))
        if key not in self._plans:
            self._plans[key] = plan_for(config, self.scan)
        return self._plans[key]


def _trains_less(plan: Plan, present: Plan) -> bool:
    """Whether a plan leaves out pictures that the present one trains, so that it ends sooner for want of work."""
    left, before = (each.steps.left_per_epoch / max(1, each.steps.entries) for each in (plan, present))
    return len(plan.chosen.never) > len(present.chosen.never) or left > before + WORTH


def _refusals(config: Config) -> set[str]:
    """What rules and a start refuse of these settings, missing packages too."""
    return {f"{problem.path}: {problem.text}" for problem in errors([*check(config), *ready(config)])}
