"""Names the files of a run's samples: pictures, and clips with the picture of their frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PICTURES = {".png", ".jpg", ".jpeg", ".webp"}
_CLIPS = {".mp4"}
_SHEET = ".sheet.png"


@dataclass(frozen=True)
class Sample:
    """One picture or clip drawn during training; of a file that no event names only path and time are known."""

    path: Path
    step: int | None
    prompt_index: int | None
    prompt: str | None
    t: float
    """The file's time in unix seconds."""
    sheet: Path | None = None
    """The picture that shows a clip's frames; None for a picture, and where it is lost."""

    @property
    def picture(self) -> Path | None:
        """What can be shown without a player: the picture itself, or a clip's frames."""
        return self.sheet if is_clip(self.path) else self.path


def is_sample(path: Path) -> bool:
    """Whether a file is a sample by its name, and not the picture of a clip's frames."""
    return path.suffix.lower() in _PICTURES | _CLIPS and not path.name.endswith(_SHEET)


def is_clip(path: Path) -> bool:
    """Whether a sample's file is a clip, by its ending."""
    return path.suffix.lower() in _CLIPS


def still_of(path: Path) -> Path:
    """What shows a sample without a player: the picture itself, or that of the clip's frames."""
    return sheet_of(path) if is_clip(path) else path


def sheet_of(clip: Path) -> Path:
    """Where the picture of a clip's frames lies."""
    return clip.with_suffix(_SHEET)
