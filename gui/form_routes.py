"""Routes about the form as it stands on the desk: the base model, the look at the images, drawings, this machine."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import psutil
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response

from backend.base.errors import Refused
from backend.base.files import free_bytes, human_bytes
from backend.base.paths import resolve
from backend.base.problems import Problem
from backend.config import presets
from backend.config.profiles import PROFILES
from backend.config.schema import Config, by_path
from backend.config.sections.training import step_limit
from backend.families.table import FAMILIES, family
from backend.plan.memory.machine import cards
from backend.plan.memory.plan import memory_plan
from backend.plan.memory.report import gigabytes, memory_dict
from gui import base_model, captions, fields, form, messages, plots
from gui.dataset_scan import Look
from gui.draft import Desk
from gui.jobs import Job
from gui.run_routes import answer
from gui.run_store import Places

log = logging.getLogger(__name__)


class Checks:
    """Holds what is slow to find out: the last look at the images, the doctor's findings."""

    def __init__(self, desk: Desk, places: Places, shelf: presets.Shelf = presets.SHELF) -> None:
        self.desk = desk
        self.places = places
        self.shelf = shelf
        self.look = Look(desk.folder)
        self.doctor = Job()
        self.doctor_said: dict[str, Any] = {}

    def config(self) -> Config | None:
        """The form as a config, with defaults where a field can't be read; None when nothing can.

        None also while it names a folder of another machine that nobody typed: what asks this opens such folders.
        """
        if self.desk.untyped():
            return None
        return form.read(self.desk.now.values).partial

    def routes(self) -> APIRouter:
        """The routes of this module."""
        router = APIRouter()
        self._form_routes(router)
        self._look_routes(router)
        router.include_router(captions.routes(self.look))
        self._doctor_routes(router)
        self._profile_route(router)
        return router

    def _form_routes(self, router: APIRouter) -> None:
        @router.get("/model")
        def model() -> Response:
            """What is in the base model's folder."""
            if strange := self.desk.untyped():
                text = f"The loaded settings name a folder on another machine: {strange[0]}. It is not opened yet."
                remedy = "If you know that machine, type the path again; else clear it."
                said = [messages.problem_facts(Problem("model.base_model", None, text, remedy))]
                return answer(base_model.facts(None) | {"path": strange[0], "problems": said})
            return answer(base_model.facts(self.config()))

        @router.get("/machine")
        def machine() -> Response:
            """Memory of this machine, and what the model weighs."""
            return answer(machine_facts(self.config()))

        @router.get("/memory")
        def memory(vram: Annotated[float | None, Query(gt=0, le=4096)] = None) -> Response:
            """Whether the run will fit; ``vram`` is a card's size in GB, where it is in another machine."""
            return answer(estimate_facts(self.config(), self.look, vram))

        @router.get("/picture/timesteps")
        def timesteps() -> Response:
            """How often each timestep is trained."""
            config = self.config() or Config()
            tokens = (config.dataset.resolution // 16) ** 2
            if family(config.model.family).objective == "diffusion":
                return answer({"svg": plots.diffusion_timesteps(config)})
            return answer({"svg": plots.timesteps(config, tokens)})

        @router.get("/picture/lr")
        def learning_rate() -> Response:
            """The learning rate over the run; a run in epochs is drawn over a thousand steps."""
            config = self.config() or Config()
            steps = step_limit(config.training.max_train_steps, config.training.max_train_epochs) or 1000
            return answer({"svg": plots.learning_rate(config.optimizer, steps)})

        @router.get("/preset")
        def preset(name: Annotated[str, Query(max_length=200)]) -> Response:
            """A preset's TOML, to keep."""
            try:
                found = presets.find(name, self.shelf)
                content = found.path.read_bytes()
            except (Refused, OSError) as wrong:
                raise HTTPException(404, messages.words(wrong)) from None
            disposition = f"attachment; filename*=UTF-8''{quote(found.name)}.toml"
            return Response(content, media_type="application/toml", headers={"Content-Disposition": disposition})

    def _look_routes(self, router: APIRouter) -> None:
        @router.post("/look")
        def start_look() -> Response:
            """Begin a look at the images."""
            loaded = form.read(self.desk.now.values)
            config = loaded.config
            if config is None:
                raise HTTPException(422, "Some settings can't be used yet; they are listed above.")
            if not config.dataset.folders:
                raise HTTPException(422, "No image folder is given. Add one above.")
            if not self.look.start(config):
                raise HTTPException(409, "The images are being looked at already.")
            return answer({"started": True})

        @router.get("/look")
        def look() -> Response:
            """How far the look is, and what it found."""
            return answer(self.look.facts(form.read(self.desk.now.values).config))

        @router.post("/look/stop")
        def stop_look() -> Response:
            """End the look."""
            self.look.job.cancel()
            return answer({"stopped": True})

        @router.get("/look/items")
        def items(page: Annotated[int, Query(ge=0)] = 0) -> Response:
            """One page of pictures."""
            return answer(self.look.page(page))

        @router.get("/thumb")
        def thumb(item: Annotated[int, Query(ge=0)], look: int) -> Response:
            """A small picture of the newest look."""
            picture = self.look.thumb(item) if look == self.look.job.number else None
            if picture is None:
                raise HTTPException(404, "There is no such picture.")
            headers = {"Cache-Control": "private, max-age=3600", "Content-Security-Policy": "default-src 'none'"}
            return Response(picture, media_type="image/jpeg", headers=headers)

    def _profile_route(self, router: APIRouter) -> None:
        @router.get("/profile")
        def profile() -> Response:
            """What the chosen profile sets, in words; empty for custom."""
            config = self.config() or Config()
            return answer({"text": profile_words(config)})

    def _doctor_routes(self, router: APIRouter) -> None:
        @router.post("/doctor")
        def start_doctor() -> Response:
            """Begin to check this machine."""
            if self.doctor.state == "running":
                raise HTTPException(409, "The machine is being checked already.")
            said: dict[str, Any] = {"checks": []}
            self.doctor_said = said

            def line(document: dict[str, Any]) -> None:
                if "state" in document:
                    said["checks"] = [*said["checks"], document]

            def end(code: int, errors: str) -> bool:
                if not said["checks"]:
                    said["text"] = (
                        f"The check ended early (exit code {code}). {errors.splitlines()[-1] if errors else ''}"
                    )
                return bool(said["checks"])

            config = self.config()
            chosen = config.compile.compile_cache_dir if config else None
            arguments = ["--json", *(["--cache-dir", str(resolve(chosen))] if chosen else [])]
            self.doctor.start("backend.doctor", arguments, line, end)
            return answer({"started": True})

        @router.get("/doctor")
        def doctor() -> Response:
            """What the doctor found."""
            return answer({"state": self.doctor.state, **self.doctor_said})


def profile_words(config: Config) -> str:
    """The options that the compile profile sets, as the form calls them."""
    name = config.compile.compile_profile
    values = PROFILES.get(name)
    if values is None or not config.compile.compile:
        return ""
    declared = {option: by_path()[f"compile.{option}"] for option in values}
    shown = [
        f"{declared[option].label} {fields.to_widget(declared[option], value) or 'from the plan'}"
        for option, value in values.items()
        if not isinstance(value, bool)
    ]
    return f"The profile {name} rules over the fields below it: {', '.join(shown)}."


def machine_facts(config: Config | None) -> dict[str, Any]:
    """Memory and disk of this machine beside what the model and the run need of them."""
    memory = psutil.virtual_memory()
    tiles = [
        {"value": gigabytes(memory.total), "label": "RAM"},
        {"value": gigabytes(memory.available), "label": "RAM free now"},
    ]
    found = cards()
    for card in found:
        tiles.append({"value": gigabytes(card.total), "label": f"VRAM of {card.name}"})
        tiles.append({"value": gigabytes(card.free), "label": "VRAM free now"})
    rows: list[list[str]] = []
    if config is not None:
        sizes = base_model.sizes(config)
        denoiser = base_model.denoiser(config)
        if denoiser in sizes:
            rows.append(["Base model weights on disk", human_bytes(sizes[denoiser])])
        others = sum(size for name, size in sizes.items() if name != denoiser)
        if others:
            rows.append(["Encoders and VAE on disk, freed before training", human_bytes(others)])
        root = _existing(resolve(config.saving.output_dir))
        free = free_bytes(root)
        if free is not None:
            rows.append([f"Disk free for runs ({root})", human_bytes(free)])
    notes = (
        []
        if found
        else ["No NVIDIA card answers on this machine: training runs on the CPU, and the Run tab shows RAM."]
    )
    return {"tiles": tiles, "rows": rows, "notes": notes, "system": platform.system()}


def estimate_facts(config: Config | None, look: Look, vram_gb: float | None = None) -> dict[str, Any]:
    """The estimate of the form's run, with the nearest change that fits; ``said`` alone where there is none."""
    if config is None or config.model.base_model is None or config.model.family not in FAMILIES:
        return {"said": "Give the base model on the Model tab, and what a run of it needs is worked out here."}
    work = look.work(config)
    planned = memory_plan(config, work, vram_gb)
    if planned is None:
        return {"said": "The base model can't be read yet; the Model tab says why."}
    sizes = "your pictures" if work is not None else f"pictures of {config.dataset.resolution} px"
    return memory_dict(*planned) | {"sizes": sizes, "vram": vram_gb}


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
