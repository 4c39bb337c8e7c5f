"""Answers the page's own requests about runs: what it polls, the pictures it shows, the buttons that need no form.

Everything a browser sends is a name out of a list that the server made, never a path; every answer says what kind of
file it is and forbids the browser to guess.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, HTTPException, Query
from fastapi.responses import FileResponse, Response

from backend.base.errors import Refused, WriteFailed
from backend.base.jsonable import jsonable
from backend.families.files.headers import Unreadable, read_header
from backend.runs import supervise
from backend.runs.control import Control
from backend.runs.errors import RunError, RunNotFound
from backend.runs.folder import Run
from backend.runs.logs import read_log
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from backend.runs.start_lock import one_start
from gui import messages
from gui.run_store import SAMPLES, RunStore, list_paths
from gui.run_view import RunView

log = logging.getLogger(__name__)

_MOST_VIEWS = 5000
_NO_STORE = {"Cache-Control": "no-store"}
# A picture's name is never used twice within a run, so a browser may keep it.
_KEEP = {"Cache-Control": "private, max-age=86400, immutable", "Content-Security-Policy": "default-src 'none'"}

Name = Annotated[str, Query(max_length=300)]


class RunViews:
    """The runs that pages look at, each followed once; the least recently seen is forgotten."""

    def __init__(self, places: RunStore) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._held: dict[Path, RunView] = {}

    def of(self, name: str) -> RunView:
        """The view of the run of this name. RunNotFound when there is none."""
        return self.on(self._places.run(name))

    def on(self, run: Run) -> RunView:
        """The view of this run."""
        with self._lock:
            view = self._held.pop(run.path, None) or RunView(run)
            self._held[run.path] = view
            while len(self._held) > _MOST_VIEWS:
                self._held.pop(next(iter(self._held)))
            return view


def routes(places: RunStore, views: RunViews, preview: PreviewFolder | None = None) -> APIRouter:
    """The routes about runs, files and folders; those about the form are in `gui.form_routes`.

    preview: of the page's preview, which gives the GPU to a run that is resumed.
    """
    router = APIRouter()
    _reading(router, places, views)
    _files(router, places)
    _acting(router, places, preview)
    return router


def _reading(router: APIRouter, places: RunStore, views: RunViews) -> None:
    @router.get("/runs")
    def runs() -> Response:
        """Every run with its state, those at work first, then the newest."""
        return answer({"runs": [views.on(run).brief() for run in places.runs()]})

    @router.get("/live")
    def live(
        run: Name,
        width: Annotated[int, Query(ge=1, le=4000)] = 600,
        key: Annotated[str | None, Query(max_length=200)] = None,
        seen: Annotated[str | None, Query(max_length=100)] = None,
        since: int = 0,
        until: int | None = None,
        log_offset: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """How a run stands. ``key`` and ``seen`` are marks of the last answer: what did not change is left out.

        A series with ``from`` takes the place of what the page has from that step on. ``log_offset`` asks for the log
        from there on too, as ``/log`` gives it. ``missing``: there is no such run any more, which is no fault: the form
        may name another folder since.
        """
        try:
            view = views.of(run)
        except RunNotFound:
            return answer({"missing": True})
        status = view.status()
        series, mark = view.series(width, since, until, key)
        reply: dict[str, Any] = {"status": status, "last": view.last(), "key": mark}
        if series is not None:
            reply["series"] = series
        facts, reply["seen"] = view.facts()
        if reply["seen"] != seen:
            reply["facts"] = facts
        if log_offset is not None:
            reply["log"] = _log_since(view.run, log_offset)
        return answer(reply)

    @router.get("/log")
    def run_log(run: Name, offset: Annotated[int, Query(ge=0)] = 0) -> Response:
        """What was added to a run's log since a byte offset, as text for ``textContent``."""
        return answer(_log_since(or_refusal(lambda: places.run(run)), offset))


