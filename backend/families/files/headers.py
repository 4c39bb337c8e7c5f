"""Reads model files on disk without torch: safetensors headers, shards, part folders of the diffusers layout.

Everything is checked from headers and sizes, so a 24 GB model takes milliseconds. Problems come back as a list: the
person sees all of them at once.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.base.tensor_names import clean_keys
from backend.families.files import kinds
from backend.families.files.parts import Part

SETTING = "model.base_model"
# No published model has a header near this; a larger number means that the file is no safetensors file.
_MAX_HEADER_BYTES = 100_000_000

_LOG_IN = "Download the file itself; the site may want you to log in first."
# What other files start with: what they are, and the fix where it is another than to copy the file again.
_OTHER_FILES: tuple[tuple[bytes, str, str], ...] = (
    (b"version ", "is a Git LFS pointer: the real file was never downloaded", "Download the file (git lfs pull)."),
    (b"GGUF", "is a GGUF file, whose weights are packed for inference", ""),
    (b"PK\x03\x04", "is a pickle file, which can run code when it is opened", ""),
    (b"\x80\x02", "is a pickle file, which can run code when it is opened", ""),
    (b"<", "is a web page instead of the file", _LOG_IN),
    (b"{", "is an error message of a web site instead of the file", _LOG_IN),
)
# Number formats that can be read, as safetensors calls them.
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
FORMATS = FLOATS | {"F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8", "BOOL"}
# Bytes of one number of these and the other formats of safetensors 0.8 whose numbers are whole bytes.
_WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 1),
}
UNSAFE = frozenset({".ckpt", ".pt", ".pth", ".bin"})
SAFE_ONLY = "Only safetensors are read; use the safetensors file of the model."
_AGAIN = "Copy the file again from where the model came from."


# What tokenizers are saved as whose own class doesn't matter.
_ANY_TOKENIZER = frozenset({"PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend"})


class Unreadable(ValueError):
    """A file that can't be read as safetensors: what is wrong with it, to be said behind its name, and the fix."""

    def __init__(self, text: str, remedy: str = _AGAIN) -> None:
        super().__init__(text)
        self.remedy = remedy


@dataclass(frozen=True)
class Header:
    """A safetensors header: tensor name -> (dtype as written, shape), and whether the file is as long as it says.

    spans: tensor name -> first byte and end of its numbers in the file. metadata: what the file says beside them.
    """

    tensors: dict[str, tuple[str, tuple[int, ...]]]
    missing_bytes: int
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)


def read_header(path: Path) -> Header:
    """Header of the safetensors file at `path`, its names clean of torch.compile's wrappers.

    Unreadable when it is none, when tensors lie in impossible places (negative, backwards, one over another, of
    another size than their shape needs), or when it holds a tensor under both its clean and its wrapped name. Tensors
    behind the file's end are counted by `Header.missing_bytes`.
    """
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise Unreadable("is cut short" if start else "is empty")
        (length,) = struct.unpack("<Q", start)
        for first, text, remedy in _OTHER_FILES:
            if start.startswith(first) and length > _MAX_HEADER_BYTES:
                raise Unreadable(text, remedy or SAFE_ONLY)
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise Unreadable("is not a safetensors file", SAFE_ONLY if path.suffix.lower() in UNSAFE else _AGAIN)
        raw = file.read(length)
    if len(raw) < length:
        raise Unreadable("is cut short")
    table = _table(raw)
    tensors, spans = {}, {}
    for name, entry in table.items():
        if name != "__metadata__":
            tensors[name], (begin, end) = _entry(name, entry)
            spans[name] = 8 + length + begin, 8 + length + end
    _refuse_overlapping(spans)
    end = max((span[1] for span in spans.values()), default=8 + length)
    try:
        tensors, spans = clean_keys(tensors), clean_keys(spans)
    except ValueError as error:
        raise Unreadable(f"contains tensors twice: {error}") from None
    metadata = table.get("__metadata__")
    return Header(tensors, max(0, end - path.stat().st_size), spans, metadata if isinstance(metadata, dict) else {})


