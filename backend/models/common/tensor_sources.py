"""Opens the config and tensors of a part: its files are mapped, and one tensor at a time is read.

What `open_part(base, part)` gives goes to `backend.models.common.weight_loading.load_part`. A source has the names that
diffusers and transformers use, whatever the files call them: `FolderSource` reads a folder in diffusers layout,
`FileSource` a single file through the rules of its layout (`backend.families.files.layouts`).
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.families.files import headers
from backend.families.files.base_model import BaseModelFiles, header_of
from backend.families.files.check import check_part
from backend.families.files.layouts.rules import Piece
from backend.families.files.parts import Part

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""safetensors' names of number formats."""


class LazyTensor(Protocol):
    """A tensor that is still in its file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def read(self) -> Tensor:
        """The tensor, on the CPU unless it is worked out elsewhere.

        It may be a view of the mapped file: copy what is to stay.
        """
        ...


class PartSource(Protocol):
    """One part of a base model."""

    @property
    def title(self) -> str:
        """Where it lies, for messages."""
        ...

    def config(self) -> dict[str, Any]:
        """The part's config, as diffusers or transformers write it."""
        ...

    def tensors(self) -> Mapping[str, LazyTensor]:
        """All tensors by name; nothing of them is read yet."""
        ...


@dataclass(frozen=True)
class FileTensor:
    """A tensor in a safetensors file: bytes `start` to `end` of `path`."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    end: int

    def read(self) -> Tensor:
        """A view of the file, mapped for as long as the view lives: only these bytes ever take memory."""
        size = self.end - self.start
        if size == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        begin = self.start - self.start % mmap.ALLOCATIONGRANULARITY
        with self.path.open("rb") as file:
            # copy on write: torch asks for a writable buffer; the file itself can't be changed through it
            mapped = mmap.mmap(file.fileno(), self.end - begin, access=mmap.ACCESS_COPY, offset=begin)
        raw = torch.frombuffer(mapped, dtype=torch.uint8, count=size, offset=self.start - begin)
        if self.start % self.dtype.itemsize:
            raw = raw.clone()
        return raw.view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class FolderSource:
    """A part in diffusers layout: `folder` with config.json and safetensors, in shards or not.

    variant: of the weight files; a part without files of that variant is read from its plain ones. Refused, with every
    problem of the part, when it is opened by `checked`.
    """

    folder: Path
    part: Part
    variant: str | None = None

    @classmethod
    def checked(cls, folder: Path, part: Part, variant: str | None = None) -> FolderSource:
        """The source, once its files are seen to be whole and of the right kind."""
        problems = headers.check_folder(folder.parent, replace(part, folder=folder.name), variant)
        if problems:
            raise Refused.of(problems)
        return cls(folder, part, variant)

    @property
    def title(self) -> str:
        """Where it lies, for messages."""
        return str(self.folder)

    def config(self) -> dict[str, Any]:
        """config.json; ValueError, in words, when it can't be read."""
        return headers.read_json(self.folder / "config.json")

    def tensors(self) -> dict[str, FileTensor]:
        """All tensors of all shards by name; ValueError, in words, for a broken file."""
        merged: dict[str, FileTensor] = {}
        for path in headers.weight_files(self.folder, self.part.weights, self.variant):
            merged |= file_tensors(path)
        return merged


def file_tensors(path: Path) -> dict[str, FileTensor]:
    """The tensors of one safetensors file by name; ValueError, in words, when it is none or holds an unknown format."""
    header = header_of(path)
    tensors = {}
    for name, (kind, shape) in header.tensors.items():
        if kind not in DTYPES:
            raise ValueError(f"{path.name} holds {name} as {kind}, which can't be read")
        start, end = header.spans[name]
        tensors[name] = FileTensor(path, shape, DTYPES[kind], start, end)
    return tensors


@dataclass(frozen=True)
class PieceTensor:
    """A tensor made out of one in another layout: some rows of it, turned, and scaled where it is kept in 8 bits."""

    stored: FileTensor
    piece: Piece
    scale: FileTensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.piece.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.scale is not None else self.stored.dtype

    def read(self) -> Tensor:
        """The tensor; a view of the file where nothing but names and rows differ."""
        value = self.stored.read()
        if self.scale is not None:
            value = value.float() * self._factors(value.shape)
        if self.piece.turn == "matrix":
            return value.reshape(self.shape)
        if self.piece.turn == "transpose":
            return value.T
        if self.piece.turn == "swap_halves":
            first, second = value.chunk(2)
            return torch.cat([second, first])
        return value

    def _factors(self, shape: torch.Size) -> Tensor:
        """The scale, float32: one number, or one a row of which these rows have their share."""
        assert self.scale is not None
        factors = self.scale.read().float()
        if factors.numel() == 1:
            return factors.reshape(())
        rows = factors.reshape(-1)[self.piece.start : self.piece.end]
        if rows.numel() != shape[0]:
            raise ValueError(f"the scale of {self.piece.source} has {factors.numel()} values for {shape[0]} rows")
        return rows.reshape(-1, *[1] * (len(shape) - 1))


@dataclass(frozen=True)
class FileSource:
    """A part in a single file of another layout, or of diffusers' own."""

    base: BaseModelFiles
    part: Part
    path: Path

    @property
    def title(self) -> str:
        """Where it lies, for messages."""
        return str(self.path)

    def config(self) -> dict[str, Any]:
        """The shipped config, corrected by the file's shapes; ValueError, in words, where it can't be made."""
        return self.base.config(self.part)

    def tensors(self) -> dict[str, PieceTensor]:
        """All tensors of the part by diffusers' name; ValueError, in words, for a broken file."""
        stored = file_tensors(self.path)
        return {name: _piece_tensor(piece, stored) for name, piece in self.base.pieces(self.part).items()}


def _piece_tensor(piece: Piece, stored: Mapping[str, FileTensor]) -> PieceTensor:
    whole = stored[piece.source]
    if piece.start is not None and piece.end is not None:
        row = (whole.end - whole.start) // whole.shape[0]
        whole = replace(
            whole,
            shape=(piece.end - piece.start, *whole.shape[1:]),
            start=whole.start + piece.start * row,
            end=whole.start + piece.end * row,
        )
    return PieceTensor(whole, piece, stored[piece.scale] if piece.scale else None)


def open_part(base: BaseModelFiles, part: Part) -> PartSource:
    """Where `part` of the base model comes from. Refused with every problem of its files."""
    problems = check_part(base, part)
    if problems:
        raise Refused.of(problems)
    place = base.place(part)
    assert place is not None, "checked"
    if place.layout is None:
        return FolderSource(place.path, part, base.variant)
    return FileSource(base, part, place.path)


def tokenizer_folder(base: BaseModelFiles, part: Part) -> Path:
    """The folder of a tokenizer. Refused with every problem of it."""
    problems = check_part(base, part)
    if problems:
        raise Refused.of(problems)
    place = base.place(part)
    assert place is not None, "checked"
    return place.path
