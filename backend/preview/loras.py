"""Reads the LoRA files of a preview, each with its strength, and says what room they need in a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.lora.comfyui_keys import LayerNames
from backend.lora.file_contents import TITLES
from backend.lora.load import LoraFile, read_lora

_KEPT = 4
"""Files of which the tensors stay in RAM."""

_STEP = 4
"""Ranks come in multiples of this: products of rank 1 and 2 are made by other kernels, with other rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraChoice:
    """A LoRA file and how strongly it acts; 1 is as trained, 0 is not at all."""

    path: Path
    strength: float = 1.0

    @classmethod
    def read(cls, text: str) -> LoraChoice:
        """``FILE`` or ``FILE:STRENGTH``. A colon of a drive's letter is no strength."""
        file, colon, number = text.rpartition(":")
        try:
            return cls(path=resolve(file), strength=float(number)) if colon and file else cls(path=resolve(text))
        except ValueError:
            return cls(path=resolve(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What several LoRAs need in a model, each set of them at its time. layers: module paths. rank: of all layers."""

    layers: frozenset[str] = frozenset()
    rank: int = 0

    def holds(self, other: Room) -> bool:
        """Whether `other` fits into it."""
        return other.layers <= self.layers and other.rank <= self.rank

    def joined(self, other: Room) -> Room:
        """Room for either."""
        return Room(layers=self.layers | other.layers, rank=max(self.rank, other.rank))


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What one file needs: its plain LoRA layers with their ranks, and what is said of it."""

    ranks: dict[str, int]
    merged: str | None = None
    """What the file is, where it has to be merged."""
    left_out: tuple[str, ...] = ()


@dataclass(kw_only=True, slots=True)
class LoraShelf:
    """LoRA files by their path; one that was written again is read again."""

    names: LayerNames
    """Of the layers of denoiser and text encoders."""
    is_text: Callable[[str], bool]
    """Whether a layer's path is one of a text encoder."""
    _files: OrderedDict[tuple[Path, int, int], LoraFile] = field(default_factory=OrderedDict)
    _needs: dict[tuple[Path, int, int], Needs] = field(default_factory=dict)

    def file(self, path: Path) -> LoraFile:
        """What the file holds, on the CPU in float32. Refused for what is no LoRA of this model."""
        key = _identity(path)
        if key not in self._files:
            try:
                read = read_lora(path, self.names)
            except Refused as error:
                raise Refused(error.text, error.remedy) from error
            self._files[key] = _narrowed(read)
        self._files.move_to_end(key)
        while len(self._files) > _KEPT:
            self._files.popitem(last=False)
        return self._files[key]

    def needs(self, path: Path) -> Needs:
        """What the file at `path` needs of a model."""
        key = _identity(path)
        if key not in self._needs:
            file = self.file(path)
            plain = file.pairs if file.kind == "lora" else {}
            ranks = {layer: a.shape[0] for layer, (a, _) in plain.items()}
            merged = None if file.kind == "lora" else TITLES[file.kind]
            self._needs[key] = Needs(ranks=ranks, merged=merged, left_out=tuple(file.left_out))
        return self._needs[key]

    def room(self, choices: Sequence[LoraChoice], text: bool) -> Room:
        """The room that these need together, in the text encoders or in the denoiser."""
        totals: dict[str, int] = {}
        for choice in choices:
            for layer, rank in self.needs(choice.path).ranks.items():
                if self.is_text(layer) == text:
                    totals[layer] = totals.get(layer, 0) + rank
        rank = max(totals.values(), default=0)
        return Room(layers=frozenset(totals), rank=-(-rank // _STEP) * _STEP)

    def room_of_all(self, sets: Iterable[Sequence[LoraChoice]], text: bool) -> Room:
        """The room that the neediest of several sets needs."""
        whole = Room()
        for choices in sets:
            whole = whole.joined(self.room(choices, text))
        return whole


def _identity(path: Path) -> tuple[Path, int, int]:
    """A path with the file's time and size. Refused where there is no file."""
    try:
        stat = path.stat()
    except OSError as error:
        text = f"{path} can't be read: {error.strerror or error}"
        raise Refused(text, "Give a LoRA as a .safetensors file that is there.") from error
    return path, stat.st_mtime_ns, stat.st_size


def _narrowed(file: LoraFile) -> LoraFile:
    """The file without ranks whose column of B is 0, and layers that have no others: B A stays the same.

    Files that keep query, key and value in one layer have many of both.
    """
    pairs, unchanged = {}, set()
    for layer, (a, b) in file.pairs.items():
        used = b.abs().amax(dim=0) > 0
        if not used.any() and file.kind == "lora":
            unchanged.add(layer)
            continue
        pairs[layer] = (a, b) if used.all() else (a[used].contiguous(), b[:, used].contiguous())
    scales = {layer: scale for layer, scale in file.scales.items() if layer not in unchanged}
    return replace(file, pairs=pairs, scales=scales)
