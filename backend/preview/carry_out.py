"""Carries out a request: draws its pictures into a folder, each file whole, and says what it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from backend.base.errors import Refused
from backend.base.files import in_words, write_atomic
from backend.base.paths import resolve
from backend.compile.telemetry import CompileStats
from backend.config.schema import Config, SamplePrompt
from backend.plan.memory.estimate_result import OUTSIDE
from backend.plan.memory.machine import ram
from backend.plan.memory.preview import SUBJECT, PreviewSearch, PreviewWork
from backend.plan.memory.report import against_peak, gigabytes, headline, nearest_words
from backend.preview.loras import LoraChoice
from backend.preview.pipeline import Choices, Pipeline
from backend.preview.watch import Watch
from backend.runs.folder import Run
from backend.runs.preview.request import Cell, PreviewRequest, Row, checkpoints_of
from backend.training.expected_memory import ExpectedMemory, gpu_of
from backend.training.sampling import write_sample


@dataclass(kw_only=True, slots=True)
class Studio:
    """Keeps the pipeline of the last request, for requests that it can draw too."""

    pipeline: Pipeline | None = None
    expected: ExpectedMemory | None = None
    """What the open pipeline was estimated to need."""
    _made_of: dict[str, Any] = field(default_factory=dict)

    def ready(self, request: PreviewRequest, watch: Watch) -> Pipeline:
        """A pipeline for the request: the one that is open, or a new one in its place."""
        sets = [choices_of(row) for row in request.rows]
        made_of = _settings_that_count(request.config)
        if self.pipeline is not None and made_of == self._made_of:
            if self.pipeline.fits(sets):
                return self.pipeline
            watch.note("These LoRAs are larger, or change more layers, than the ones before: the blocks compile again.")
        self.close()
        self.pipeline = Pipeline.open(
            request.config,
            sets,
            request.prompts,
            watch,
            _newest_of_run(request),
            check=lambda device: self._check_memory(request, device, watch),
        )
        self._made_of = made_of
        return self.pipeline

    def _check_memory(self, request: PreviewRequest, device: torch.device, watch: Watch) -> None:
        """Estimate what the request needs. Refused where the weights alone are more than the GPU has free."""
        self.expected = expected_memory(request, device)
        if self.expected is None:
            return
        self.expected.refuse_if_too_large()
        if self.expected.estimate.verdict in ("tight", "does_not_fit"):
            nearest = self.expected.search.nearest()
            remedy = "" if nearest is None else f" {nearest_words(nearest)}"
            watch.note(f"{headline(self.expected.estimate, SUBJECT)}{remedy}")

    def close(self) -> None:
        """Give the memory back."""
        if self.pipeline is not None:
            self.pipeline.close()
        self.pipeline, self.expected, self._made_of = None, None, {}


@dataclass(kw_only=True, slots=True)
class Account:
    """What a preview took."""

    load: float
    text: float
    first: float
    last: float
    stats: CompileStats
    compiled: str
    """off, compiled, partly or fallback."""
    why: str | None
    """Why less is compiled than was asked for."""
    peak_vram: int
    """Bytes; 0 without a GPU."""
    held_vram: int
    """Bytes of the GPU that the process holds now; 0 without one."""
    estimated_vram: int
    """Bytes that were estimated before anything was loaded; 0 where nothing was."""

    @classmethod
    def of(cls, studio: Studio) -> Account:
        """That of the studio's open pipeline, so far."""
        pipeline, expected = studio.pipeline, studio.expected
        assert pipeline is not None
        seconds, report, device = pipeline.seconds, pipeline.compiled.report, pipeline.base.device
        on_gpu = device.type == "cuda"
        return cls(
            load=seconds.load,
            text=seconds.text,
            first=seconds.first,
            last=seconds.last,
            stats=pipeline.stats(),
            compiled=report.state,
            why=report.why,
            peak_vram=torch.cuda.max_memory_allocated(device) if on_gpu else 0,
            held_vram=torch.cuda.memory_reserved(device) + OUTSIDE if on_gpu else 0,
            estimated_vram=expected.estimate.peak.allocated if expected is not None and on_gpu else 0,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "load_s": round(self.load, 2),
            "text_s": round(self.text, 2),
            "first_s": round(self.first, 2),
            "last_s": round(self.last, 2),
            "compile_s": round(self.stats.seconds, 2),
            "cold": self.is_cold,
            "graphs": self.stats.graphs,
            "recompiles": self.stats.recompiles,
            "compiled": self.compiled,
            "why": self.why,
            "peak_vram": self.peak_vram,
            "held_vram": self.held_vram,
            "estimated_vram": self.estimated_vram,
        }

    @property
    def is_cold(self) -> bool:
        """Whether something was compiled that was not in the compile cache."""
        return self.stats.cache_misses > 0

    def lines(self) -> list[str]:
        """What a terminal shows at the end."""
        start = f"start {self.first:.1f} s to the first picture (text {self.text:.1f}, model {self.load:.1f}"
        if self.compiled in ("compiled", "partly"):
            kind = "cold" if self.is_cold else "warm"
            start += f", compile {self.stats.seconds:.1f}: {kind}"
        lines = [f"{start}); newest picture {self.last:.1f} s"]
        if self.compiled == "off":
            lines.append("compile: off")
        else:
            why = f" ({self.why})" if self.why else ""
            graphs = f"{self.stats.graphs} graphs, {self.stats.recompiles} recompiles"
            lines.append(f"compile: {self.compiled}{why}, {graphs}")
        if self.peak_vram and self.estimated_vram:
            lines.append(f"VRAM: {against_peak(self.estimated_vram, self.peak_vram)}")
        elif self.peak_vram:
            lines.append(f"VRAM: {gigabytes(self.peak_vram)} at most")
        return lines


