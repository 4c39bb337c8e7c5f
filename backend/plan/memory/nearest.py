"""Finds the nearest change of settings that makes a run fit: cheap changes first, and no more than it takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.base.problems import errors
from backend.config.rules.check import check
from backend.config.schema import with_values
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.plan.memory.changes import LESS_RAM, LESS_VRAM, Change, Maker, Values
from backend.plan.memory.estimate import estimate
from backend.plan.memory.estimate_result import TIGHT, Estimate
from backend.plan.memory.machine import Gpu
from backend.plan.memory.parts import Parts, read_parts
from backend.plan.memory.work import RunWork

if TYPE_CHECKING:
    from backend.config.schema import Config

_WORTH_IT = 50_000_000
"""Bytes below which a change is not worth telling."""


@dataclass(frozen=True)
class Nearest:
    """Changes that together make the run fit, and the estimate after them; `fits` is False for the best there is."""

    changes: tuple[Change, ...]
    after: Estimate
    fits: bool

    @property
    def values(self) -> dict[str, Any]:
        """All settings that change."""
        return {path: value for change in self.changes for path, value in change.values.items()}

    @property
    def words(self) -> str:
        """The changes as one sentence without its full stop."""
        phrases = [change.words for change in self.changes]
        return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


class Search:
    """Tries changes on a config. Each trial is arithmetic on shapes that are read once."""

    def __init__(
        self,
        cfg: Config,
        work: RunWork,
        gpu: Gpu | None,
        parts: Parts | None = None,
        on_gpu: bool = True,
        ram_room: int | None = None,
    ) -> None:
        self.cfg, self.work, self.gpu, self.on_gpu, self.ram_room = cfg, work, gpu, on_gpu, ram_room
        self.parts = parts or read_parts(family(cfg.model.family), BaseModelFiles.of(cfg.model))
        self._known = _contradictions(cfg)

    def after(self, values: Values) -> Estimate | None:
        """The estimate with these settings changed; None where they contradict others of the config."""
        work = self.work
        if "dataset.resolution" in values:
            work = work.at_resolution(self.cfg.dataset.resolution, values["dataset.resolution"])
        if "dataset.batch_size" in values:
            work = work.at_batch(values["dataset.batch_size"])
        changed = with_values(self.cfg, values) if values else self.cfg
        if values and self.contradicts(changed):
            return None
        return estimate(changed, work, self.gpu, parts=self.parts, on_gpu=self.on_gpu, ram_room=self.ram_room)

    def contradicts(self, changed: Config) -> bool:
        """Whether a rule refuses something of `changed` that it does not refuse of the config."""
        return not _contradictions(changed) <= self._known

    def nearest(self) -> Nearest | None:
        """The cheapest changes that make the run fit with room to spare; None where it does already, or is unknown."""
        now = self.after({})
        if now is None or now.verdict in ("fits", "unknown"):
            return None
        kept: list[Change] = []
        best = now
        for make in _makers(now):
            helpful = self._best_of(list(make(self.cfg, self.parts)), kept, best)
            if helpful is None:
                continue
            kept, best = [*_besides(kept, helpful[0]), helpful[0]], helpful[1]
            if best.verdict == "fits":
                return self._pruned(kept, best)
        # Nothing fits with room to spare: what fits barely is better than nothing.
        return Nearest(tuple(kept), best, best.verdict != "does_not_fit") if kept else None

    def _best_of(self, changes: list[Change], kept: list[Change], before: Estimate) -> tuple[Change, Estimate] | None:
        """Of changes of one kind, mildest first: the first that is enough for the stages it helps, else what helps."""
        helps = None
        for change in changes:
            after = self.after(_values([*kept, change]))
            if after is None or _excess(after) >= _excess(before):
                continue
            helps = (change, after)
            if _enough(before, after):
                break
        return helps

    def cheapest(self, most: int = 3, stages: Collection[str] = (), need: int = 0) -> list[tuple[Change, int]]:
        """Single changes in order of cost, each of another setting, with the bytes that it takes off; at most `most`.

        stages: of the run, the largest of which is looked at; none for what decides. Of each kind it is the mildest
        that saves `need` bytes, else the one that saves most.
        """
        return self._offers(LESS_VRAM, lambda after: _largest(after, stages), most, need)

    def cheapest_in_ram(self, most: int = 3, need: int = 0) -> list[tuple[Change, int]]:
        """The same for RAM: changes after which the GPU still has room."""
        return self._offers(LESS_RAM, lambda after: after.ram_total, most, need)

    def _offers(
        self, makers: Sequence[Maker], size: Callable[[Estimate], int], most: int, need: int
    ) -> list[tuple[Change, int]]:
        now = self.after({})
        offers: list[tuple[Change, int]] = []
        for make in makers if now is not None else ():
            best = None
            for change in make(self.cfg, self.parts):
                after = self.after(change.values)
                if after is None or (makers is LESS_RAM and after.verdict == "does_not_fit"):
                    continue
                saved = size(now) - size(after)
                if saved > _WORTH_IT and (best is None or saved > best[1]):
                    best = (change, saved)
                if saved >= max(need, _WORTH_IT):
                    break
            if best is not None and not any(best[0].values.keys() & change.values.keys() for change, _ in offers):
                offers.append(best)
            if len(offers) == most:
                break
        return offers

    def _pruned(self, changes: list[Change], after: Estimate) -> Nearest:
        """Without those that turned out not to be needed, dearest first, and none stronger than it has to be."""
        kept, best = list(changes), after
        for change in list(reversed(changes))[1:]:
            fewer = [c for c in kept if c is not change]
            tried = self.after(_values(fewer))
            if tried is not None and tried.verdict == "fits":
                kept, best = fewer, tried
        for change in list(kept):
            for milder in self._milder(change):
                others = [milder if c is change else c for c in kept]
                tried = self.after(_values(others))
                if tried is not None and tried.verdict == "fits":
                    kept, best = others, tried
                    break
        return Nearest(tuple(kept), best, True)

    def _milder(self, change: Change) -> Iterator[Change]:
        """Changes of the same kind that do less."""
        for make in (*LESS_RAM, *LESS_VRAM):
            alike = list(make(self.cfg, self.parts))
            if change in alike:
                yield from alike[: alike.index(change)]


def _makers(now: Estimate) -> tuple[Maker, ...]:
    """The kinds of changes to try, those for RAM first where that is what does not suffice."""
    return LESS_RAM + LESS_VRAM if now.on_gpu and now.ram_verdict == "does_not_fit" else LESS_VRAM


def _contradictions(cfg: Config) -> set[str]:
    """What the rules between settings refuse of a config."""
    return {f"{problem.path}: {problem.text}" for problem in errors(check(cfg))}


def _besides(kept: list[Change], newer: Change) -> list[Change]:
    """Those that `newer` leaves something of."""
    return [change for change in kept if not change.values.keys() <= newer.values.keys()]


def _largest(candidate: Estimate, stages: Collection[str]) -> int:
    """Bytes of the largest of these stages; what decides where the run has none of them."""
    sizes = [stage.total for stage in candidate.stages if stage.name in stages]
    return max(sizes) if sizes and candidate.on_gpu else candidate.needed


def _excess(candidate: Estimate) -> int:
    """Bytes that all stages together have too many on the GPU, and the run in RAM."""
    ram = 0 if candidate.ram_room is None else max(0, candidate.ram_total - int(TIGHT * candidate.ram_room))
    if not candidate.on_gpu:
        return ram
    room = int(TIGHT * (candidate.room or 0))
    return ram + sum(max(0, stage.total - room) for stage in candidate.stages)


def _enough(before: Estimate, after: Estimate) -> bool:
    """Whether every stage that became smaller now has room to spare, and RAM too where that became less."""
    if not after.on_gpu:
        return after.verdict == "fits"
    if after.ram_total < before.ram_total and after.ram_verdict in ("tight", "does_not_fit"):
        return False
    was = {stage.name: stage.total for stage in before.stages}
    room = TIGHT * (after.room or 0)
    return all(stage.total <= room for stage in after.stages if stage.total < was.get(stage.name, 0))


def _values(changes: list[Change]) -> dict[str, Any]:
    return {path: value for change in changes for path, value in change.values.items()}
