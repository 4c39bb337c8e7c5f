"""Routes of the Compile tab: the compile cache, and when a compile has paid for itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from backend.base import compile_cache
from backend.base.paths import PROJECT_ROOT, resolve
from backend.config.load import load
from backend.config.schema import Config
from backend.plan.payback import payback
from backend.runs.errors import RunError
from gui import messages
from gui.run_routes import answer
from gui.run_store import Places

log = logging.getLogger(__name__)

# A cache of one GPU and torch takes some hundred megabytes.
_LARGEST_ARCHIVE = 8 * 2**30
_SECONDS = 600


def routes(places: Places, form: Callable[[], Config | None]) -> APIRouter:
    """The routes of this module. form: the form as a config, None when it can't be read."""
    router = APIRouter()
    _cache(router, places, form)
    _payback(router, places, form)
    return router


def _folder(config: Config | None) -> Path:
    chosen = config.compile.compile_cache_dir if config is not None else None
    try:
        return compile_cache.cache_root(resolve(chosen) if chosen is not None else None)
    except OSError as wrong:
        raise HTTPException(409, messages.sentence(str(wrong))) from None


def _unused(places: Places) -> None:
    busy = next((run.name for run in places.runs() if run.is_at_work()), None)
    if busy is not None:
        raise HTTPException(409, f"The run {busy} is using it. Wait until it ends.")


def _cache(router: APIRouter, places: Places, form: Callable[[], Config | None]) -> None:
    @router.get("/cache")
    def cache_size() -> Response:
        """Where compiled kernels are kept, and how large that is."""
        found = _folder(form())
        size = compile_cache.size(found)
        return answer({"path": str(found), "files": size.files, "bytes": size.bytes})

    @router.post("/cache/clear")
    def clear_cache() -> Response:
        """Delete all compiled kernels; the next run compiles anew."""
        _unused(places)
        gone = compile_cache.clear(_folder(form()))
        return answer({"files": gone.files, "bytes": gone.bytes})

    # Each takes up to 8 GiB of the disk while it lasts: one at a time.
    moving = threading.Lock()

    @router.get("/cache/export")
    def export_cache() -> Response:
        """This machine's kernels as a zip, to keep or to bring to a machine like it."""
        _take(moving)
        try:
            file = _temporary()
            _ask(_folder(form()), "export", file)
        except HTTPException:
            file.unlink(missing_ok=True)
            raise
        finally:
            moving.release()
        return FileResponse(
            file,
            media_type="application/zip",
            filename="monotile-compile-cache.zip",
            background=BackgroundTask(file.unlink, missing_ok=True),
        )

    @router.post("/cache/import")
    async def import_cache(request: Request) -> Response:
        """Take kernels from a zip, the request's body; those that are here stay."""
        await run_in_threadpool(_unused, places)
        folder = await run_in_threadpool(lambda: _folder(form()))
        _take(moving)
        try:
            file = _temporary()
        except OSError:
            moving.release()
            raise
        try:
            with open(file, "wb") as stream:
                async for part in request.stream():
                    if stream.tell() + len(part) > _LARGEST_ARCHIVE:
                        raise HTTPException(413, "That file is too large for a compile cache (over 8 GiB).")
                    stream.write(part)
            return answer({"text": await run_in_threadpool(_ask, folder, "import", file)})
        finally:
            file.unlink(missing_ok=True)
            moving.release()


def _take(moving: threading.Lock) -> None:
    if not moving.acquire(blocking=False):
        raise HTTPException(409, "A compile cache is being exported or imported already. Wait until that is done.")


def _temporary() -> Path:
    with tempfile.NamedTemporaryFile(suffix=".zip", prefix="monotile-cache-", delete=False) as stream:
        return Path(stream.name)


def _ask(folder: Path, action: str, file: Path) -> str:
    """Have another process do it: which kernels fit this machine is torch's to say. HTTPException with its words."""
    command = [sys.executable, "-m", "backend.doctor.cache", "--cache-dir", str(folder), action, str(file)]
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT_ROOT,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONUTF8": "1"},
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HTTPException(504, f"It took longer than {_SECONDS // 60} minutes.") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise HTTPException(422, messages.sentence((said[-1] if said else "it failed").replace(str(file), "the file")))
    return done.stdout.strip().replace(str(file), "the file")


def _payback(router: APIRouter, places: Places, form: Callable[[], Config | None]) -> None:
    @router.get("/payback")
    def paid(run: Annotated[str | None, Query(max_length=300)] = None) -> Response:
        """After how many steps a compile has paid for itself: for a run, or for the form as it stands."""
        if run is None:
            config = form()
            if config is None or not config.compile.compile:
                return answer({"text": "", "steps": None})
            known = payback(config, resolve(config.saving.output_dir))
            return answer({"text": known.sentence(), "steps": known.steps})
        try:
            found = places.run(run)
        except RunError as wrong:
            raise HTTPException(404, messages.words(wrong)) from None
        config = load(found.config_path).config
        if config is None or not config.compile.compile:
            return answer({"text": "", "steps": None})
        known = payback(config, found.path.parent, found)
        return answer({"text": known.sentence(), "steps": known.steps})
