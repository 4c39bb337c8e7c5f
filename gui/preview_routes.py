"""Answers the Preview tab: what there is to draw with, how far the worker is, and its pictures.

The page draws nothing itself: it writes a request into the worker's folder, and reads from there how it went.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field

from backend.base.errors import Refused, WriteFailed
from backend.base.paths import resolve
from backend.base.redact import redact
from backend.config.load import load
from backend.config.schema import Config, SamplePrompt
from backend.runs.errors import RunError, RunNotFound
from backend.runs.folder import Run
from backend.runs.preview import process
from backend.runs.preview.folder import ENDS, PreviewFolder
from backend.runs.preview.losses import losses_of
from backend.runs.preview.request import (
    LoraUse,
    PreviewRequest,
    Row,
    changed_prompts,
    find_checkpoint,
    path_of,
    row_of_checkpoint,
    settings_of_form,
    settings_of_run,
)
from gui import messages
from gui.run_routes import answer
from gui.run_store import RunStore

log = logging.getLogger(__name__)

_MOST = 400
"""Pictures of one request."""

_PICTURE = {"Cache-Control": "private, max-age=86400, immutable", "Content-Security-Policy": "default-src 'none'"}

Name = Annotated[str, Query(max_length=300)]
Short = Annotated[str, Field(max_length=300)]
Text = Annotated[str, Field(max_length=20_000)]


class Drawing(BaseModel):
    """What a person asks for. run: its name, or None for the form's base model. files: checkpoints, one a row."""

    run: Short | None = None
    files: list[Short] = []
    lora: Annotated[str, Field(max_length=4096)] = ""
    strength: float = 1.0
    prompts: list[Text] = []
    negative_prompt: Text = ""
    seed: int = 42
    width: int = 1024
    height: int = 1024
    steps: int = 28
    guidance_scale: float = 3.5
    true_cfg_scale: float = 1.0


def routes(store: RunStore, form: Callable[[], Config | None], folder: PreviewFolder) -> APIRouter:
    """The routes of this module. form: the form as a config, None when it can't be read. folder: of the worker."""
    router = APIRouter()

    @router.get("/preview/sources")
    def sources() -> Response:
        """Runs with LoRA files, with the prompts of each; and the form's base model."""
        config = form()
        base = None if config is None else config.model.base_model
        return answer({"runs": [row for run in store.runs() if (row := _source(run))["files"]], "base": base})

    @router.get("/preview/state")
    def state(request: Annotated[str | None, Query(max_length=100)] = None) -> Response:
        """The worker, and a request: the one that is named, or the newest."""
        ids = folder.ids()
        identity = request if request in ids else next(reversed(ids), None)
        return answer({"worker": _worker(folder), "request": None if identity is None else _request(folder, identity)})

    @router.get("/preview/picture")
    def picture(request: Name, file: Name) -> Response:
        """A finished picture."""
        path = folder.picture(request, file)
        if path is None:
            raise HTTPException(404, "There is no such picture.")
        return FileResponse(path, media_type="image/png", headers=_PICTURE)

    @router.post("/preview/draw")
    def draw(drawing: Drawing) -> Response:
        """Ask for pictures; starts the worker where there is none."""

        def submit() -> str:
            identity = folder.submit(_asked(store, form, drawing))
            process.start(folder, store.roots())
            return identity

        return answer({"request": _or_refusal(submit)})

    @router.post("/preview/cancel")
    def cancel() -> Response:
        """Cancel what is drawn and what waits."""
        for identity in folder.ids():
            if folder.status(identity).get("state") not in ENDS:
                _or_refusal(lambda identity=identity: folder.cancel(identity))
        return answer({})

    @router.post("/preview/end")
    def end() -> Response:
        """End the worker: its memory is free then."""
        return answer({"ended": _or_refusal(lambda: process.end(folder))})

    return router


