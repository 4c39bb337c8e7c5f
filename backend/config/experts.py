"""Decides which experts of a model of two a run trains: their noise levels and turns. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backend.families.spec import Side
from backend.families.table import FAMILIES

if TYPE_CHECKING:
    from backend.config.schema import Config

SIDES: tuple[Side, Side] = ("high", "low")
"""In the order of their turns."""

ENDINGS: dict[Side, str] = {"high": "_high_noise", "low": "_low_noise"}
"""Of the names of their LoRA files, without the suffix."""


# the last one: a run may be called low_noise itself
_SIDE = re.compile(r"(.*(?<![a-z]))(?:high|low)(_noise(?![a-z]).*)", re.DOTALL)


def expert_file(path: Path, side: Side) -> Path:
    """The LoRA file of an expert, of a pair of which `path` is either; `path` itself where its name names no expert."""
    parts = _SIDE.fullmatch(path.name)
    return path if parts is None else path.with_name(f"{parts[1]}{side}{parts[2]}")


@dataclass(frozen=True, slots=True)
class Turns:
    """The experts are trained by turns of `every` steps, the one for high noise first."""

    every: int

    def side(self, step: int) -> Side:
        """The expert that is trained in the step after `step` steps."""
        return SIDES[step // self.every % 2]

    def steps(self, side: Side, total: int) -> int:
        """Steps among the first `total` that train this expert."""
        rounds, rest = divmod(total, 2 * self.every)
        first = min(rest, self.every)
        return rounds * self.every + (first if side == "high" else rest - first)


def boundary_of(cfg: Config) -> float | None:
    """Noise level from which the expert for high noise works; None of a family without experts."""
    facts = FAMILIES.get(cfg.model.family)
    if facts is None or facts.experts is None:
        return None
    own = cfg.timesteps.timestep_boundary
    return facts.experts.boundary if own is None else own


def sides_of(cfg: Config) -> tuple[Side, ...]:
    """The experts that a run trains by name; none with auto, or of a family without experts."""
    choice = cfg.timesteps.train_experts
    if choice == "auto" or boundary_of(cfg) is None:
        return ()
    return SIDES if choice == "both" else (choice,)


def turns_of(cfg: Config) -> Turns | None:
    """The turns of a run that trains both; None of any other."""
    return Turns(cfg.timesteps.switch_boundary_every) if len(sides_of(cfg)) == 2 else None


def timestep_range(cfg: Config, side: Side | None) -> tuple[float, float]:
    """The least and the highest timestep, of 1000, that the expert `side` is trained at; of the run where it is None.

    The draw of the settings is brought into this range, as that of min_timestep and max_timestep is.
    """
    times, boundary = cfg.timesteps, boundary_of(cfg)
    if side is None or boundary is None:
        return times.min_timestep, times.max_timestep
    edge = boundary * 1000
    if side == "high":
        return max(times.min_timestep, edge), times.max_timestep
    return times.min_timestep, min(times.max_timestep, edge)
