"""Computes steps from images: repeats, batches, drops, epochs, accumulation, as one sum that a person can check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backend.dataset.batches import Group, kept
from backend.dataset.items import count_of


@dataclass(frozen=True)
class GroupCount:
    """Pictures that may share batches: entries (pictures times repeats) and what an epoch makes of them."""

    name: str
    entries: int
    used: int
    batches: int

    @property
    def left(self) -> int:
        """Entries that an epoch leaves out; which ones changes from epoch to epoch."""
        return self.entries - self.used


@dataclass(frozen=True)
class StepPlan:
    """The length of a run. Batches run on from epoch to epoch; every `batches_per_step` of them make a step.

    With n = `batches_per_step`, step s (from 0) uses the batches s n to (s + 1) n - 1 of the whole run. Too few batches
    at the end make no step (`batches_over`).
    """

    images: int
    entries: int
    buckets: int
    batch_size: int
    groups: tuple[GroupCount, ...]
    accumulation: int
    """Batches of a step that each process trains, one after the other."""
    steps: int
    asked_epochs: int | None
    processes: int = 1
    """Each trains a batch of its own at the same time as the others."""

    @property
    def batches_per_step(self) -> int:
        """Batches whose mean gradient is a step."""
        return self.accumulation * self.processes

    @property
    def images_per_step(self) -> int:
        """Of whole batches."""
        return self.batch_size * self.batches_per_step

    @property
    def batches_per_epoch(self) -> int:
        """Batches of every epoch."""
        return sum(group.batches for group in self.groups)

    @property
    def left_per_epoch(self) -> int:
        """Entries that each epoch leaves out."""
        return sum(group.left for group in self.groups)

    @property
    def batches(self) -> int:
        """Batches that the steps use."""
        return self.steps * self.batches_per_step

    @property
    def batches_over(self) -> int:
        """Batches at the end of the epochs asked for that are too few for a step."""
        return 0 if self.asked_epochs is None else self.asked_epochs * self.batches_per_epoch - self.batches

    @property
    def epochs(self) -> float:
        """Passes over the data set."""
        return self.batches / self.batches_per_epoch if self.batches_per_epoch else 0.0

    def sentence(self) -> str:
        """The whole sum in one line."""
        repeats = self.entries / self.images if self.images else 0
        times = "1 repeat" if repeats == 1 else f"{repeats:.4g} repeats"
        full = f"{count_of(self.batches_per_epoch, 'batch')} of {self.batch_size}"
        left = f" ({self.left_per_epoch:,} {self._left_word()} each epoch)" if self.left_per_epoch else ""
        head = f"{count_of(self.images, 'image')} x {times} -> {count_of(self.buckets, 'bucket')} -> {full}{left}"
        if self.asked_epochs is not None:
            over = f" ({self.batches_over} left over)" if self.batches_over else ""
            total = self.asked_epochs * self.batches_per_epoch
            return (
                f"{head} x {count_of(self.asked_epochs, 'epoch')} = {count_of(total, 'batch')} "
                f"/ {self._step_words()} = {count_of(self.steps, 'step')}{over}"
            )
        return (
            f"{head}; {count_of(self.steps, 'step')} x {self._step_words()} "
            f"= {count_of(self.batches, 'batch')} = {self.epochs:,.4g} {'epoch' if self.epochs == 1 else 'epochs'}"
        )

    def _step_words(self) -> str:
        """What a step takes its batches by."""
        processes = f" x {self.processes} processes" if self.processes > 1 else ""
        return f"accumulation {self.accumulation}{processes}"

    def _left_word(self) -> str:
        return "left out" if any(group.used % self.batch_size for group in self.groups) else "dropped"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the page, with the derived numbers."""
        return {
            "images": self.images,
            "entries": self.entries,
            "buckets": self.buckets,
            "batch_size": self.batch_size,
            "batches_per_epoch": self.batches_per_epoch,
            "left_per_epoch": self.left_per_epoch,
            "accumulation": self.accumulation,
            "processes": self.processes,
            "images_per_step": self.images_per_step,
            "steps": self.steps,
            "batches": self.batches,
            "batches_over": self.batches_over,
            "epochs": round(self.epochs, 4),
            "sentence": self.sentence(),
        }


def plan_steps(
    *,
    images: int,
    buckets: int,
    groups: Sequence[Group],
    batch_size: int,
    sample_ratio: float,
    accumulation: int,
    max_steps: int | None,
    max_epochs: int | None,
    processes: int = 1,
) -> StepPlan:
    """The length of a run of `max_steps`, or of `max_epochs` where that is None.

    With a sample_ratio below 1 an epoch keeps its incomplete batches; else they are dropped.
    """
    drop_last = sample_ratio >= 1.0
    counts = []
    for group in groups:
        used = kept(len(group.indices), batch_size, drop_last, sample_ratio)
        counts.append(GroupCount(group.name, len(group.indices), used, -(-used // batch_size)))
    per_epoch = sum(count.batches for count in counts)
    asked = max_epochs if max_steps is None else None
    if asked is not None:
        steps = asked * per_epoch // (accumulation * processes)
    else:
        steps = (max_steps or 0) if per_epoch else 0
    entries = sum(len(group.indices) for group in groups)
    return StepPlan(images, entries, buckets, batch_size, tuple(counts), accumulation, steps, asked, processes)
