"""Answers about the images of the scan: filtered pages, tags, changes of many captions, near-duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, HTTPException, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from backend.base.errors import Refused, WriteFailed
from backend.config.schema import Config
from backend.dataset.caption_edits import Edit
from gui import messages
from gui.bulk_captions import BulkCaptions
from gui.caption_writing import CaptionWriter
from gui.image_filter import ImageFilter, ImageIndex, numbers_in
from gui.near_duplicates import NearDuplicates
from gui.run_routes import Name, answer
from gui.scan_losses import Order, ScanLosses

_Caption = Annotated[str, Field(max_length=20_000)]


class Shown(ImageFilter):
    """Which page of which images, and how they are sorted. run: whose losses are shown."""

    page: int = Field(0, ge=0)
    order: Order = ""
    run: Name | None = None


class Tags(ImageFilter):
    """Of which images tags are counted. part: what a tag has in it."""

    part: str = Field("", max_length=1000)


class EditForm(BaseModel):
    """A change of captions, as `caption_edits.Edit` has it."""

    kind: Literal["replace", "add", "remove", "rename"]
    find: _Caption = ""
    text: _Caption = ""
    regex: bool = False
    match_case: bool = False
    at_end: bool = True


class Request(BaseModel):
    """A change of captions, and of which images: those with these numbers, else those that the filter shows."""

    scan: int
    edit: EditForm
    shown: ImageFilter = Field(default_factory=ImageFilter)
    numbers: list[int] | None = Field(None, max_length=1_000_000)


def routes(writer: CaptionWriter, losses: ScanLosses, config: Callable[[], Config | None]) -> APIRouter:
    """The routes of this module. The browser gives a scan and numbers, never a path. config: gives the form's."""
    router, scan = APIRouter(), writer.scan
    index = ImageIndex(scan)

    @router.get("/scan/items")
    def items(shown: Annotated[Shown, Query()]) -> Response:
        """One page of images, with the losses that a run measured of them."""
        return answer(losses.page(shown.page, shown.order, shown.run, index.matching(shown)))

    @router.get("/scan/tags")
    def tags(shown: Annotated[Tags, Query()]) -> Response:
        """What there is to filter by, and the most frequent tags of the filtered images."""
        return answer(index.facets() | index.tags(index.matching(shown), shown.part))

    _bulk_routes(router, writer, index)
    _near_routes(router, NearDuplicates(scan), config)
    return router


def _bulk_routes(router: APIRouter, writer: CaptionWriter, index: ImageIndex) -> None:
    scan, bulk = writer.scan, BulkCaptions(writer)

    @router.get("/scan/bulk")
    def state() -> Response:
        """How far changes are, and which can be undone."""
        return answer(writer.facts())

    @router.post("/scan/bulk/preview")
    def preview(request: Request) -> Response:
        """Compute a change, without writing anything."""
        if request.scan != scan.number:
            raise HTTPException(409, "The dataset was scanned again. Look at the images again.")
        numbers = request.numbers if request.numbers is not None else index.matching(request.shown)
        wanted = range(len(scan.items)) if numbers is None else numbers_in(numbers, len(scan.items))
        with _refusals():
            return answer(bulk.facts(bulk.preview(Edit(**request.edit.model_dump()), wanted).id, 0))

    @router.get("/scan/bulk/preview")
    def differences(preview: int, page: Annotated[int, Query(ge=0)] = 0) -> Response:
        """Another page of a change's differences."""
        with _refusals():
            return answer(bulk.facts(preview, page))

    @router.post("/scan/bulk/apply")
    def start(preview: Annotated[int, Body(embed=True)]) -> Response:
        """Write a change that was looked at."""
        with _refusals():
            bulk.start(preview)
        return answer(writer.facts())

    @router.post("/scan/bulk/undo")
    def undo(id: Annotated[str, Body(embed=True, max_length=100)]) -> Response:
        """Undo a change."""
        with _refusals():
            writer.start_undo(id)
        return answer(writer.facts())

    @router.post("/scan/bulk/stop")
    def stop() -> Response:
        """Stop writing. A change of captions is put back; of a model's captions, those that were written stay."""
        writer.work.stop.set()
        return answer(writer.facts())


def _near_routes(router: APIRouter, near: NearDuplicates, config: Callable[[], Config | None]) -> None:
    def excluded() -> list[str]:
        now = config()
        return [] if now is None else now.dataset.excluded_images or []

    @router.get("/scan/near")
    def state(page: Annotated[int, Query(ge=0)] = 0) -> Response:
        """Progress and result of the search for near-duplicates."""
        return answer(near.facts(page, excluded()))

    @router.post("/scan/near/leave")
    def leave(scan: Annotated[int, Body()], group: Annotated[int, Body()], out: Annotated[bool, Body()]) -> Response:
        """What to change in the form so that all but one image of a group are left out, or none."""
        change = near.change(scan, group, excluded(), out)
        if change is None:
            raise HTTPException(409, "The dataset was scanned again. Look at the images again.")
        return answer({"change": change})

    @router.post("/scan/near")
    def start() -> Response:
        """Start the search."""
        if not near.start():
            raise HTTPException(409, "There is nothing to search, or a search is running. Scan the dataset first.")
        return answer(near.facts(0))

    @router.post("/scan/near/stop")
    def stop() -> Response:
        """Stop the search."""
        near.job.cancel()
        return answer(near.facts(0))


class _refusals:
    """Turns what can't be done into an answer with its words."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (Refused, WriteFailed)):
            raise HTTPException(409, messages.words(error)) from None
