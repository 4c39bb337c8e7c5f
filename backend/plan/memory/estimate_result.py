"""Defines an estimate of a run's memory: stages of parts, compared with a GPU and the machine's RAM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backend.base.problems import Problem
from backend.plan.memory.machine import Gpu
from backend.plan.memory.settings import MemorySettings

_NOT_SURE = ("activations", "recordings", "pictures", "workspace")

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]

OUTSIDE = 700_000_000
"""Bytes on the GPU that torch's allocator does not count: CUDA's context, kernels, libraries' own."""

SLACK = 0.02
"""Share of what is allocated that the allocator reserves beside it: rounding and fragments."""

TIGHT = 0.93
"""Above this share of what there is, small differences between machines decide."""

ROOMY = 0.85
"""Up to this share of what there is a run may take memory for speed: estimates of clips were 9 % too low at most."""


@dataclass(frozen=True)
class Stage:
    """A stage of the run."""

    name: str
    parts: Mapping[str, int]
    """Name -> bytes in torch's allocator."""
    host: Mapping[str, int] = field(default_factory=dict)
    """Name -> bytes in RAM, in addition to the process itself."""

    @property
    def allocated(self) -> int:
        """What torch's allocator will show as its peak."""
        return sum(self.parts.values())

    @property
    def sure(self) -> dict[str, int]:
        """The parts that are known to the byte: weights and what belongs to the LoRA."""
        return {name: size for name, size in self.parts.items() if name not in _NOT_SURE}

    @property
    def surely(self) -> int:
        """Bytes of those."""
        return sum(self.sure.values())

    @property
    def total(self) -> int:
        """What the GPU must have free: with the allocator's slack and what lies outside of it."""
        return int(self.allocated * (1 + SLACK)) + OUTSIDE


@dataclass(frozen=True)
class Estimate:
    """The memory that a run needs, with what there is of it. Sizes in bytes."""

    stages: tuple[Stage, ...]
    """In the order in which they run."""
    ram: Mapping[str, int]
    """Part -> bytes of the machine's memory at its worst moment."""
    gpu: Gpu | None = None
    """What the stages are compared with; None when no GPU is known."""
    limit: int | None = None
    """`memory.vram_limit_gb` in bytes."""
    rough: bool = False
    """The family says nothing about its activations."""
    settings: MemorySettings | None = None
    """The settings it was made from, with auto resolved."""
    on_gpu: bool = True
    """False for a run on the CPU."""
    ram_room: int | None = None
    """RAM of the machine; None where it is not this one."""
    problems: tuple[Problem, ...] = ()
    """Errors of settings that only the model's size shows."""

    @property
    def peak(self) -> Stage:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.allocated)

    def stage(self, name: str) -> Stage | None:
        """The stage called `name`, if the run has it."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def room(self) -> int | None:
        """Bytes of the GPU that the run may use."""
        return room_of(self.gpu, self.limit)

    @property
    def verdict(self) -> Verdict:
        """Whether the worst stage fits the GPU and the run the machine's RAM; on a CPU, the latter alone."""
        return self.ram_verdict if not self.on_gpu or self.ram_decides else self.gpu_verdict

    @property
    def gpu_verdict(self) -> Verdict:
        """Whether the worst stage fits the GPU."""
        return verdict(self.peak.total, self.room)

    @property
    def ram_decides(self) -> bool:
        """Whether a run on a GPU has room there, and less or none in RAM."""
        order = ("unknown", "fits", "tight", "does_not_fit")
        known = self.gpu_verdict != "unknown"
        return self.on_gpu and known and order.index(self.ram_verdict) > order.index(self.gpu_verdict)

    @property
    def ram_verdict(self) -> Verdict:
        """Whether what is in RAM fits there."""
        return verdict(self.ram_total, self.ram_room)

    @property
    def needed(self) -> int:
        """Bytes that decide: of the GPU in the worst stage, or of RAM."""
        return self.ram_total if not self.on_gpu or self.ram_decides else self.peak.total

    @property
    def ram_total(self) -> int:
        """Bytes of RAM at the worst moment."""
        return sum(self.ram.values())


def verdict(needed: int, room: int | None) -> Verdict:
    """Whether `needed` bytes fit into `room`."""
    if room is None:
        return "unknown"
    if needed > room:
        return "does_not_fit"
    return "tight" if needed > TIGHT * room else "fits"


def room_of(gpu: Gpu | None, limit: int | None) -> int | None:
    """Bytes of `gpu` that a run with this limit may use."""
    if gpu is None:
        return None
    return min(gpu.free, limit) if limit else gpu.free
