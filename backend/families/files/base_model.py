"""Finds the parts of a base model as a person has it: a folder in diffusers layout, single files, or a mixture.

Where each part lies, what its config is, and which tensors it has, all from headers: a 24 GB model takes milliseconds.
`backend.models.common.tensor_sources.open_part` reads the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from backend.base.paths import resolve
from backend.families.files import headers
from backend.families.files.layouts.rules import Layout, Piece, Rule
from backend.families.files.measures import measured
from backend.families.files.parts import Part

SHIPPED = Path(__file__).parents[1]
# [model] settings that give a single part, in the order of the page.
PLACES = (
    *("text_encoder", "text_encoder_2", "text_encoder_3", "image_encoder"),
    *("vae", "tokenizer", "tokenizer_2", "tokenizer_3", "transformer_2"),
)

# [model] settings that say what the config of a single file would.
_SWITCHES = ("zero_cond_t",)

# A file out of a diffusers folder, given by itself: its names are right as they are.
_AS_IT_IS = Layout("diffusers", "a part in diffusers layout", (), (Rule(r"(?P<name>.+)", ("{name}",)),))


class ModelSettings(Protocol):
    """The settings that say where a base model lies: the section [model]."""

    base_model: str | None
    variant: str | None
    text_encoder: str | None
    text_encoder_2: str | None
    text_encoder_3: str | None
    image_encoder: str | None
    vae: str | None
    tokenizer: str | None
    tokenizer_2: str | None
    tokenizer_3: str | None
    transformer_2: str | None
    zero_cond_t: str


@dataclass(frozen=True)
class Place:
    """Where a part lies: a folder (no layout), or a single file in `layout` with its names behind `prefix`.

    setting: the setting that said so, for messages.
    """

    path: Path
    setting: str
    layout: Layout | None = None
    prefix: str = ""


@dataclass(frozen=True)
class BaseModelFiles:
    """The base model of a run."""

    path: Path | None
    """A folder in diffusers layout, or a single file; None: not chosen."""
    given: Mapping[str, Path] = field(default_factory=dict)
    """Parts in other folders or files, by part name."""
    variant: str | None = None
    """Of the weight files of folders, as diffusers has it ("fp16")."""
    switches: Mapping[str, Any] = field(default_factory=dict)
    """Config values of a single file that the file can't show."""

    @classmethod
    def of(cls, model: ModelSettings) -> BaseModelFiles:
        """The base model that the settings name."""
        places = {name: resolve(path) for name in PLACES if (path := getattr(model, name)) is not None}
        switches = {name: switch == "on" for name in _SWITCHES if (switch := getattr(model, name)) != "auto"}
        return cls(None if model.base_model is None else resolve(model.base_model), places, model.variant, switches)

    @classmethod
    def at(cls, where: BaseModelFiles | Path | str, variant: str | None = None) -> BaseModelFiles:
        """`where` itself, or the base model whose parts all lie in that folder or file."""
        return where if isinstance(where, BaseModelFiles) else cls(Path(where), {}, variant)

    def place(self, part: Part) -> Place | None:
        """Where `part` lies, whether it is right or not; None where nothing gives it.

        A folder may be the part's own or a whole model that holds it. A base model that is a file gives what its names
        show; a file given for one part is always that part's place, with no layout when its names don't fit.
        """
        path = self.given.get(part.setting) if part.setting else None
        if path is not None:
            return _place_in(path, part, f"model.{part.setting}")
        if self.path is None:
            return None
        if self.path.is_file():
            if part.beside:
                return None
            own = _place_in(self.path, part, headers.SETTING)
            return own if own.layout is not None else None
        folder = self.path / part.folder
        return None if part.optional and not folder.is_dir() else Place(folder, headers.SETTING)

    def config(self, part: Part) -> dict[str, Any]:
        """The part's config: the folder's own, or the shipped one corrected by what the file's shapes show.

        ValueError, in words, when there is none or it can't be read.
        """
        place = self.place(part)
        if place is None or place.layout is not None:
            return self._shipped_config(part, place)
        path = place.path / part.files[0][0]
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        return headers.read_json(path)

    def pieces(self, part: Part) -> dict[str, Piece]:
        """What makes up each tensor of a part in a single file; ValueError, in words, where names don't fit."""
        place = self.place(part)
        if place is None or place.layout is None:
            raise ValueError(f"no single file holds {part.title}")
        return _pieces(place)

    def tensors(self, part: Part) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensors of a part by diffusers' name, with format and shape; what can't be read is left out."""
        place = self.place(part)
        if place is None or not part.weights:
            return {}
        try:
            if place.layout is not None:
                return {name: (piece.dtype, piece.shape) for name, piece in _pieces(place).items()}
            return headers.folder_tensors(place.path, part, self.variant)
        except (ValueError, OSError):
            return {}

    def weight_files(self, part: Part) -> list[Path]:
        """The files that hold the part's weights; ValueError when an index is broken."""
        place = self.place(part)
        if place is None or not part.weights:
            return []
        if place.path.is_file():
            return [place.path]
        return headers.weight_files(place.path, part.weights, self.variant)

    def bytes(self, part: Part) -> int:
        """Bytes on disk of the part's weights; 0 for a part without weights or with missing files."""
        place = self.place(part)
        if place is None:
            return 0
        if place.layout is not None:
            try:
                return _bytes_in(place)
            except (ValueError, OSError):
                return 0
        return headers.folder_bytes(place.path, part, self.variant)

    def _shipped_config(self, part: Part, place: Place | None) -> dict[str, Any]:
        beside = None if place is None else place.path.parent / part.files[0][0]
        if beside is not None and place.layout is _AS_IT_IS and beside.is_file():
            return headers.read_json(beside)
        if not part.shipped:
            raise ValueError(f"{part.title} has no config here: it comes from a folder in diffusers layout")
        config = dict(headers.read_json(SHIPPED / part.shipped))
        if place is None:
            return config
        config |= measured(part.measure, {n: p.shape for n, p in _pieces(place).items()}, config)
        if place.layout is not None:
            config |= place.layout.marked(header_of(place.path).names, place.prefix)
        return config | {key: value for key, value in self.switches.items() if key in config}