def carry_out(
    request: PreviewRequest,
    folder: Path,
    studio: Studio,
    watch: Watch,
    drawn: Callable[[Cell], None] = lambda cell: None,
) -> Pipeline:
    """Draw the pictures of `request` into `folder`, under their cells' names. drawn: called after each.

    Refused for what can't be drawn, `Interrupted` when it is cancelled: what is there by then is whole.
    """
    pipeline = studio.ready(request, watch)
    for cell in request.cells():
        draw_cell(request, cell, folder, pipeline, watch)
        drawn(cell)
    return pipeline


def draw_cell(request: PreviewRequest, cell: Cell, folder: Path, pipeline: Pipeline, watch: Watch) -> None:
    """Draw one picture or clip of `request` into `folder`. Raises as `carry_out`."""
    folder.mkdir(parents=True, exist_ok=True)
    row, prompt = request.rows[cell.row], request.prompts[cell.column]
    try:
        pixels = pipeline.draw(prompt, choices_of(row), watch)
        write_sample(folder / cell.file, pixels, prompt, _facts(request, row, prompt), pipeline.base.video)
    except ValueError as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"the picture of {prompt.prompt!r} ({row.name}) is lost: {error}", _NAN_REMEDY) from error
    if request.copies:
        _copy(folder / cell.file, Path(request.copies[cell.column]))


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise in_words(error, target) from error
    write_atomic(target, source.read_bytes())


_NAN_REMEDY = "Lower the strength, or set weight_dtype to bf16 or fp32."


def expected_memory(request: PreviewRequest, device: torch.device) -> ExpectedMemory | None:
    """What the request is estimated to need on `device`; None where the base model's files say nothing."""
    on_gpu, room = device.type == "cuda", ram().total
    search = PreviewSearch(request.config, PreviewWork.of(request), gpu_of(device), on_gpu=on_gpu, ram_room=room)
    estimate = search.after({})
    return None if estimate is None else ExpectedMemory(search=search, estimate=estimate)


def choices_of(row: Row) -> Choices:
    """The LoRAs of a row."""
    return tuple(LoraChoice(path=resolve(use.path), strength=use.strength) for use in row.loras)


def _facts(request: PreviewRequest, row: Row, prompt: SamplePrompt) -> dict[str, Any]:
    """What a picture says of its making besides the prompt, in place of its paths too: names of files, no places."""
    base = request.config.model.base_model
    loras = [{"file": resolve(use.path).name, "strength": use.strength} for use in row.loras]
    named = {"family": request.config.model.family, "base": resolve(base).name if base else None, "loras": loras}
    controls = {column: resolve(path).name for column, path in prompt.controls.items()}
    return {**named, **controls, **row.facts}


def _settings_that_count(cfg: Config) -> dict[str, Any]:
    """What a pipeline is made of: other settings may differ."""
    sections = {name: getattr(cfg, name).model_dump() for name in ("model", "memory", "compile")}
    return {**sections, "merged": cfg.network.merged, "precision": cfg.training.mixed_precision}


def _newest_of_run(request: PreviewRequest) -> list[Choices]:
    """The newest LoRA file of the request's run, so that there is room for it and for those before it.

    Of its own saves: the run may write its best file again at this moment.
    """
    files = [] if request.run is None else [each for each in checkpoints_of(Run(request.run)) if each.role is None]
    return [(LoraChoice(path=each.path),) for each in files[-1:]]
