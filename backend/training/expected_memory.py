"""Estimates a run's memory before anything large loads, and compares the estimate with the peak at the run's end."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from backend.base.errors import Refused
from backend.base.files import write_atomic
from backend.base.problems import Problem
from backend.config.schema import Config
from backend.memory.meter import Meter
from backend.plan.memory.estimate_result import OUTSIDE, Estimate
from backend.plan.memory.machine import Gpu, ram
from backend.plan.memory.nearest import Search
from backend.plan.memory.report import STAGES, against_peak, gigabytes, memory_dict, memory_lines, nearest_words
from backend.plan.memory.work import RunWork
from backend.runs.events import EventWriter
from backend.runs.events.kinds import MemoryEstimateEvent, MemoryPeakEvent, WarningEvent

log = logging.getLogger(__name__)

FILE = "memory.json"
"""Holds the estimate and the peak, in the run's folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedMemory:
    """The estimate of a run."""

    search: Search
    """Looks for settings that need less; it knows the run's shapes."""
    estimate: Estimate

    @classmethod
    def of(cls, cfg: Config, work: RunWork, device: torch.device) -> ExpectedMemory | None:
        """For a run on `device`; None where the base model's files say nothing."""
        search = Search(cfg, work, gpu_of(device), on_gpu=device.type == "cuda", ram_room=ram().total)
        estimate = search.after({})
        return None if estimate is None else cls(search=search, estimate=estimate)

    def write(self, events: EventWriter) -> None:
        """Write the estimate down, as an event, in the log and in the run's folder."""
        nearest = self.search.nearest()
        fields = memory_dict(self.estimate, nearest)
        events.write(MemoryEstimateEvent(**fields))
        _write(events, {"estimate": fields})
        for line in memory_lines(self.estimate, nearest):
            log.info(line)
        if self.estimate.verdict == "does_not_fit":
            remedy = "" if nearest is None else nearest_words(nearest)
            events.write(WarningEvent(text=memory_lines(self.estimate, None)[0], remedy=remedy))

    def refuse_if_too_large(self) -> None:
        """Refused for stages whose weights alone are more than there is: what activations add is not yet counted."""
        room = self.estimate.room
        if room is None or not self.search.on_gpu:
            return
        short = [stage for stage in self.estimate.stages if stage.surely + OUTSIDE > room]
        if not short:
            return
        if any(stage.name == "train" for stage in short):
            # those after it hold the same weights
            short = [stage for stage in short if stage.name.startswith("encode") or stage.name == "train"]
        nearest = self.search.nearest()
        remedy = "Use a GPU with more memory." if nearest is None else nearest_words(nearest)
        raise Refused.of([Problem("memory.vram_limit_gb" if self._limited else "model.base_model", None, text, remedy)
                          for text in (self._short(stage) for stage in short)])  # fmt: skip

    @property
    def _limited(self) -> bool:
        gpu = self.estimate.gpu
        return self.estimate.limit is not None and gpu is not None and self.estimate.limit < gpu.free

    def _short(self, stage: Any) -> str:
        gpu, room = self.estimate.gpu, self.estimate.room
        assert gpu is not None and room is not None
        sizes = ", ".join(f"{name.replace('_', ' ')} {gigabytes(size)}" for name, size in stage.sure.items() if size)
        has = "vram_limit_gb leaves" if self._limited else f"{gpu.name} has"
        of = "" if self._limited else f" free of {gigabytes(gpu.total)}"
        needs = gigabytes(stage.surely + OUTSIDE)
        return (
            f"The model does not fit the GPU: {STAGES[stage.name].lower()} needs at least {needs} ({sizes}, "
            f"{gigabytes(OUTSIDE)} for CUDA itself), and {has} {gigabytes(room)}{of}"
        )


def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU that a run is on. What this process itself holds already counts as free."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    free = min(total, free + torch.cuda.memory_reserved(device) + OUTSIDE)
    return Gpu(torch.cuda.get_device_name(device), total, free)


def limit(gigabytes_: float | None, device: torch.device) -> str | None:
    """Limit torch's allocator to `memory.vram_limit_gb`; a sentence when that has no effect."""
    if gigabytes_ is None:
        return None
    if device.type != "cuda":
        return "vram_limit_gb has no effect: this run computes on the CPU"
    total = torch.cuda.mem_get_info(device)[1]
    # What CUDA itself takes is outside the allocator and within the limit.
    share = max(gigabytes_ * 2**30 - OUTSIDE, 2**28) / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    return None


def peak_ram() -> int:
    """The most RAM that this process has held, in bytes; where the system does not keep it, what it holds now."""
    try:
        import resource
    except ImportError:
        # Windows
        memory = psutil.Process().memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))
    import sys

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)


def _estimated(estimate: Estimate, kept: int) -> tuple[int, bool]:
    """Bytes of the largest stage, and whether recordings are among them: not where the run has `kept` none."""
    counted = kept > 0 and any("recordings" in stage.parts for stage in estimate.stages)
    aside = [0 if counted else stage.parts.get("recordings", 0) for stage in estimate.stages]
    return max(s.allocated - less for s, less in zip(estimate.stages, aside, strict=True)), counted


def compare_with_peak(events: EventWriter, expected: ExpectedMemory | None, meter: Meter) -> dict[str, Any]:
    """Write what was used and what was estimated: event `memory_peak`, log, run folder; returns the fields."""
    fields: dict[str, Any] = {"ram_peak": peak_ram()}
    if meter.device.type == "cuda":
        fields["vram_peak"] = meter.vram_peak()
        fields["vram_reserved_peak"] = torch.cuda.max_memory_reserved(meter.device)
    if expected is not None:
        fields["ram_estimated"] = expected.estimate.ram_total
        if "vram_peak" in fields:
            kept = meter.kept
            fields["vram_estimated"], counted = _estimated(expected.estimate, kept)
            fields["vram_compared"] = fields["vram_peak"] - (0 if counted else kept)
            fields["words"] = against_peak(fields["vram_estimated"], fields["vram_compared"])
            if kept and not counted:
                fields["words"] += f"; besides, recorded passes keep {gigabytes(kept)}"
            log.info("Video memory: %s", fields["words"])
        log.info("RAM: %s", against_peak(fields["ram_estimated"], fields["ram_peak"]))
    events.write(MemoryPeakEvent(**fields))
    _write(events, {"peak": fields})
    return fields


def _write(events: EventWriter, part: dict[str, Any]) -> None:
    """Add a part to the run's memory.json; a disk that is full costs the record and not the run."""
    path = events.path.parent / FILE
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        write_atomic(path, json.dumps(known | part, indent=1).encode())
    except (OSError, ValueError) as error:
        log.warning("%s could not be written: %s", path, error)
