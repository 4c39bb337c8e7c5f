"""Answers about the form on the page: the base model, the dataset scan, plots, the memory estimate, this machine."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import psutil
from fastapi import APIRouter, Body, HTTPException, Query
from fastapi.responses import Response

from backend.base.errors import Refused
from backend.base.files import free_bytes, human_bytes
from backend.base.paths import resolve
from backend.base.problems import Problem, errors
from backend.config import presets
from backend.config.profiles import PROFILES
from backend.config.schema import Config, by_path
from backend.config.sections.training import step_limit
from backend.families.table import FAMILIES, family
from backend.plan.memory.machine import installed_gpus
from backend.plan.memory.plan import memory_plan
from backend.plan.memory.report import gigabytes, memory_dict
from backend.plan.start_check import start_problems
from gui import base_model, captions, fields, form, image_routes, messages, plots
from gui.caption_writing import CaptionWriter
from gui.dataset_scan import PageScan
from gui.draft import Draft, Level
from gui.jobs import Job
from gui.run_routes import Name, answer
from gui.run_store import RunStore
from gui.scan_losses import ScanLosses

log = logging.getLogger(__name__)

_PICTURE = {"Cache-Control": "private, max-age=3600", "Content-Security-Policy": "default-src 'none'"}
_NO_DOCTOR = "Run  launcher.py doctor  in a terminal to see why."


class FormRoutes:
    """The routes, with what is slow to find out: the newest dataset scan and the doctor's checks."""

    def __init__(self, draft: Draft, store: RunStore, shelf: presets.Shelf = presets.SHELF) -> None:
        self.draft = draft
        self.store = store
        self.shelf = shelf
        self.scan = PageScan(draft.folder)
        self.writer = CaptionWriter(self.scan)
        self.losses = ScanLosses(self.scan, store)
        self.doctor = Job()
        self.doctor_report: dict[str, Any] = {}

    def config(self) -> Config | None:
        """The form as a config, with defaults where a field can't be read; None when nothing can.

        None also while it names a folder of another machine that nobody typed: callers open such folders.
        """
        if self.draft.untyped():
            return None
        return form.read(self.draft.now.values).partial

    def routes(self) -> APIRouter:
        """The routes of this module."""
        router = APIRouter()
        self._form_routes(router)
        self._scan_routes(router)
        router.include_router(captions.routes(self.scan))
        router.include_router(image_routes.routes(self.writer, self.losses, self.config))
        self._doctor_routes(router)
        self._profile_route(router)
        return router

    def _form_routes(self, router: APIRouter) -> None:
        @router.get("/model")
        def model() -> Response:
            """What the base model contains."""
            if untyped := self.draft.untyped():
                text = f"The loaded settings use a folder on another machine: {untyped[0]}. It is not opened yet."
                remedy = "If you trust that machine, type the path again. Otherwise clear it."
                problems = [messages.problem_facts(Problem("model.base_model", None, text, remedy))]
                return answer(base_model.facts(None) | {"path": untyped[0], "problems": problems})
            return answer(base_model.facts(self.config()))

        @router.post("/level")
        def level(level: Annotated[Level, Body(embed=True)]) -> Response:
            """Show the basic settings or all of them, also to whoever opens this page next."""
            self.draft.show_level(level)
            return answer({"level": level})

        @router.get("/machine")
        def machine() -> Response:
            """Memory of this machine, and the size of the model."""
            return answer(machine_facts(self.config()))

        @router.get("/memory")
        def memory(vram: Annotated[float | None, Query(gt=0, le=4096)] = None) -> Response:
            """Whether the run will fit; ``vram`` is the GPU's size in GB, to plan for another machine."""
            return answer(estimate_facts(self.config(), self.scan, vram))

        @router.get("/plot/timesteps")
        def timesteps() -> Response:
            """How often each timestep is trained."""
            config = self.config() or Config()
            tokens = (config.dataset.resolution // 16) ** 2
            if family(config.model.family).objective == "diffusion":
                return answer({"svg": plots.diffusion_timesteps(config)})
            return answer({"svg": plots.timesteps(config, tokens)})

        @router.get("/plot/lr")
        def learning_rate() -> Response:
            """The learning rate over the run; a run in epochs is drawn over a thousand steps."""
            config = self.config() or Config()
            steps = step_limit(config.training.max_train_steps, config.training.max_train_epochs) or 1000
            return answer({"svg": plots.learning_rate(config.optimizer, steps)})

        @router.get("/preset")
        def preset(name: Annotated[str, Query(max_length=200)]) -> Response:
            """A preset's TOML, to download."""
            try:
                match = presets.find(name, self.shelf)
                content = match.path.read_bytes()
            except (Refused, OSError) as wrong:
                raise HTTPException(404, messages.words(wrong)) from None
            disposition = f"attachment; filename*=UTF-8''{quote(match.name)}.toml"
            return Response(content, media_type="application/toml", headers={"Content-Disposition": disposition})

    def _scan_routes(self, router: APIRouter) -> None:
        @router.post("/scan")
        def start_scan() -> Response:
            """Start a scan of the dataset."""
            loaded = form.read(self.draft.now.values)
            config = loaded.config
            if config is None:
                raise HTTPException(422, "Some settings have errors. Fix those listed at the top first.")
            if not config.dataset.folders:
                raise HTTPException(422, "There is no image folder yet. Add one on the Dataset tab.")
            if not self.scan.start(config):
                raise HTTPException(409, "The dataset is already being scanned. Wait, or press Cancel.")
            return answer({"started": True})

        @router.get("/scan")
        def scan() -> Response:
            """Progress and result of the scan."""
            return answer(self.scan.facts(form.read(self.draft.now.values).config))

        @router.post("/scan/stop")
        def stop_scan() -> Response:
            """Stop the scan."""
            self.scan.job.cancel()
            return answer({"stopped": True})

        @router.get("/scan/losses")
        def losses(scan: int, item: Annotated[int, Query(ge=0)], run: Name) -> Response:
            """The losses of one image of the newest scan in a run."""
            return answer({"losses": self.losses.one(item, run) if scan == self.scan.number else None})

        @router.get("/thumb")
        def thumb(item: Annotated[int, Query(ge=0)], scan: int) -> Response:
            """A thumbnail of the newest scan."""
            thumbnail = self.scan.thumb(item) if scan == self.scan.number else None
            if thumbnail is None:
                raise HTTPException(404, "There is no such image.")
            return Response(thumbnail, media_type="image/jpeg", headers=_PICTURE)

        @router.get("/strip")
        def strip(item: Annotated[int, Query(ge=0)], scan: int) -> Response:
            """Frames of a clip of the newest scan, side by side."""
            frames = self.scan.strip(item) if scan == self.scan.number else None
            if frames is None:
                raise HTTPException(404, "There is no such clip.")
            return Response(frames, media_type="image/jpeg", headers=_PICTURE)

    def _profile_route(self, router: APIRouter) -> None:
        @router.get("/profile")
        def profile() -> Response:
            """What the chosen profile sets, as text; empty for custom."""
            config = self.config() or Config()
            return answer({"text": profile_words(config)})

    def _doctor_routes(self, router: APIRouter) -> None:
        @router.post("/doctor")
        def start_doctor() -> Response:
            """Start checking this machine."""
            if self.doctor.state == "running":
                raise HTTPException(409, "This machine is already being checked. Wait until it is done.")
            report: dict[str, Any] = {"checks": []}
            self.doctor_report = report

            def line(document: dict[str, Any]) -> None:
                if "state" in document:
                    report["checks"] = [*report["checks"], document]

            def end(code: int, errors: str) -> bool:
                if not report["checks"]:
                    report["text"] = (
                        f"The check ended early (exit code {code}). {errors.splitlines()[-1] if errors else _NO_DOCTOR}"
                    )
                return bool(report["checks"])

            config = self.config()
            folder = config.compile.compile_cache_dir if config else None
            arguments = ["--json", *(["--cache-dir", str(resolve(folder))] if folder else [])]
            self.doctor.start("backend.doctor", arguments, line, end)
            return answer({"started": True})

        @router.get("/doctor")
        def doctor() -> Response:
            """What the doctor found."""
            return answer({"state": self.doctor.state, **self.doctor_report})


def profile_words(config: Config) -> str:
    """The options that the compile profile sets, as the form calls them."""
    name = config.compile.compile_profile
    values = PROFILES.get(name)
    if values is None or not config.compile.compile:
        return ""
    declarations = {option: by_path()[f"compile.{option}"] for option in values}
    shown = [
        f"{declarations[option].label} {fields.to_widget(declarations[option], value) or 'from the plan'}"
        for option, value in values.items()
        if not isinstance(value, bool)
    ]
    return f"The profile {name} sets these fields, whatever they show: {', '.join(shown)}."


def machine_facts(config: Config | None) -> dict[str, Any]:
    """Memory and disk of this machine, and what the model and the run need of them."""
    memory = psutil.virtual_memory()
    tiles = [
        {"value": gigabytes(memory.total), "label": "RAM"},
        {"value": gigabytes(memory.available), "label": "RAM free now"},
    ]
    gpus = installed_gpus()
    for gpu in gpus:
        tiles.append({"value": gigabytes(gpu.total), "label": f"VRAM of {gpu.name}"})
        tiles.append({"value": gigabytes(gpu.free), "label": "VRAM free now"})
    rows: list[list[str]] = []
    if config is not None:
        sizes = base_model.sizes(config)
        denoiser = base_model.denoiser(config)
        if denoiser in sizes:
            rows.append(["Base model weights on disk", human_bytes(sizes[denoiser])])
        others = sum(size for name, size in sizes.items() if name != denoiser)
        if others:
            rows.append(["Text encoders and VAE on disk (freed before training)", human_bytes(others)])
        root = _existing(resolve(config.saving.output_dir))
        free = free_bytes(root)
        if free is not None:
            rows.append([f"Free disk space for runs ({root})", human_bytes(free)])
    notes = (
        []
        if gpus
        else ["No NVIDIA GPU was found on this machine: training runs on the CPU, and the Run tab shows RAM."]
    )
    return {"tiles": tiles, "rows": rows, "notes": notes, "system": platform.system()}


def estimate_facts(config: Config | None, scan: PageScan, vram_gb: float | None = None) -> dict[str, Any]:
    """The estimate of the form's run, with the nearest change that fits; ``reason`` alone where there is none."""
    if config is None or config.model.base_model is None or config.model.family not in FAMILIES:
        return {"reason": "Choose a base model on the Model tab to see the memory that a run needs."}
    work = scan.work(config)
    planned = memory_plan(config, work, vram_gb)
    if planned is None:
        return {"reason": "The base model can't be read yet. The Model tab says why."}
    sizes = "your images" if work is not None else f"images of {config.dataset.resolution} px"
    return memory_dict(*planned) | {"sizes": sizes, "vram": vram_gb}


def startable(config: Config | None) -> Config:
    """The form's settings, for what trains with them. HTTPException with the first problem where they can't be used."""
    if config is None:
        raise HTTPException(422, "The form can't be read yet. Correct the marked fields.")
    problems = errors(start_problems(config))
    if problems:
        raise HTTPException(422, problems[0].sentence())
    return config


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
