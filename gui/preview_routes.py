"""Answers the Preview tab: what there is to draw with, how far the worker is, and its pictures.

The page draws nothing itself: it writes a request into the worker's folder, and reads from there how it went.
"""

from __future__ import annotations

import logging
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from backend.base.errors import Refused
from backend.base.redact import redact
from backend.config.load import load
from backend.config.schema import Config
from backend.families.table import family
from backend.plan.memory.preview import SUBJECT, preview_plan
from backend.plan.memory.report import memory_dict
from backend.runs.errors import RunError
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.preview import process
from backend.runs.preview.class_images import class_folders, class_images_request
from backend.runs.preview.folder import ENDS, PreviewFolder
from backend.runs.preview.losses import losses_of
from backend.runs.preview.request import checkpoints_of, row_of_checkpoint
from backend.runs.start_lock import shares_device
from gui import messages
from gui.preview_drawing import MOST, Drawing, request_of
from gui.run_routes import answer, or_refusal
from gui.run_store import SAMPLES, RunStore

log = logging.getLogger(__name__)

_PICTURE = {"Cache-Control": "private, max-age=86400, immutable", "Content-Security-Policy": "default-src 'none'"}

_IN_RAM = 32 * 2**20
_CHUNK = 2**20
"""Bytes of a ZIP file that are kept in RAM before it goes to a disk, and that are sent at a time."""

Name = Annotated[str, Query(max_length=300)]


def routes(store: RunStore, form: Callable[[], Config | None], folder: PreviewFolder) -> APIRouter:
    """The routes of this module. form: the form as a config, None when it can't be read. folder: of the worker."""
    router = APIRouter()

    @router.get("/preview/sources")
    def sources() -> Response:
        """Runs with LoRA files or at work, with the prompts of each; and the form's base model."""
        config = form()
        base = None if config is None else config.model.base_model
        lacking = [] if config is None else [folder.names for folder in class_folders(config)]
        rows = [_source(run) for run in store.runs()]
        own = {} if config is None else _abilities(config)
        own["class_images"] = sum(map(len, lacking)) if lacking else None
        return answer({"runs": [row for row in rows if row["files"] or row["live"]], "base": base, **own})

    @router.get("/preview/state")
    def state(request: Annotated[str | None, Query(max_length=100)] = None) -> Response:
        """The worker, and a request: the one that is named, or the newest."""
        ids = folder.ids()
        identity = request if request in ids else next(reversed(ids), None)
        return answer({"worker": _worker(folder), "request": None if identity is None else _request(folder, identity)})

    @router.get("/preview/picture")
    def picture(request: Name, file: Name) -> Response:
        """A finished picture, or a clip, of which browsers ask for parts (Range) to seek in it."""
        path = folder.picture(request, file)
        if path is None:
            raise HTTPException(404, "There is no such picture.")
        return FileResponse(path, media_type=SAMPLES[path.suffix], headers=_PICTURE)

    @router.get("/preview/matrix")
    def matrix(request: Name) -> Response:
        """The pictures of a matrix with its grid and its page, as one ZIP file."""
        files = folder.matrix(request)
        if not files:
            raise HTTPException(404, "There is no matrix of that preview.")
        return _packed(files, f"preview-{request}.zip")

    @router.post("/preview/draw")
    def draw(drawing: Drawing) -> Response:
        """Ask for pictures; starts the worker where there is none."""

        def submit() -> str:
            identity = folder.submit(request_of(store, form, drawing))
            process.start(folder, store.roots())
            return identity

        return answer({"request": or_refusal(submit)})

    @router.post("/preview/plan")
    def plan(drawing: Drawing) -> Response:
        """The memory that these pictures need, before anything is drawn; ``reason`` alone where nothing tells it."""
        return answer(_plan(store, form, folder, drawing))

    _add_class_images(router, store, form, folder)
    _add_control(router, folder)
    _add_endings(router, folder)
    return router


def _add_class_images(
    router: APIRouter, store: RunStore, form: Callable[[], Config | None], folder: PreviewFolder
) -> None:
    """The route that draws class images of DreamBooth."""

    @router.post("/preview/class_images")
    def draw_class_images() -> Response:
        """Ask for the class images that the form's regularization folders lack; starts the worker."""

        def submit() -> str:
            config = form()
            if config is None:
                raise Refused("The form's values can't be read", "Correct the marked fields.")
            identity = folder.submit(class_images_request(config, class_folders(config), MOST))
            process.start(folder, store.roots())
            return identity

        return answer({"request": or_refusal(submit)})


