"""Answers what the Dataset tab asks of captions by a model: the model, the process, the difference, write and undo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Body, HTTPException, Query
from fastapi.responses import Response

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.runs.captioning.model_folder import read_model
from backend.runs.captioning.request import CaptionOptions
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from gui import messages
from gui.caption_job import CaptionJob, model_facts
from gui.caption_writing import CaptionWriter
from gui.run_routes import answer, or_refusal
from gui.run_store import RunStore

_LONGEST = 20_000


def routes(writer: CaptionWriter, store: RunStore, preview: PreviewFolder, folder: Path) -> APIRouter:
    """The routes of this module. folder: of the page's own files. The browser gives numbers of images, never paths."""
    router = APIRouter()
    job = CaptionJob(writer, folder)

    @router.post("/captioning/model")
    def model(options: CaptionOptions) -> Response:
        """What the model's folder holds, and the memory that it needs; or what is wrong with it, as ``problem``."""
        try:
            return answer(model_facts(read_model(_folder_of(options)), options))
        except Refused as error:
            return answer({"problem": f"{messages.sentence(error.text)} {error.remedy}"})

    @router.post("/captioning")
    def start(options: CaptionOptions) -> Response:
        """Start to caption the scanned images, or continue."""
        resolved = options.model_copy(update={"model": str(_folder_of(options))})

        def begin() -> None:
            if resolved.device != "cpu":
                give_gpu_back(preview)
            job.start(resolved, store.roots())

        or_refusal(begin)
        return answer({})

    @router.get("/captioning")
    def state() -> Response:
        """How far it is."""
        return answer(job.facts())

    @router.post("/captioning/cancel")
    def cancel() -> Response:
        """Stop it; the captions so far are kept."""
        job.job.cancel()
        return answer({})

    _difference_routes(router, job)
    return router


def _difference_routes(router: APIRouter, job: CaptionJob) -> None:
    """What a person sees of the captions, decides of them, and writes."""

    @router.get("/captioning/difference")
    def difference(page: Annotated[int, Query(ge=0)] = 0) -> Response:
        """One page of new captions beside the old ones."""
        return answer(job.difference(page))

    @router.post("/captioning/choose")
    def choose(
        number: Annotated[int | None, Body(ge=0)] = None,
        text: Annotated[str | None, Body(max_length=_LONGEST)] = None,
        left: Annotated[bool | None, Body()] = None,
    ) -> Response:
        """Edit a new caption, or leave it out; without a number, all of them."""
        or_refusal(lambda: job.choose(number, text, left))
        return answer({})

    @router.post("/captioning/write")
    def write() -> Response:
        """Write the resolved captions in the background, as changes of many captions are."""
        or_refusal(job.write)
        return answer(job.writer.facts())


def _folder_of(options: CaptionOptions) -> Path:
    # a path that was copied from a file manager comes in quotes
    typed = options.model.strip().strip("\"'").strip()
    if not typed:
        raise HTTPException(422, "No model is given. Type the folder of a captioning model.")
    return resolve(typed)