def _place_in(path: Path, part: Part, setting: str) -> Place:
    """The place of `part` when `path` is given for it."""
    if not path.is_file():
        own = path / part.folder
        return Place(own if own.is_dir() and not (path / part.files[0][0]).is_file() else path, setting)
    if not part.weights:
        return Place(path, setting)
    try:
        names = header_of(path).names
    except (ValueError, OSError):
        return Place(path, setting)
    for layout in part.layouts:
        prefix = layout.prefix_in(names)
        if prefix is not None:
            return Place(path, setting, layout, prefix)
    if part.layouts and part.markers and all(marker in names for marker in part.markers):
        return Place(path, setting, _AS_IT_IS)
    return Place(path, setting)


def header_of(path: Path) -> headers.Header:
    """The file's header, read once while the file stays the same; ValueError or OSError when it can't be read."""
    stat = path.stat()
    return _header(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=32)
def _header(path: Path, size: int, changed: int) -> headers.Header:
    return headers.read_header(path)


def _pieces(place: Place) -> dict[str, Piece]:
    stat = place.path.stat()
    return _pieces_of(place, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=32)
def _pieces_of(place: Place, size: int, changed: int) -> dict[str, Piece]:
    assert place.layout is not None
    return place.layout.pieces(header_of(place.path).tensors, place.prefix)


def _bytes_in(place: Place) -> int:
    spans = header_of(place.path).spans
    sources = {piece.source for piece in _pieces(place).values()}
    return sum(spans[name][1] - spans[name][0] for name in sources)