def _add_control(router: APIRouter, folder: PreviewFolder) -> None:
    """The route that takes an image from a browser."""

    @router.post("/preview/control")
    async def control(request: Request) -> Response:
        """Keep an image to start from, which is the body; its path, as a form takes it."""
        data = await request.body()
        kept = await run_in_threadpool(or_refusal, lambda: folder.keep_control(data))
        return answer({"path": str(kept)})


def _add_endings(router: APIRouter, folder: PreviewFolder) -> None:
    """Routes that end something."""

    @router.post("/preview/cancel")
    def cancel() -> Response:
        """Cancel what is drawn and what waits."""
        for identity in folder.ids():
            if folder.status(identity).get("state") not in ENDS:
                or_refusal(lambda identity=identity: folder.cancel(identity))
        return answer({})

    @router.post("/preview/end")
    def end() -> Response:
        """End the worker: its memory is free then."""
        return answer({"ended": or_refusal(lambda: process.end(folder))})


def _source(run: Run) -> dict[str, Any]:
    """A run as something to draw with."""
    if RunStore.trains_whole_model(run):  # it has no LoRA file
        return {"name": run.name, "files": [], "prompts": [], "live": False}
    checkpoints = checkpoints_of(run)
    files = [{"name": each.path.name, "title": row_of_checkpoint(run, each).name} for each in checkpoints]
    live = run.is_at_work()
    loaded = load(run.config_path).config if files or live else None
    prompts = [] if loaded is None else [prompt.model_dump() for prompt in loaded.sampling.prompts]
    own = {} if loaded is None else _abilities(loaded)
    return {"name": run.name, "files": files, "prompts": prompts, "live": live, **own}


def _abilities(config: Config) -> dict[str, Any]:
    """How many control images the base model of these settings takes, and whether it makes clips."""
    facts = family(config.model.family)
    return {"controls": facts.sample_controls, "clips": facts.video is not None}


def _plan(
    store: RunStore, form: Callable[[], Config | None], folder: PreviewFolder, drawing: Drawing
) -> dict[str, Any]:
    """The estimate of what a person asks for, a prompt or none."""
    try:
        texts = [words for words in drawing.prompts if words.strip()] or ["a picture"]
        asked = drawing.model_copy(update={"prompts": texts})
        request = request_of(store, form, asked)
        held = _held(folder) + (0 if request.follow is None or request.run is None else _held_by(Run(request.run)))
        planned = preview_plan(request, held=held)
    except (Refused, RunError, OSError, ValueError) as error:
        return {"reason": messages.sentence(str(error))}
    return {"reason": "The base model can't be read yet."} if planned is None else memory_dict(*planned, SUBJECT)


def _held(folder: PreviewFolder) -> int:
    """Bytes of the GPU that the worker's model holds, which it gives back for another one."""
    accounts = [folder.status(identity).get("account") for identity in reversed(folder.ids())]
    newest = next((account for account in accounts if account), {})
    return int(newest.get("held_vram", 0)) if folder.is_alive() else 0


def _held_by(run: Run) -> int:
    """Bytes of the GPU that a run holds, which it gives back while the preview draws."""
    row = MetricsReader(run).last() if run.is_at_work() and shares_device(run) else None
    return int((row or {}).get("vram_reserved") or 0)


def _packed(files: Sequence[Path], name: str) -> Response:
    """These files as one ZIP file to download; pictures are packed already."""
    packed = tempfile.SpooledTemporaryFile(max_size=_IN_RAM)  # noqa: SIM115 - closed once it is sent
    with zipfile.ZipFile(packed, "w") as archive:
        for path in files:
            archive.write(path, path.name)
    packed.seek(0)
    return StreamingResponse(
        iter(lambda: packed.read(_CHUNK), b""),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
        background=BackgroundTask(packed.close),
    )


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
    if isinstance(status.get("error"), dict):
        status["error"] = {name: messages.sentence(str(words)) for name, words in status["error"].items()}
    try:
        request = folder.request(identity)
    except (KeyError, TypeError, OSError, ValueError) as error:
        log.warning("The preview %s can't be read: %s", identity, error)
        return {"id": identity, "rows": [], "prompts": [], **status}
    losses = {} if request.run is None else losses_of(Run(request.run))
    # of a run that is followed, those that the worker knows by now
    known = status.get("rows") or [{"name": row.name, "step": row.step} for row in request.rows]
    rows = [{**row, "loss": losses.get(row["step"])} for row in known]
    return {**status, "id": identity, "rows": rows, "prompts": [prompt.model_dump() for prompt in request.prompts]}


def _last_words(folder: PreviewFolder) -> str:
    try:
        lines = folder.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return redact(lines[-1])[:500] if lines else ""
