"""Defines the files that a run saves on its way and at its end, and gives those of a LoRA."""

from __future__ import annotations

import filecmp
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import safetensors
import safetensors.torch
from torch import Tensor

from backend.base.files import atomic_path
from backend.config.sections.saving import SavingSection
from backend.lora.comfyui_keys import LayerNames
from backend.lora.inject import Lora
from backend.lora.save import LoraNotFinite, file_tensors, write_lora


class WeightsNotFinite(ValueError):
    """What was trained holds NaN or infinity: it is not written."""


class Content(Protocol):
    """What a file is to hold, of the present step."""

    def is_in(self, path: Path) -> bool:
        """True when `path` holds exactly this: a run resumed from there would write it a second time."""
        ...

    def write(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write it whole or not at all. WriteFailed when the disk refuses it."""
        ...


class SavedFiles(ABC):
    """The files of one kind of training."""

    noun: ClassVar[str]
    """What a file holds, in messages."""
    again: ClassVar[str]
    """The setting by which a new run begins with a file."""

    ending: str = ".safetensors"

    @abstractmethod
    def content(self) -> Content:
        """What a file of the present step holds. WeightsNotFinite when that can be told already."""

    @abstractmethod
    def bytes(self) -> int:
        """Bytes of one file. Refused when none can be written in the layout of the settings."""

    def listed(self, folder: Path) -> Iterator[Path]:
        """The files in `folder`."""
        return folder.glob(f"*{self.ending}")

    def steps_of(self, path: Path) -> int | None:
        """How many steps a file was trained, by its metadata; None where it says nothing."""
        try:
            with safetensors.safe_open(path, "pt") as opened:
                return int((opened.metadata() or {})["ss_steps"])
        except (OSError, KeyError, ValueError, safetensors.SafetensorError):
            return None

    def is_same(self, a: Path, b: Path) -> bool:
        """True when both are one file, or hold the same bytes."""
        try:
            # in pieces: a whole model may be larger than the machine's memory
            return os.path.samefile(a, b) or filecmp.cmp(a, b, shallow=False)
        except OSError:
            return False

    def copy(self, source: Path, target: Path) -> None:
        """Give a file a second name, or copy it where the disk has one name a file. WriteFailed when neither works."""
        try:
            os.link(source, target)
        except OSError:
            with atomic_path(target) as temporary:
                shutil.copyfile(source, temporary)

    def remove(self, path: Path) -> None:
        """Remove a file. OSError when that fails."""
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LoraContent:
    """The tensors of a LoRA file, on the CPU."""

    tensors: dict[str, Tensor]

    def is_in(self, path: Path) -> bool:
        """As `Content.is_in`."""
        try:
            there = safetensors.torch.load_file(path)
        except (OSError, safetensors.SafetensorError):
            return False
        return there.keys() == self.tensors.keys() and all(there[k].equal(value) for k, value in self.tensors.items())

    def write(self, path: Path, metadata: Mapping[str, str]) -> None:
        """As `Content.write`."""
        write_lora(path, self.tensors, metadata)


@dataclass(frozen=True, slots=True)
class LoraFiles(SavedFiles):
    """Files of a LoRA. names: of its layers in files."""

    noun: ClassVar[str] = "LoRA"
    again: ClassVar[str] = "network_weights"

    lora: Lora
    settings: SavingSection
    names: LayerNames

    def content(self) -> LoraContent:
        """As the class's."""
        try:
            return LoraContent(self._tensors())
        except LoraNotFinite as error:
            raise WeightsNotFinite(str(error)) from error

    def bytes(self) -> int:
        """As the class's."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def _tensors(self) -> dict[str, Tensor]:
        return file_tensors(self.lora, self.settings.save_precision, self.names, self.settings.save_layout)