def _table(raw: bytes) -> dict[str, Any]:
    """The JSON object of a header; Unreadable when it is none."""
    try:
        table = json.loads(raw)
    except ValueError:
        raise Unreadable("is not a safetensors file") from None
    except RecursionError:
        raise Unreadable("has a broken header: it is nested far deeper than a safetensors file's") from None
    if not isinstance(table, dict):
        raise Unreadable("is not a safetensors file")
    return table


def _entry(name: str, entry: Any) -> tuple[tuple[str, tuple[int, ...]], tuple[int, int]]:
    """A tensor's format and shape, and its first byte and end behind the header.

    Unreadable when they are not of the kind, the place is impossible, or it has not the size that the shape needs.
    """
    try:
        form, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise Unreadable("is not a safetensors file") from None
    if not isinstance(form, str) or not all(type(number) is int for number in (*shape, begin, end)):
        raise Unreadable("is not a safetensors file")
    if min(shape, default=0) < 0:
        raise Unreadable(f"has a broken header: {_shown(name)} has a negative size, {list(shape)}")
    if not 0 <= begin <= end:
        raise Unreadable(f"has a broken header: {_shown(name)} is from byte {begin} to byte {end}")
    width = _WIDTHS.get(form)
    if width is not None and end - begin != width * math.prod(shape):
        needed = f"{width * math.prod(shape)} that {list(shape)} in {form} needs"
        raise Unreadable(f"has a broken header: {_shown(name)} has {end - begin} bytes, not the {needed}")
    return (form, shape), (begin, end)


def _refuse_overlapping(spans: Mapping[str, tuple[int, int]]) -> None:
    last, until = "", 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin == end:
            continue
        if begin < until:
            text = f"has a broken header: {_shown(name)} and {_shown(last)} use the same bytes"
            raise Unreadable(text)
        last, until = name, end


def _shown(name: str) -> str:
    """A tensor's name, cut where it would fill the message."""
    return name if len(name) <= 120 else f"{name[:117]}..."


def read_json(path: Path) -> dict[str, Any]:
    """JSON object at `path`; ValueError, in words, when it can't be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is broken JSON (line {error.lineno}, column {error.colno})") from None
    if not isinstance(data, dict):
        raise ValueError("contains no JSON object")
    return data


def _variant_names(stem: str, variant: str | None) -> tuple[str, str]:
    """Names of the single file and of the shard index, as diffusers and transformers write them."""
    if variant:
        return f"{stem}.{variant}.safetensors", f"{stem}.safetensors.index.{variant}.json"
    return f"{stem}.safetensors", f"{stem}.safetensors.index.json"


def weight_files(folder: Path, stem: str, variant: str | None = None) -> list[Path]:
    """The safetensors files that make up the weights `stem` in `folder`, shards in order; empty when there are none.

    A part without files of the asked variant falls back to the plain ones, as diffusers does. Shards named by an index
    are returned whether they exist or not. ValueError when the index is broken.
    """
    for spelling in [variant, None] if variant else [None]:
        single, index = _variant_names(stem, spelling)
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            shards = read_json(folder / index).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise ValueError(f"{index} names no shards")
            return [folder / name for name in sorted(set(shards.values()))]
    return []


def folder_bytes(folder: Path, part: Part, variant: str | None = None) -> int:
    """Bytes on disk of the weights of `part` in its `folder`; 0 for a part without weights or with missing files."""
    if not part.weights:
        return 0
    try:
        files = weight_files(folder, part.weights, variant)
    except ValueError:
        return 0
    return sum(path.stat().st_size for path in files if path.is_file())


def folder_tensors(folder: Path, part: Part, variant: str | None = None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor names of `part` in its `folder` with dtype and shape, over all its shards.

    ValueError or OSError when a file can't be read.
    """
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in weight_files(folder, part.weights, variant):
        tensors |= read_header(path).tensors
    return tensors


