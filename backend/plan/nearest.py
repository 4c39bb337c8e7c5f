"""The nearest change of settings that makes a run fit: cheap changes first, and no more of them than it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.config.schema import get, with_values
from backend.models.base import Base
from backend.models.table import family
from backend.plan.machine import Card
from backend.plan.memory import TIGHT, Estimate, estimate
from backend.plan.memory_work import RunWork
from backend.plan.parts import Parts, read_parts

if TYPE_CHECKING:
    from backend.config.schema import Config

Values = Mapping[str, Any]
"""Setting (``section.name``) -> value."""

_SIZES = (768, 512)
_EIGHT_BIT = {"adamw": "adamw8bit", "adam": "adamw8bit", "lion": "lion8bit", "paged_adamw": "adamw8bit"}


@dataclass(frozen=True)
class Change:
    """Settings to change together. words: what to do. cost: what it costs beside memory, in a few words."""

    values: Values
    words: str
    cost: str


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
        said = [change.words for change in self.changes]
        return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


class Search:
    """Tries changes on a config. Each trial is arithmetic on shapes that are read once."""

    def __init__(
        self,
        cfg: Config,
        work: RunWork,
        card: Card | None,
        parts: Parts | None = None,
        on_card: bool = True,
        ram_room: int | None = None,
    ) -> None:
        self.cfg, self.work, self.card, self.on_card, self.ram_room = cfg, work, card, on_card, ram_room
        self.parts = parts or read_parts(family(cfg.model.family), Base.of(cfg.model))

    def after(self, values: Values) -> Estimate | None:
        """The estimate with these settings changed."""
        work = self.work
        if "dataset.resolution" in values:
            work = work.at_resolution(self.cfg.dataset.resolution, values["dataset.resolution"])
        if "dataset.batch_size" in values:
            work = work.at_batch(values["dataset.batch_size"])
        changed = with_values(self.cfg, values) if values else self.cfg
        return estimate(changed, work, self.card, parts=self.parts, on_card=self.on_card, ram_room=self.ram_room)

    def nearest(self) -> Nearest | None:
        """The cheapest changes that make the run fit with room to spare; None where it does already, or is unknown."""
        now = self.after({})
        if now is None or now.verdict in ("fits", "unknown"):
            return None
        kept: list[Change] = []
        best = now
        for make in _MAKERS:
            found = self._best_of(list(make(self.cfg, self.parts)), kept, best)
            if found is None:
                continue
            kept, best = [*kept, found[0]], found[1]
            if best.verdict == "fits":
                return self._pruned(kept, best)
        # Nothing fits with room to spare: what fits barely is better than nothing.
        return Nearest(tuple(kept), best, best.verdict != "does_not_fit") if kept else None

    def _best_of(self, changes: list[Change], kept: list[Change], before: Estimate) -> tuple[Change, Estimate] | None:
        """Of changes of one kind, mildest first: the first that is enough for the stages it helps, else what helps."""
        helps = None
        for change in changes:
            after = self.after(_values([*kept, change]))
            if after is None or _excess(after) >= _excess(before) or after.ram_verdict == "does_not_fit":
                continue
            helps = (change, after)
            if _enough(before, after):
                break
        return helps

    def cheapest(self, most: int = 3) -> list[tuple[Change, int]]:
        """Single changes in order of cost, with the bytes that each takes off the worst stage; at most `most`."""
        now = self.after({})
        if now is None:
            return []
        found = []
        for change in candidates(self.cfg, self.parts):
            after = self.after(change.values)
            saved = 0 if after is None else now.needed - after.needed
            if saved > 50_000_000:
                found.append((change, saved))
            if len(found) == most:
                break
        return found

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
        for make in _MAKERS:
            alike = list(make(self.cfg, self.parts))
            if change in alike:
                yield from alike[: alike.index(change)]


def candidates(cfg: Config, parts: Parts | None) -> list[Change]:
    """Changes that this config allows, in order of least cost: first what costs nothing, then time, then quality."""
    return [change for make in _MAKERS for change in make(cfg, parts)]


def _excess(found: Estimate) -> int:
    """Bytes that all stages together have too many."""
    if not found.on_card:
        return max(0, found.ram_total - int(TIGHT * (found.ram_room or 0)))
    room = int(TIGHT * (found.room or 0))
    return sum(max(0, stage.total - room) for stage in found.stages)


def _enough(before: Estimate, after: Estimate) -> bool:
    """Whether every stage that became smaller now has room to spare."""
    if not after.on_card:
        return after.verdict == "fits"
    was = {stage.name: stage.total for stage in before.stages}
    room = TIGHT * (after.room or 0)
    return all(stage.total <= room for stage in after.stages if stage.total < was.get(stage.name, 0))


def _values(changes: list[Change]) -> dict[str, Any]:
    return {path: value for change in changes for path, value in change.values.items()}


def _tiling(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if cfg.memory.offload_by_turns == "off":
        yield Change({"memory.offload_by_turns": "auto"}, "let the denoiser wait while samples are decoded", "seconds")
    if cfg.memory.vae_tiling == "off":
        yield Change({"memory.vae_tiling": "auto"}, "let the VAE work in tiles", "nothing that can be seen")


def _optimizer(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    name = _EIGHT_BIT.get(cfg.optimizer.optimizer)
    if name:
        yield Change({"optimizer.optimizer": name}, f"use the optimizer {name}", "next to nothing")


def _checkpointing(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    path = "training.gradient_checkpointing"
    value = get(cfg, path)
    if value in (False, "off"):
        block = True if isinstance(value, bool) else "block"
        yield Change({path: block}, "turn on gradient checkpointing", "about 40 % more time a step")


def _kind(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if cfg.training.gradient_checkpointing and cfg.memory.checkpointing_kind == "selective":
        yield Change({"memory.checkpointing_kind": "auto"}, "checkpoint every block", "some time a step")
    if cfg.training.gradient_checkpointing and cfg.memory.checkpointing_kind != "offload":
        words = "keep the blocks' inputs in RAM (checkpointing_kind offload)"
        yield Change({"memory.checkpointing_kind": "offload"}, words, "a little time a step")


def _text(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    path = "memory.text_encoder_quantization"
    if get(cfg, path) == "none":
        for name in ("int8", "nf4"):
            yield Change({path: name}, f"load the text encoders in {name}", "slightly other captions")


def _base(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if cfg.memory.base_quantization == "none" and cfg.memory.base_compute == "bf16":
        yield Change({"memory.base_quantization": "int8"}, "keep the base model in int8", "a little precision")


def _swap(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    path = "memory.blocks_to_swap"
    if parts is None:
        return
    blocks = len(parts.denoiser.blocks)
    now = get(cfg, path)
    step = max(1, blocks // 14)
    # auto would leave linear layers out of the graphs, which swap does not need and which compiles for minutes.
    whole = {"compile.disable_linear": "off"} if cfg.compile.compile and cfg.compile.disable_linear == "auto" else {}
    for count in range(now + step, blocks - 1, step):
        yield Change({path: count, **whole}, f"swap {count} of {blocks} blocks", "time where the bus is slow")


def _batch(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    batch, accumulation = cfg.dataset.batch_size, cfg.training.gradient_accumulation_steps
    if batch > 1:
        values = {"dataset.batch_size": 1, "training.gradient_accumulation_steps": accumulation * batch}
        yield Change(values, f"use batches of 1, accumulated {accumulation * batch} times", "some time a step")


def _resolution(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    for size in _SIZES:
        if size < cfg.dataset.resolution:
            yield Change({"dataset.resolution": size}, f"train at {size} px", "fine detail")


def _harder(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if cfg.memory.base_quantization != "nf4" and cfg.memory.base_compute == "bf16":
        yield Change({"memory.base_quantization": "nf4"}, "keep the base model in NF4", "more of its precision")


def _rank(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    rank = cfg.network.network_dim
    if rank >= 16:
        values = {"network.network_dim": rank // 2, "network.network_alpha": cfg.network.network_alpha / 2}
        yield Change(values, f"use rank {rank // 2}", "some of what the LoRA can learn")


_MAKERS: tuple[Callable[[Config, Parts | None], Iterator[Change]], ...] = (
    _tiling,
    _optimizer,
    _checkpointing,
    _kind,
    _text,
    _base,
    _swap,
    _batch,
    _resolution,
    _harder,
    _rank,
)
