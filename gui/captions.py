"""Reads and writes captions on the page: the text file of an image of the newest scan, with undo."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query
from fastapi.responses import Response

from backend.base.errors import WriteFailed
from backend.base.files import write_atomic
from backend.config.endings import PICTURES, UNREAD_PICTURES, WEIGHTS
from backend.dataset import captions
from backend.dataset.caption_sources import read_captions
from backend.dataset.items import Item
from gui import messages
from gui.caption_refresh import reread
from gui.dataset_scan import PageScan
from gui.run_routes import answer

_LONGEST = 20_000
_STEPS_BACK = 200
_IS_JSON = "JSON holds more than a caption: write it in a text editor."


class Captions:
    """Reads and writes the captions of a scan's images. Bytes that were replaced are kept for undo."""

    def __init__(self, scan: PageScan) -> None:
        self.scan = scan
        self._numbers = itertools.count(1)
        self._before: dict[int, tuple[Path, bytes | None]] = {}

    def read(self, scan: int, index: int) -> dict[str, Any]:
        """The caption as its file has it, without the trigger word; ``note`` says what is unusual about the file."""
        item = self._item(scan, index)
        path, note = self._file(item), ""
        try:
            texts, encoding = read_captions(path, self.scan.caption_lines)
            text = "\n".join(texts)
            if encoding == "cp1252":
                note = f"{path.name} is not in UTF-8 and was read as Windows-1252. Saving writes it as UTF-8."
        except FileNotFoundError:
            # one that a list names has its caption there, before which a file of its own counts
            text = self.scan.bare(item) if item.caption_path is None else ""
            note = f"There is no {path.name} yet. " + (_IS_JSON if _is_json(path) else "Saving creates it.")
        except captions.BadCaption as wrong:
            text, note = "", messages.sentence(f"{path.name} can't be read: {wrong}")
        except OSError as wrong:
            raise HTTPException(409, f"{path.name} can't be read: {wrong.strerror}.") from None
        return {"name": item.path.name, "file": str(path), "text": text, "note": note, "of": len(self.scan.items)}

    def write(self, scan: int, index: int, text: str) -> dict[str, Any]:
        """Write a caption; the answer's token undoes it."""
        item = self._item(scan, index)
        path = self._file(item)
        try:
            before = _before(path)
            write_atomic(path, text.strip())
        except (OSError, WriteFailed) as wrong:
            raise HTTPException(409, messages.words(wrong)) from None
        token = next(self._numbers)
        self._before[token] = (path, before)
        if len(self._before) > _STEPS_BACK:
            self._before.pop(next(iter(self._before)))
        return {"token": token, "caption": self._refresh(index)}

    def undo(self, token: int) -> dict[str, Any]:
        """Put back what was there before: the same bytes, or no file."""
        if token not in self._before:
            raise HTTPException(404, "The earlier caption is not kept any more. Write it again.")
        path, before = self._before[token]
        try:
            path.unlink(missing_ok=True) if before is None else write_atomic(path, before)
        except (OSError, WriteFailed) as wrong:
            raise HTTPException(409, messages.words(wrong)) from None
        del self._before[token]
        indexes = [index for index, item in enumerate(self.scan.items) if self._file(item) == path]
        caption = [self._refresh(index) for index in indexes]
        return {"restored": path.name, "caption": caption[0] if caption else ""}

    def _item(self, scan: int, index: int) -> Item:
        if scan != self.scan.number or not 0 <= index < len(self.scan.items):
            raise HTTPException(404, "The dataset was scanned again. Close this and open the image again.")
        return self.scan.items[index]

    def _file(self, item: Item) -> Path:
        return item.caption_path or item.path.with_suffix(self.scan.caption_extension)

    def _refresh(self, index: int) -> str:
        """Update the scan to what the files hold now."""
        reread(self.scan, index, {})
        return self.scan.items[index].caption


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _before(path: Path) -> bytes | None:
    """Bytes that a caption will replace; None for no file. HTTPException when they are not text."""
    if _is_json(path):
        raise HTTPException(409, f"{path.name}: {_IS_JSON}")
    if not path.exists():
        return None
    remedy = "Set Caption extension on the Dataset tab to that of text files, such as .txt."
    if not path.is_file():
        raise HTTPException(409, f"{path.name} is not a file. {remedy}")
    before = path.read_bytes()
    if path.suffix.lower() in PICTURES | UNREAD_PICTURES | WEIGHTS or not captions.is_text(before):
        raise HTTPException(409, f"{path.name} is not a text file, so no caption is written over it. {remedy}")
    return before


def routes(scan: PageScan) -> APIRouter:
    """The routes of this module. The browser gives a scan and a number, never a path."""
    router = APIRouter()
    editor = Captions(scan)

    @router.get("/scan/caption")
    def caption(scan: int, item: Annotated[int, Query(ge=0)]) -> Response:
        """The caption of one image."""
        return answer(editor.read(scan, item))

    @router.post("/scan/caption")
    def write(
        scan: Annotated[int, Body()],
        item: Annotated[int, Body(ge=0)],
        text: Annotated[str, Body(max_length=_LONGEST)],
    ) -> Response:
        """Write the caption of one image."""
        return answer(editor.write(scan, item, text))

    @router.post("/scan/caption/undo")
    def undo(token: Annotated[int, Body(embed=True)]) -> Response:
        """Undo a written caption."""
        return answer(editor.undo(token))

    return router