def _problem(text: str, remedy: str) -> Problem:
    return Problem(path=SETTING, line=None, text=text, remedy=remedy)


def _check_class(base: Path, part: Part) -> list[Problem]:
    """The part's own config against the classes that it may have; a tokenizer's may name none in particular."""
    name = part.files[0][0]
    path = base / part.folder / name
    # a scheduler's class stands in model_index.json too, and is read from there
    if not path.is_file() or not (part.weights or name.startswith("tokenizer")):
        return []
    try:
        config = read_json(path)
    except ValueError as error:
        return [_problem(f"{part.folder}/{name} {error}", "Copy the file again from where the model came from.")]
    class_name = config.get("_class_name") or next(
        iter(config.get("architectures") or []), config.get("tokenizer_class")
    )
    if class_name is None or class_name in part.class_names or class_name in _ANY_TOKENIZER:
        return []
    wanted = part.class_names[0]
    return [
        _problem(
            f"{part.folder}/ contains {class_name}, but {part.title} must be {wanted}",
            f"Put the model's own {part.folder} folder there; this one belongs to another model.",
        )
    ]


def _check_weights(base: Path, part: Part, variant: str | None) -> list[Problem]:
    """Weights of one part: there, whole, and of the right kind."""
    folder = base / part.folder
    try:
        files = weight_files(folder, part.weights, variant)
    except ValueError as error:
        return [_problem(f"{part.folder}/ {error}", "Copy the folder again from where the model came from.")]
    if not files:
        other = sorted(
            p.name for p in folder.glob("*") if p.suffix in {".bin", ".pt", ".ckpt", ".safetensors", ".msgpack"}
        )
        seen = f" (found {', '.join(other[:3])})" if other else ""
        return [
            _problem(
                f"{part.title} has no weights: {part.folder}/{part.weights}.safetensors is missing{seen}",
                "Only safetensors are read; copy that file there, or set the variant if the name has one (fp16).",
            )
        ]
    problems, tensors = [], {}
    for path in files:
        shown = f"{part.folder}/{path.name}"
        if not path.is_file():
            problems.append(_problem(f"{shown} is missing", "Copy the missing shard; the index names it."))
            continue
        try:
            header = read_header(path)
        except Unreadable as error:
            problems.append(_problem(f"{shown} {error}", error.remedy))
            continue
        tensors |= header.tensors
        if header.missing_bytes:
            problems.append(
                _problem(
                    f"{shown} is cut short: {header.missing_bytes} bytes are missing",
                    "Copy the file again; the download was interrupted.",
                )
            )
    lacking = [marker for marker in part.markers if not any(marker in name for name in tensors)]
    kind = kinds.which({name: shape for name, (_, shape) in tensors.items()})
    if tensors and not problems and (lacking or (kind and kind.where)):
        what = kind.title if kind else f"something without {lacking[0]}"
        problems.append(
            _problem(
                f"{part.folder}/ contains {what}, not {part.title}",
                f"Put the model's own {part.folder} folder there; these weights belong to another part or model.",
            )
        )
    return problems


def check_folder(base: Path, part: Part, variant: str | None) -> list[Problem]:
    """Everything that is wrong with one part folder."""
    folder = base / part.folder
    if not folder.is_dir():
        return [
            _problem(
                f"{part.title} is missing: no folder {part.folder}/ in {base}",
                f"Copy the folder {part.folder} of the model there.",
            )
        ]
    problems = []
    for choices in part.files:
        if not any((folder / name).is_file() for name in choices):
            names = " or ".join(choices)
            problems.append(
                _problem(
                    f"{part.title} is incomplete: {part.folder}/{names} is missing", f"Copy {names} into {folder}."
                )
            )
    problems += _check_class(base, part)
    if part.weights:
        problems += _check_weights(base, part, variant)
    return problems
