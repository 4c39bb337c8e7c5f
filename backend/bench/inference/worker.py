"""Draws the pictures of one measurement in a process of its own, and prints what they took as one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from backend.base.library_imports import library_imports
from backend.bench.inference.scenes import ALL_BLOCKS
from backend.config.schema import Config, SamplePrompt
from backend.memory.allocators import use_expandable_segments


class _Quiet:
    """A preview's watch that tells nobody."""

    def phase(self, name: str, total: int | None = None) -> None:
        """As `backend.preview.watch.Watch`."""

    def advance(self) -> None:
        """As `backend.preview.watch.Watch`."""

    def note(self, text: str) -> None:
        """As `backend.preview.watch.Watch`."""
        sys.stderr.write(f"{text}\n")


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Draw and time. Refused, or an error of the device, where it can't be done.

    job: base and family of the model, settings by name, prompt (values of a `SamplePrompt`), pictures to draw; swaps:
    whether they are one of each of some LoRAs, and of the first one again.
    """
    with library_imports():
        from backend.preview.carry_out import Studio, draw_cell
        from backend.runs.preview.request import PreviewRequest

    cfg, rows = settings_of(job), _rows(job)
    seeds = [0] if job["swaps"] else range(job["pictures"])
    prompts = tuple(SamplePrompt(**{**job["prompt"], "seed": seed}) for seed in seeds)
    request = PreviewRequest(config=cfg, rows=rows, prompts=prompts)
    studio, seconds, swaps = Studio(), [], []
    pipeline = studio.ready(request, _Quiet())
    for cell in request.cells():
        if job["swaps"]:
            swaps.append(_swap(pipeline, rows[cell.row]))
        draw_cell(request, cell, Path(job["folder"]), pipeline, _Quiet())
        seconds.append(pipeline.seconds.last)
    answer = {"latency_s": median(seconds[1:] or seconds), **_figures(pipeline, studio.expected)}
    if job["swaps"]:
        # the first file is in the model already
        answer |= {"swap_s": median(swaps[1:]), "same": _are_same(request, Path(job["folder"]))}
    return answer


def _rows(job: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is drawn: the base model, or with each LoRA, and with the first of them again."""
    from backend.runs.preview.request import LoraUse, Row

    if not job["swaps"]:
        return (Row(name="base model"),)
    from backend.bench.inference.loras import write_loras

    paths = write_loras(Path(job["base"]), job["family"], Path(job["folder"]) / "loras")
    return tuple(Row(name=path.stem, loras=(LoraUse(path=str(path)),)) for path in [*paths, paths[0]])


def _swap(pipeline: Any, row: Any) -> float:
    """Seconds that it takes to have a row's LoRAs in the model."""
    import torch

    from backend.preview.carry_out import choices_of

    began = time.monotonic()
    pipeline.hold(choices_of(row))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - began


def _are_same(request: Any, folder: Path) -> bool:
    """Whether the first LoRA's second picture is its first one again, and no other LoRA's."""
    from PIL import Image

    from backend.runs.samples import still_of

    pictures = []
    for cell in request.cells():
        with Image.open(still_of(folder / cell.file)) as picture:
            pictures.append(picture.tobytes())
    return pictures[0] == pictures[-1] and len(set(pictures)) == len(pictures) - 1


def _figures(pipeline: Any, expected: Any) -> dict[str, Any]:
    """What an open pipeline took and takes. expected: its estimate, None where there is none."""
    import torch

    from backend.training.expected_memory import peak_ram

    device, stats = pipeline.base.device, pipeline.stats()
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else peak_ram()
    estimated = 0 if expected is None else expected.estimate.peak.allocated if on_gpu else expected.estimate.ram_total
    return {
        "first_s": pipeline.seconds.first,
        "load_s": pipeline.seconds.load,
        "compile_s": stats.seconds,
        "graphs": stats.graphs,
        "recompiles": stats.recompiles,
        "breaks": stats.breaks,
        "cache_misses": stats.cache_misses,
        "peak_gb": peak / 1e9,
        "estimated_gb": estimated / 1e9,
        "compiled": pipeline.compiled.report.state,
        "attention": pipeline.shapes.route.name,
        "device": torch.cuda.get_device_name(device) if on_gpu else "CPU",
    }


def settings_of(job: Mapping[str, Any]) -> Config:
    """The settings of a preview of the job's model."""
    from backend.families.files.base_model import BaseModelFiles
    from backend.families.table import family
    from backend.plan.memory.parts import read_parts
    from backend.runs.preview.request import settings_of_base

    settings = {name: str(value) for name, value in job["settings"].items()}
    if settings.get("memory.blocks_to_swap") == ALL_BLOCKS:
        cfg = settings_of_base(job["base"], job["family"], {})
        parts = read_parts(family(job["family"]), BaseModelFiles.of(cfg.model))
        settings["memory.blocks_to_swap"] = str(0 if parts is None else len(parts.denoiser.blocks))
    return settings_of_base(job["base"], job["family"], settings)


def main(argv: Sequence[str]) -> int:
    """Measure the job that the only argument says as JSON."""
    use_expandable_segments(os.environ)
    began = time.monotonic()
    try:
        answer = {"ok": True, "row": measure(json.loads(argv[0]))}
    except Exception as error:  # noqa: BLE001 - a row that says why, and the next one
        answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    answer["process_s"] = round(time.monotonic() - began, 1)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
