"""Writes what a finished request drew as one picture and one page: rows are checkpoints or strengths, columns prompts.

The page needs nothing but the folder it lies in, and no network: it can be copied, opened from a disk, and sent.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from backend.base.files import write_atomic
from backend.runs.folder import Run
from backend.runs.preview.folder import GRID, PAGE
from backend.runs.preview.losses import losses_of
from backend.runs.preview.request import PreviewRequest
from backend.runs.samples import still_of

_TEMPLATE = Path(__file__).with_name("matrix_page.html")
_MARK = "/*DATA*/null"
_GAP = 12
_TEXT_PX = 14
_LEFT = 170
"""Width of the row titles, px."""
_LARGEST = 16_000
"""Longest side of the grid, px; pictures are made smaller for it."""


def write_matrix(request: PreviewRequest, folder: Path) -> tuple[Path, ...]:
    """Write grid and page of the rows that are whole into the folder of the pictures; both paths, none without a row.

    WriteFailed where there is no room.
    """
    request = _whole_rows(request, folder)
    if not request.rows:
        return ()
    rows = _rows(request)
    grid, page = folder / GRID, folder / PAGE
    buffer = io.BytesIO()
    _grid(request, rows, folder).save(buffer, "PNG")
    write_atomic(grid, buffer.getvalue())
    write_atomic(page, _page(request, rows))
    return grid, page


def _whole_rows(request: PreviewRequest, folder: Path) -> PreviewRequest:
    """The request up to its first row with a picture that is not there yet."""
    missing = [cell.row for cell in request.cells() if not (folder / cell.file).is_file()]
    return replace(request, rows=request.rows[: min(missing, default=len(request.rows))])


def _rows(request: PreviewRequest) -> list[dict[str, Any]]:
    """Name, step and validation loss of each row."""
    losses = {} if request.run is None else losses_of(Run(request.run))
    return [{"name": row.name, "step": row.step, "loss": losses.get(row.step)} for row in request.rows]


def _page(request: PreviewRequest, rows: list[dict[str, Any]]) -> str:
    run = None if request.run is None else Path(request.run).name
    shown = ("prompt", "negative_prompt", "seed", "width", "height", "steps", "guidance_scale", "true_cfg_scale")
    shown += ("frames",)
    data = {
        "title": f"Preview of {run}" if run else "Preview",
        "rows": rows,
        "prompts": [{name: getattr(prompt, name) for name in shown} for prompt in request.prompts],
        "pictures": [[cell.row, cell.column, cell.file] for cell in request.cells()],
    }
    # a prompt may hold the end of a script
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", " ").replace("\u2029", " ")
    return _TEMPLATE.read_text(encoding="utf-8").replace(_MARK, text)


def _grid(request: PreviewRequest, rows: list[dict[str, Any]], folder: Path) -> Image.Image:
    """All pictures on one sheet, with prompts above and rows at the left; of a clip, some of its frames."""
    pictures = {(cell.row, cell.column): _open(still_of(folder / cell.file)) for cell in request.cells()}
    width = max(picture.width for picture in pictures.values())
    height = max(picture.height for picture in pictures.values())
    columns = len(request.prompts)
    shrink = min(1.0, _LARGEST / (columns * (width + _GAP) + _LEFT), _LARGEST / (len(rows) * (height + _GAP) + 40))
    width, height = max(1, int(width * shrink)), max(1, int(height * shrink))
    head = _TEXT_PX + 2 * _GAP
    size = (_LEFT + columns * (width + _GAP) + _GAP, head + len(rows) * (height + _GAP) + _GAP)
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_TEXT_PX)
    for column, prompt in enumerate(request.prompts):
        words = _fitting(prompt.prompt, width, pen, font)
        pen.text((_LEFT + column * (width + _GAP), _GAP), words, "black", font=font)
    for row, facts in enumerate(rows):
        top = head + row * (height + _GAP)
        lines = [facts["name"], *([] if facts["loss"] is None else [f"loss {facts['loss']:.4f}"])]
        for number, line in enumerate(lines):
            words = _fitting(line, _LEFT - 2 * _GAP, pen, font)
            pen.text((_GAP, top + number * (_TEXT_PX + 4)), words, "black", font=font)
        for column in range(columns):
            picture = pictures[row, column]
            if shrink < 1.0:
                picture = picture.resize((max(1, int(picture.width * shrink)), max(1, int(picture.height * shrink))))
            sheet.paste(picture, (_LEFT + column * (width + _GAP), top))
    return sheet


def _fitting(text: str, width: int, pen: ImageDraw.ImageDraw, font: Any) -> str:
    """As much of a text as `width` px hold. The built-in font knows Latin letters only."""
    shown = " ".join(text.encode("latin-1", "replace").decode("latin-1").split())
    while shown and pen.textlength(shown, font=font) > width:
        shown = shown[:-1]
    return shown


def _open(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")
