"""Answers the Queue tab: the list with its states and times, and each of its buttons."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Body, HTTPException
from fastapi.responses import Response

from backend.base.errors import WriteFailed
from backend.plan.memory.machine import installed_gpus
from backend.queue import changes, process, view
from backend.queue.folder import QueueFolder
from backend.runs.errors import RunError
from backend.runs.preview.folder import PreviewFolder
from gui.run_routes import answer, or_refusal
from gui.run_store import RunStore

log = logging.getLogger(__name__)

# Removed entries that can still be restored.
_KEPT = 30


def routes(store: RunStore, folder: QueueFolder, preview: PreviewFolder) -> APIRouter:
    """The routes of the queue in `folder`. A browser sends an entry's id, never a path."""
    router = APIRouter()

    def change(what: Callable[[], object]) -> None:
        or_refusal(what)
        see_to(store, folder, preview)

    @router.get("/queue")
    def listed() -> Response:
        """The queue with every entry. Its process is started again where it is gone."""
        see_to(store, folder, preview)
        queue = folder.read()
        return answer(
            {
                "on": queue.on,
                "paused_by": queue.paused_by,
                "continue_ended": queue.continue_ended,
                "gpus": _gpus(),
                "entries": [row.to_dict() for row in view.rows(folder, store.runs())],
            }
        )

    @router.post("/queue/set")
    def set_(
        on: Annotated[bool | None, Body()] = None, continue_ended: Annotated[bool | None, Body()] = None
    ) -> Response:
        """Start or pause the queue; continue, or leave, runs that end without a word."""
        if continue_ended is not None:
            change(lambda: changes.set_continue_ended(folder, continue_ended))
        if on is not None:
            change(lambda: changes.set_on(folder, on))
        return answer({})

    @router.post("/queue/entry")
    def entry(
        entry: Annotated[str, Body(max_length=100)],
        what: Annotated[str, Body(max_length=20)],
        gpu: Annotated[str | None, Body(max_length=4)] = None,
    ) -> Response:
        """One button of an entry: up, down, now, skip, retry or gpu."""
        buttons: dict[str, Callable[[], object]] = {
            "up": lambda: changes.move(folder, entry, -1),
            "down": lambda: changes.move(folder, entry, 1),
            "now": lambda: changes.run_now(folder, entry),
            "skip": lambda: changes.skip(folder, entry),
            "retry": lambda: changes.retry(folder, entry),
            "gpu": lambda: changes.set_gpu(folder, entry, gpu),
        }
        if what not in buttons:
            raise HTTPException(422, f"The buttons of an entry are: {', '.join(buttons)}.")
        change(buttons[what])
        return answer({})

    _removing(router, folder, change)
    return router


def _removing(router: APIRouter, folder: QueueFolder, change: Callable[[Callable[[], object]], None]) -> None:
    """The routes that take entries off the list, and put one back."""
    removed: dict[int, changes.Removed] = {}
    numbers = itertools.count(1)

    @router.post("/queue/remove")
    def remove(entry: Annotated[str, Body(embed=True, max_length=100)]) -> Response:
        """Take an entry off the list; the token restores it."""
        token = next(numbers)
        removed[token] = or_refusal(lambda: changes.remove(folder, entry))
        if len(removed) > _KEPT:
            removed.pop(next(iter(removed)))
        return answer({"token": token})

    @router.post("/queue/restore")
    def restore(token: Annotated[int, Body(embed=True)]) -> Response:
        """Put a removed entry back to its place."""
        if token not in removed:
            raise HTTPException(404, "This entry is not kept any more. Add it again.")
        change(lambda: changes.restore(folder, removed[token]))
        removed.pop(token, None)
        return answer({})

    @router.post("/queue/clear")
    def clear() -> Response:
        """Take off the list what has ended; the run folders stay."""
        change(lambda: changes.remove_ended(folder))
        return answer({})


def see_to(store: RunStore, folder: QueueFolder, preview: PreviewFolder) -> None:
    """See that the queue's process is there where it is needed; a start that fails is logged."""
    try:
        process.see_to(folder, store.roots(), preview.path)
    except (RunError, WriteFailed) as error:
        log.warning("%s", error)


@functools.cache
def _gpus() -> list[dict[str, str]]:
    """The GPUs to choose from, as CUDA numbers them by default where they are alike."""
    return [{"id": str(number), "name": gpu.name} for number, gpu in enumerate(installed_gpus())]
