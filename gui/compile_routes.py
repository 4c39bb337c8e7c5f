"""Answers the Compile tab: the compile cache, and when a compile has paid for itself."""

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
from gui.run_store import RunStore

log = logging.getLogger(__name__)

# A cache of one GPU and torch is some hundred megabytes.
_LARGEST_ARCHIVE = 8 * 2**30
_SECONDS = 600


def routes(store: RunStore, form: Callable[[], Config | None]) -> APIRouter:
    """The routes of this module. form: the form as a config, None when it can't be read."""
    router = APIRouter()
    _cache(router, store, form)
    _payback(router, store, form)
    return router


def _folder(config: Config | None) -> Path:
    setting = config.compile.compile_cache_dir if config is not None else None
    try:
        return compile_cache.cache_root(resolve(setting) if setting is not None else None)
    except OSError as wrong:
        raise HTTPException(409, messages.sentence(str(wrong))) from None


def _unused(store: RunStore) -> None:
    busy = next((run.name for run in store.runs() if run.is_at_work()), None)
    if busy is not None:
        raise HTTPException(409, f"The run {busy} is using the compile cache. Wait until it ends, or stop it.")


def _cache(router: APIRouter, store: RunStore, form: Callable[[], Config | None]) -> None:
    @router.get("/cache")
    def cache_size() -> Response:
        """Folder and size of the compile cache."""
        folder = _folder(form())
        size = compile_cache.size(folder)
        return answer({"path": str(folder), "files": size.files, "bytes": size.bytes})

    @router.post("/cache/clear")
    def clear_cache() -> Response:
        """Delete all compiled kernels; the next run compiles again."""
        _unused(store)
        deleted = compile_cache.clear(_folder(form()))
        return answer({"files": deleted.files, "bytes": deleted.bytes})

    # Each takes up to 8 GiB of the disk while it lasts: one at a time.
    moving = threading.Lock()

    @router.get("/cache/export")
    def export_cache() -> Response:
        """This machine's kernels as a zip, for backup or for a machine with the same GPU and torch."""
        _take(moving)
        try:
            file = _temporary()
            _run_doctor(_folder(form()), "export", file)
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
        """Add kernels from a zip, the request's body; those that are here stay."""
        await run_in_threadpool(_unused, store)
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
                        raise HTTPException(
                            413, "This file is too large for a compile cache (over 8 GiB). Choose a file from Export."
                        )
                    stream.write(part)
            return answer({"text": await run_in_threadpool(_run_doctor, folder, "import", file)})
        finally:
            file.unlink(missing_ok=True)
            moving.release()


def _take(moving: threading.Lock) -> None:
    if not moving.acquire(blocking=False):
        raise HTTPException(409, "A compile cache is already being exported or imported. Wait until it is done.")


def _temporary() -> Path:
    with tempfile.NamedTemporaryFile(suffix=".zip", prefix="monotile-cache-", delete=False) as stream:
        return Path(stream.name)


def _run_doctor(folder: Path, action: str, file: Path) -> str:
    """Export or import in another process, since only torch knows which kernels fit. HTTPException with its error."""
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
        raise HTTPException(
            504, f"It took longer than {_SECONDS // 60} minutes and was ended. Try a smaller cache or a faster disk."
        ) from None
    if done.returncode:
        errors = done.stderr.strip().splitlines()
        text = errors[-1] if errors else f"the {action} failed without a message"
        raise HTTPException(422, messages.sentence(text.replace(str(file), "the file")))
    return done.stdout.strip().replace(str(file), "the file")


def _payback(router: APIRouter, store: RunStore, form: Callable[[], Config | None]) -> None:
    @router.get("/payback")
    def paid(run: Annotated[str | None, Query(max_length=300)] = None) -> Response:
        """After how many steps a compile has paid for itself: for a run, or for the form as it stands."""
        if run is None:
            config = form()
            if config is None or not config.compile.compile:
                return answer({"text": "", "steps": None})
            result = payback(config, resolve(config.saving.output_dir))
            return answer({"text": result.sentence(), "steps": result.steps})
        try:
            chosen_run = store.run(run)
        except RunError as wrong:
            raise HTTPException(404, messages.words(wrong)) from None
        config = load(chosen_run.config_path).config
        if config is None or not config.compile.compile:
            return answer({"text": "", "steps": None})
        result = payback(config, chosen_run.path.parent, chosen_run)
        return answer({"text": result.sentence(), "steps": result.steps})
