"""Captions written on the page: the text file beside a picture of the newest look, and the way back."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query
from fastapi.responses import Response

from backend.base.errors import WriteFailed
from backend.base.files import write_atomic
from backend.config.endings import PICTURES, UNREAD_PICTURES, WEIGHTS
from backend.dataset import captions
from backend.dataset.items import Item
from gui import messages
from gui.dataset_scan import Look
from gui.run_routes import answer

_LONGEST = 20_000
_STEPS_BACK = 200


class Captions:
    """Reads and writes the captions of a look's pictures. Bytes that were replaced are kept for a way back."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self._numbers = itertools.count(1)
        self._before: dict[int, tuple[Path, bytes | None]] = {}

    def read(self, look: int, index: int) -> dict[str, Any]:
        """The caption as its file has it, without the trigger word; ``said`` tells what is odd about the file."""
        item = self._item(look, index)
        path, said = self._file(item), ""
        try:
            text, encoding = captions.read(path)
            if encoding == "cp1252":
                said = f"{path.name} is not in UTF-8 and was read as Windows-1252; saving writes UTF-8."
        except FileNotFoundError:
            text, said = "", f"There is no {path.name} yet; saving makes it."
        except captions.BadCaption as wrong:
            text, said = "", messages.sentence(f"{path.name} can't be read: {wrong}")
        except OSError as wrong:
            raise HTTPException(409, f"{path.name} can't be read: {wrong.strerror}.") from None
        return {"name": item.path.name, "file": str(path), "text": text, "said": said, "of": len(self.look.items)}

    def write(self, look: int, index: int, text: str) -> dict[str, Any]:
        """Write a caption; the answer's token takes it back."""
        item = self._item(look, index)
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
        return {"token": token, "caption": self._refresh(path, index)}

    def undo(self, token: int) -> dict[str, Any]:
        """Put back what was there before: the same bytes, or no file."""
        if token not in self._before:
            raise HTTPException(404, "What was there before is no longer at hand.")
        path, before = self._before[token]
        try:
            path.unlink(missing_ok=True) if before is None else write_atomic(path, before)
        except (OSError, WriteFailed) as wrong:
            raise HTTPException(409, messages.words(wrong)) from None
        del self._before[token]
        alike = [index for index, item in enumerate(self.look.items) if self._file(item) == path]
        caption = [self._refresh(path, index) for index in alike]
        return {"restored": path.name, "caption": caption[0] if caption else ""}

    def _item(self, look: int, index: int) -> Item:
        if look != self.look.job.number or not 0 <= index < len(self.look.items):
            raise HTTPException(404, "The pictures were looked at anew since. Open it again.")
        return self.look.items[index]

    def _file(self, item: Item) -> Path:
        return item.caption_path or item.path.with_suffix(self.look.caption_extension)

    def _refresh(self, path: Path, index: int) -> str:
        """Have the look show what the file holds now."""
        item = self.look.items[index]
        try:
            text: str | None = captions.read(path)[0]
        except (OSError, captions.BadCaption):
            text = None
        found = replace(
            item,
            caption=captions.with_trigger(text or "", self.look.trigger_word),
            caption_path=path if text is not None else None,
        )
        self.look.edited(index, found)
        return found.caption


def _before(path: Path) -> bytes | None:
    """What a caption is about to replace; None for no file. HTTPException when it is no text: it is never replaced."""
    if not path.exists():
        return None
    remedy = "Set the caption extension on the Dataset tab to that of text files, such as .txt."
    if not path.is_file():
        raise HTTPException(409, f"{path.name} is no file. {remedy}")
    before = path.read_bytes()
    if path.suffix.lower() in PICTURES | UNREAD_PICTURES | WEIGHTS or not captions.is_text(before):
        raise HTTPException(409, f"{path.name} is no text, and it is never replaced by a caption. {remedy}")
    return before


def routes(look: Look) -> APIRouter:
    """The routes of this module. The browser names a look and a number, never a path."""
    router = APIRouter()
    held = Captions(look)

    @router.get("/look/caption")
    def caption(look: int, item: Annotated[int, Query(ge=0)]) -> Response:
        """The caption of one picture."""
        return answer(held.read(look, item))

    @router.post("/look/caption")
    def write(
        look: Annotated[int, Body()],
        item: Annotated[int, Body(ge=0)],
        text: Annotated[str, Body(max_length=_LONGEST)],
    ) -> Response:
        """Write it."""
        return answer(held.write(look, item, text))

    @router.post("/look/caption/undo")
    def undo(token: Annotated[int, Body(embed=True)]) -> Response:
        """Take it back."""
        return answer(held.undo(token))

    return router
