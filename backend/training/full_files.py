"""Gives the files of a run that trains the whole denoiser: one file like the base model's own, or diffusers' folder."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.base.files import atomic_folder
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.parts import Part
from backend.families.spec import FamilyFacts
from backend.lora.save import PRECISIONS
from backend.models.common.tensor_file import Stored, write_tensors
from backend.models.common.tensor_sources import LazyTensor, file_tensors
from backend.models.common.whole_model_files import (
    CONFIG,
    ENCODER_WEIGHTS,
    WEIGHTS,
    WholeModel,
    write_encoder,
    write_folder,
)
from backend.training.saved_files import SavedFiles, WeightsNotFinite


@dataclass(frozen=True, slots=True)
class FullContent:
    """The tensors of a whole model, read one by one. written: writes them and metadata to a path. read: path of what
    was written -> its tensors."""

    tensors: Mapping[str, Stored]
    written: Callable[[Path, Mapping[str, Stored], Mapping[str, str]], None]
    read: Callable[[Path], Mapping[str, LazyTensor]]

    def is_in(self, path: Path) -> bool:
        """As `backend.training.saved_files.Content.is_in`."""
        try:
            there = self.read(path)
        except (OSError, ValueError):
            return False
        if {name: (tensor.shape, tensor.dtype) for name, tensor in there.items()} != {
            name: (stored.shape, stored.dtype) for name, stored in self.tensors.items()
        }:
            return False
        return all(there[name].read().equal(stored.read().cpu()) for name, stored in self.tensors.items())

    def write(self, path: Path, metadata: Mapping[str, str]) -> None:
        """As `backend.training.saved_files.Content.write`."""
        self.written(path, self.tensors, metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class FullFiles(SavedFiles):
    """Files of a whole model. denoiser: with the trained weights. precision: that its weights are saved in.

    state: gives its state dict, live.
    """

    noun: ClassVar[str] = "model"
    again: ClassVar[str] = "base_model"

    denoiser: nn.Module
    precision: str
    state: Callable[[], Mapping[str, Tensor]]

    def content(self) -> FullContent:
        """As the class's. Values are looked at while they are written: WeightsNotFinite then."""
        return FullContent(self._tensors(self.state()), self._write, self._read)

    def bytes(self) -> int:
        """As the class's."""
        return sum(stored.nbytes for stored in self._tensors(self.state()).values())

    @abstractmethod
    def _tensors(self, state: Mapping[str, Tensor]) -> dict[str, Stored]: ...

    @abstractmethod
    def _write(self, path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> None: ...

    @abstractmethod
    def _weights(self, path: Path) -> Path: ...

    def _read(self, path: Path) -> Mapping[str, LazyTensor]:
        """The tensors of what was written to `path`, by the names of `_tensors`."""
        return file_tensors(self._weights(path))

    def _checked(self, stored: Stored, name: str) -> Stored:
        """The same, once its values are seen to be finite. Refused when one does not fit into the precision."""

        def read() -> Tensor:
            value = stored.read()
            if not torch.isfinite(value).all():
                self._refuse(name)
            return value

        return Stored(stored.shape, stored.dtype, read)

    def _refuse(self, name: str) -> None:
        if all(torch.isfinite(value).all() for value in self.state().values()):
            text = f"{name} has values too large for {self.precision}"
            raise Refused(text, "Save as bf16 or fp32.", "saving.save_precision")
        raise WeightsNotFinite(f"{name} holds NaN or infinity")


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleFiles(FullFiles):
    """One safetensors file, as ComfyUI and sd-scripts read it."""

    model: WholeModel

    def _tensors(self, state: Mapping[str, Tensor]) -> dict[str, Stored]:
        stored = self.model.stored(state, PRECISIONS[self.precision])
        return {
            name: self._checked(each, name) if name in self.model.natives else each for name, each in stored.items()
        }

    def _write(self, path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> None:
        write_tensors(path, tensors, metadata)

    def _weights(self, path: Path) -> Path:
        return path


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderFiles(FullFiles):
    """A folder that holds the denoiser's own, as ``save_pretrained`` of a pipeline of diffusers writes it.

    encoders: text encoders that are trained too, by the folders that they have in it.
    """

    ending: ClassVar[str] = ""

    part: Part
    encoders: Mapping[str, nn.Module]

    def listed(self, folder: Path) -> Iterator[Path]:
        """As the class's."""
        # names that begin with a dot are folders still being written
        return (path.parent.parent for path in folder.glob(f"[!.]*/{self.part.folder}/{CONFIG}"))

    def steps_of(self, path: Path) -> int | None:
        """As the class's."""
        return FullFiles.steps_of(self, self._weights(path))

    def is_same(self, a: Path, b: Path) -> bool:
        """As the class's."""
        return FullFiles.is_same(self, self._weights(a), self._weights(b))

    def copy(self, source: Path, target: Path) -> None:
        """As the class's: its files get a second name."""
        with atomic_folder(target) as temporary:
            for folder in self._folders:
                (temporary / folder).mkdir()
                for path in (source / folder).iterdir():
                    FullFiles.copy(self, path, temporary / folder / path.name)

    @property
    def _folders(self) -> list[str]:
        return [self.part.folder, *self.encoders]

    def remove(self, path: Path) -> None:
        """As the class's."""
        # moved first: a half-removed folder would look like a file of its step
        gone = path.with_name(f".{path.name}.removed-{os.getpid()}")
        path.rename(gone)
        shutil.rmtree(gone)

    def _tensors(self, state: Mapping[str, Tensor]) -> dict[str, Stored]:
        dtype = PRECISIONS[self.precision]

        def stored(value: Tensor) -> Stored:
            kept = dtype if value.is_floating_point() else value.dtype
            return Stored(tuple(value.shape), kept, lambda: value.to(kept))

        return {name: self._checked(stored(value), name) for name, value in state.items()}

    def _write(self, path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> None:
        # a folder can't be replaced by a rename: what is there goes when the new one is whole
        target = path.with_name(f".{path.name}.new-{os.getpid()}") if path.exists() else path
        with atomic_folder(target) as temporary:
            for folder in self._folders:
                (temporary / folder).mkdir()
            for folder, encoder in self.encoders.items():
                own = {name: each for name, each in tensors.items() if name.startswith(f"{folder}.")}
                tensors = {name: each for name, each in tensors.items() if name not in own}
                named = {name.removeprefix(f"{folder}."): each for name, each in own.items()}
                write_encoder(temporary / folder, encoder, named, metadata)
            write_folder(temporary / self.part.folder, _config(self.denoiser), tensors, metadata)
        if target != path:
            self.remove(path)
            target.rename(path)

    def _weights(self, path: Path) -> Path:
        return path / self.part.folder / WEIGHTS

    def _read(self, path: Path) -> Mapping[str, LazyTensor]:
        tensors = dict(file_tensors(self._weights(path)))
        for folder in self.encoders:
            own = file_tensors(path / folder / ENCODER_WEIGHTS)
            tensors |= {f"{folder}.{name}": lazy for name, lazy in own.items()}
        return tensors


def _config(denoiser: Any) -> dict[str, Any]:
    """The config as diffusers writes it, without what it notes for itself."""
    own = {key: value for key, value in dict(denoiser.config).items() if not key.startswith("_")}
    return {"_class_name": type(denoiser).__name__, **own}


def full_files(
    denoiser: nn.Module,
    base: BaseModelFiles,
    facts: FamilyFacts,
    *,
    layout: str,
    precision: str,
    state: Callable[[], Mapping[str, Tensor]] | None = None,
    encoders: Mapping[str, nn.Module] | None = None,
    part: Part | None = None,
) -> SingleFiles | FolderFiles:
    """The files of the settings. Refused where the base model can't be written as a single file.

    state: gives the denoiser's state dict, live, where parts of it are elsewhere than in the denoiser. encoders: text
    encoders (part -> model) that are trained too, whose tensors `state` gives by ``part.name``. part: of the base model
    that is trained, where it is another than the family's denoiser: an expert for low noise.
    """
    state, encoders, part = state or denoiser.state_dict, encoders or {}, part or facts.denoiser
    if layout == "diffusers":
        # the folders of text encoders are called as the parts
        return FolderFiles(denoiser=denoiser, precision=precision, state=state, part=part, encoders=encoders)
    shapes = {name: tuple(value.shape) for name, value in denoiser.state_dict().items()}
    model = WholeModel.like(base, facts, shapes, [*encoders], part)
    return SingleFiles(denoiser=denoiser, precision=precision, state=state, model=model)