def _files(router: APIRouter, places: RunStore) -> None:
    @router.get("/image")
    def image(run: Name, file: Name) -> Response:
        """A sample of a run: a picture, or a clip, of which browsers ask for parts (Range) to seek in it."""
        path = places.sample(or_refusal(lambda: places.run(run)), file)
        if path is None:
            raise HTTPException(404, "There is no such sample image.")
        return FileResponse(path, media_type=SAMPLES[path.suffix.lower()], headers=_KEEP)

    @router.get("/download")
    def download(run: Name, file: Name) -> Response:
        """A LoRA file of a run, to keep."""
        path = _lora(places, run, file)
        disposition = f"attachment; filename*=UTF-8''{quote(path.name)}"
        return FileResponse(path, media_type="application/octet-stream", headers={"Content-Disposition": disposition})

    @router.get("/lora-metadata")
    def lora_metadata(run: Name, file: Name) -> Response:
        """What a LoRA file says about itself."""
        try:
            return answer({"metadata": safetensors_metadata(_lora(places, run, file))})
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    @router.get("/fs")
    def folders(
        prefix: Annotated[str, Query(max_length=4096)] = "", kind: str = "any", typed: bool = False
    ) -> Response:
        """Names that continue a path being typed: folders and LoRA files, no hidden ones, no contents."""
        return answer({"entries": list_paths(prefix, kind, typed=typed)})


def _acting(router: APIRouter, places: RunStore, preview: PreviewFolder | None) -> None:
    @router.post("/control")
    def control(run: Annotated[str, Body()], what: Annotated[str, Body()]) -> Response:
        """Ask a run to stop (it saves first), to save now, or to sample now."""
        target = or_refusal(lambda: places.run(run))
        if not target.is_at_work():
            raise HTTPException(409, f"The run {run} is not running.")
        if what == "stop":
            supervise.stop_in_background(target)
        elif what in ("save", "sample"):
            or_refusal(lambda: Control(target).request(what))  # type: ignore[arg-type]
        else:
            raise HTTPException(422, "The requests to a run are: stop, save, sample.")
        return answer({"asked": what})

    @router.post("/resume")
    def resume(run: Annotated[str, Body(embed=True)]) -> Response:
        """Continue a run from its saved state."""
        target = or_refusal(lambda: places.run(run))

        def start() -> None:
            with one_start(places.runs, but=target):
                if preview is not None:
                    give_gpu_back(preview)
                supervise.start(None, target, resume=True)

        or_refusal(start)
        return answer({"run": target.name})

    @router.post("/delete")
    def delete(run: Annotated[str, Body(embed=True)]) -> Response:
        """Put a run into the bin."""
        return answer({"token": or_refusal(lambda: places.delete(run))})

    @router.post("/restore")
    def restore(token: Annotated[str, Body(embed=True)]) -> Response:
        """Take a run out of the bin."""
        return answer({"run": or_refusal(lambda: places.restore(token))})


def answer(content: dict[str, Any]) -> Response:
    """JSON without NaN, never kept by the browser."""
    options: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":"), "default": str}
    try:
        text = json.dumps(content, **options)
    except ValueError:  # a number that JSON has no word for, out of a file that somebody edited
        text = json.dumps(jsonable(content), **options)
    # A file name may hold bytes that are no text.
    return Response(text.encode("utf-8", "replace"), media_type="application/json", headers=_NO_STORE)


def safetensors_metadata(path: Path) -> dict[str, str]:
    """The metadata in a safetensors file's header, read without loading a tensor. ValueError when it is none."""
    try:
        metadata = read_header(path).metadata
    except Unreadable as error:
        raise ValueError(f"{path.name} {error}. {error.remedy}") from None
    return {str(name): str(value) for name, value in sorted(metadata.items())}


def _log_since(run: Run, offset: int) -> dict[str, Any]:
    text, end = read_log(run.log_path, offset, 262_144)
    return {"text": text, "offset": end, "reset": offset == 0 or end < offset}


def _lora(places: RunStore, run: str, file: str) -> Path:
    path = places.lora(or_refusal(lambda: places.run(run)), file)
    if path is None:
        raise HTTPException(404, "There is no such LoRA file.")
    return path


def or_refusal(get: Callable[[], Any]) -> Any:
    """The value of ``get()``, its errors as answers with their sentence."""
    try:
        return get()
    except Refused as error:
        raise HTTPException(422, f"{messages.sentence(error.text)} {messages.sentence(error.remedy)}") from None
    except RunError as error:
        raise HTTPException(404 if isinstance(error, RunNotFound) else 409, messages.words(error)) from None
    except WriteFailed as error:
        raise HTTPException(507, messages.words(error)) from None