def _source(run: Run) -> dict[str, Any]:
    """A run as something to draw with."""
    files = [{"name": each.path.name, "step": each.step} for each in run.checkpoints()]
    loaded = load(run.config_path).config if files else None
    prompts = [] if loaded is None else [prompt.model_dump() for prompt in loaded.sampling.prompts]
    return {"name": run.name, "files": files, "prompts": prompts}


def _asked(store: RunStore, form: Callable[[], Config | None], drawing: Drawing) -> PreviewRequest:
    """The request of what a person asked for. Refused or RunError where it can't be drawn."""
    extra = ()
    # a path that was copied from a file manager comes in quotes
    lora = drawing.lora.strip().strip("\"'").strip()
    if lora:
        extra = (LoraUse(path=path_of(str(resolve(lora))), strength=drawing.strength),)
    folder = None
    if drawing.run is not None:
        run = store.run(drawing.run)
        cfg, folder = settings_of_run(run, {}), str(run.path)
        own_rows = [row_of_checkpoint(run, find_checkpoint(run, name), drawing.strength) for name in drawing.files]
        rows = [Row(name=row.name, loras=(*row.loras, *extra), facts=row.facts, step=row.step) for row in own_rows]
    else:
        config = form()
        if config is None or config.model.base_model is None:
            raise Refused("the form names no base model", "Choose one on the Model tab, or a run here.")
        cfg, rows = settings_of_form(config), []
    if not rows:
        rows = [Row(name=Path(extra[0].path).stem if extra else "base model", loras=extra)]
    texts = [words.strip() for words in drawing.prompts if words.strip()]
    if not texts:
        raise Refused("there is no prompt to draw", "Write one, each on a line of its own.")
    if len(rows) * len(texts) > _MOST:
        raise Refused(f"that would be {len(rows) * len(texts)} pictures", f"Choose at most {_MOST}.")
    names = ("negative_prompt", "seed", "width", "height", "steps", "guidance_scale", "true_cfg_scale")
    values = {name: getattr(drawing, name) for name in names}
    prompts = changed_prompts([SamplePrompt(prompt=words) for words in texts], values)
    return PreviewRequest(config=cfg, rows=tuple(rows), prompts=prompts, run=folder)


def _worker(folder: PreviewFolder) -> dict[str, Any]:
    """The worker's process: whether it is there, on what it computes, and why it ended."""
    known = folder.worker()
    return {
        "alive": folder.is_alive(),
        "state": known.get("state"),
        "device": known.get("device"),
        "why": known.get("why"),
    }


def _request(folder: PreviewFolder, identity: str) -> dict[str, Any]:
    """A request with its state; one whose worker is gone has failed, with the worker's last words."""
    status = {"state": "waiting", "pictures": [], "notes": []} | folder.status(identity)
    if status["state"] not in ENDS and not folder.is_alive():
        text = f"The preview ended before it was done. {_last_words(folder)}".strip()
        status |= {"state": "failed", "error": {"text": text, "remedy": "Draw again."}}
    try:
        request = folder.request(identity)
    except (KeyError, TypeError, OSError, ValueError) as error:
        log.warning("The preview %s can't be read: %s", identity, error)
        return {"id": identity, "rows": [], "prompts": [], **status}
    losses = {} if request.run is None else losses_of(Run(request.run))
    rows = [{"name": row.name, "step": row.step, "loss": losses.get(row.step)} for row in request.rows]
    return {"id": identity, "rows": rows, "prompts": [prompt.model_dump() for prompt in request.prompts], **status}


def _last_words(folder: PreviewFolder) -> str:
    try:
        lines = folder.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return redact(lines[-1])[:500] if lines else ""


def _or_refusal(get: Callable[[], Any]) -> Any:
    """The value of ``get()``, its errors as answers with their sentence."""
    try:
        return get()
    except Refused as error:
        raise HTTPException(422, f"{messages.sentence(error.text)} {messages.sentence(error.remedy)}") from None
    except RunError as error:
        raise HTTPException(404 if isinstance(error, RunNotFound) else 409, messages.words(error)) from None
    except WriteFailed as error:
        raise HTTPException(507, messages.words(error)) from None
