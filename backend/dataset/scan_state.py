"""Holds what a scan has gathered so far: the folders, each picture with its measure and caption, and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backend.dataset.caption_variants import CaptionRule
from backend.dataset.file_lists import FileList
from backend.dataset.items import CaptionRow, ClipReport, Finding, FolderReport, Item, Mask
from backend.dataset.scan_cache import Measured
from backend.dataset.walk import Walk
from backend.dataset.windows import ClipRule


@dataclass(frozen=True)
class FolderSpec:
    """A folder to scan."""

    path: Path
    num_repeats: int = 1
    """Repeats of every picture in it."""
    setting: str = "dataset.folders"
    """The setting that chose it, which its findings name."""
    control: Path | None = None
    """Its folder of control pictures."""
    most_controls: int = 1
    """Control pictures that one picture may have."""
    clips: ClipRule | None = None
    """How clips are cut, of a family that is trained on them; None: they are other files."""
    is_reg: bool = False
    """Its pictures are regularization images."""
    class_tokens: str | None = None
    """Caption of its pictures that have no caption file."""
    class_images: int | None = None
    """Regularization images that the base model is to draw into it."""
    trigger_word: str | None = None
    """Its own; None takes that of all folders."""
    prefix: str | None = None
    suffix: str | None = None
    """What is written around each of its captions."""
    metadata: Path | None = None
    """A table with captions of its pictures."""
    mask: Path | None = None
    """Its folder of masks."""
    alpha_mask: bool = False
    """The transparency of a picture without a mask file is its mask."""

    @property
    def mask_below(self) -> Path | None:
        """Its folder of masks, where that lies inside its own: no picture lies in there."""
        return self.mask if self.mask is not None and self.path in self.mask.parents else None


@dataclass
class ScannedPicture:
    """A picture on the way to an Item."""

    path: Path
    folder: int
    """Index of its chosen folder."""
    repeats: int
    measured: Measured
    caption_path: Path | None
    caption: str = ""
    """The first of its captions."""
    encoding: str | None = None
    """Of the caption file."""
    caption_fault: str | None = None
    """Why its caption can't be read."""
    controls: tuple[Item, ...] = ()
    listed: tuple[str, ...] | None = None
    """Its captions in the list or table that names it; None where none does."""
    row: CaptionRow | None = None
    """Where that list or table has them."""
    caption_files: tuple[Path, ...] = ()
    """All of its caption files; `caption_path` is the first."""
    captions: tuple[str, ...] = ("",)
    """All of its captions, as they are written."""
    mask: Mask | None = None
    mask_fault: str | None = None
    """Why its mask can't be used."""

    @property
    def is_alone(self) -> bool:
        """Whether neither a file nor a list says what it shows; its folder may."""
        return self.caption_path is None and self.listed is None


@dataclass
class ScanState:
    """Everything that the findings are made from."""

    folders: Sequence[FolderSpec]
    caption_extension: str
    trigger_word: str | None
    walks: dict[int, Walk] = field(default_factory=dict)
    """By the index of the chosen folder."""
    lists: dict[int, FileList] = field(default_factory=dict)
    """The same of those that are lists of files."""
    found: list[ScannedPicture] = field(default_factory=list)
    reports: list[FolderReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    used_captions: set[str] = field(default_factory=set)
    clips: list[ClipReport] = field(default_factory=list)
    more_extensions: Sequence[str] = ()
    """Endings of further caption files."""
    caption_lines: bool = False
    """Each line of a caption file is a caption."""
    rule: CaptionRule = CaptionRule()
    """What changes in a caption from time to time."""
    used_tables: dict[str, int] = field(default_factory=dict)
    """Caption table -> pictures that have their caption from it."""
    excluded: frozenset[Path] = frozenset()
    """Files that are left out, whatever they hold."""
    broken_tables: dict[str, str] = field(default_factory=dict)
    """Caption table -> why it can't be read."""
