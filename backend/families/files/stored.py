"""Reads what ComfyUI's files say of layers in fewer bits, and whether these can be converted back here. Torch-free.

The note of a layer is JSON: in a tensor of bytes beside the weight (``<layer>.comfy_quant``), or for all layers in the
file's metadata (``_quantization_metadata``). Names of the formats: ComfyUI's ``comfy/quant_ops.py``, ``comfy/ops.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.families.files.headers import Header

_NOTE = ".comfy_quant"
# Numbers times a factor, of the whole matrix or a row; factors of blocks are known by their shape.
_PLAIN = ("float8_e4m3fn", "float8_e5m2", "int8_tensorwise", "int8_rowwise", "int8_blockwise")


def unreadable(path: Path, header: Header) -> dict[str, str]:
    """Layer -> in which form its weight is, of those whose form can't be undone here."""
    forms = {layer: _form(note) for layer, note in _notes(path, header).items()}
    return {layer: form for layer, form in forms.items() if form}


def _notes(path: Path, header: Header) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    table = _parsed(header.metadata.get("_quantization_metadata", "{}"))
    if isinstance(table, Mapping) and isinstance(table.get("layers"), Mapping):
        notes |= table["layers"]
    spans = {name: span for name, span in header.spans.items() if name.endswith(_NOTE)}
    if spans:
        with path.open("rb") as file:
            for name, (start, end) in spans.items():
                file.seek(start)
                notes[name.removesuffix(_NOTE)] = _parsed(file.read(end - start))
    return notes


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _form(note: Any) -> str:
    """In words, what can't be undone; empty where it can."""
    if not isinstance(note, Mapping) or not isinstance(note.get("format"), str):
        return "of a format that the file does not name"
    more = note.get("params")
    if any(isinstance(each, Mapping) and each.get("convrot") for each in (note, more)):
        return f"{note['format']}, turned by ConvRot"
    return "" if note["format"].startswith(_PLAIN) else str(note["format"])
