"""Where a part's config and tensors come from: files that are mapped, of which one tensor at a time is read.

A source gives the names that diffusers and transformers use, whatever the files call them.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from backend.models import files
from backend.models.spec import Part
from backend.refused import Refused

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
        """The tensor on the CPU. It may be a view of the mapped file: copy what is to stay."""
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
        problems = files.check_part(folder.parent, replace(part, folder=folder.name), variant)
        if problems:
            raise Refused.of(problems)
        return cls(folder, part, variant)

    @property
    def title(self) -> str:
        """Where it lies, for messages."""
        return str(self.folder)

    def config(self) -> dict[str, Any]:
        """config.json; ValueError, in words, when it can't be read."""
        return files.read_json(self.folder / "config.json")

    def tensors(self) -> dict[str, FileTensor]:
        """All tensors of all shards by name; ValueError, in words, for a broken file."""
        found: dict[str, FileTensor] = {}
        for path in files.weight_files(self.folder, self.part.weights, self.variant):
            found |= file_tensors(path)
        return found


def file_tensors(path: Path) -> dict[str, FileTensor]:
    """The tensors of one safetensors file by name; ValueError, in words, when it is none or holds an unknown format."""
    header = files.read_header(path)
    found = {}
    for name, (kind, shape) in header.tensors.items():
        if kind not in DTYPES:
            raise ValueError(f"{path.name} holds {name} as {kind}, which can't be read")
        start, end = header.spans[name]
        found[name] = FileTensor(path, shape, DTYPES[kind], start, end)
    return found
