"""Sums up what a run makes of its videos: seconds that are used and left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from backend.dataset.items import ClipReport, count_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Footage:
    """The clips of training: how many, their windows, and their seconds, used ones and all."""

    clips: int
    windows: int
    used: float
    seconds: float

    @classmethod
    def of(cls, clips: Iterable[ClipReport]) -> Self | None:
        """That of the clips of a scan; None without clips."""
        clips = tuple(clips)
        if not clips:
            return None
        return cls(
            clips=len(clips),
            windows=sum(len(clip.windows) for clip in clips),
            used=sum(clip.used for clip in clips),
            seconds=sum(clip.seconds for clip in clips),
        )

    @property
    def dropped(self) -> float:
        """Seconds that no window holds."""
        return max(0.0, self.seconds - self.used)

    def words(self) -> str:
        """In one line."""
        return (
            f"{count_of(self.windows, 'window')} of {count_of(self.clips, 'clip')}: {self.used:,.1f} s of video used, "
            f"{self.dropped:,.1f} s left out"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data; seconds rounded."""
        return {
            "clips": self.clips,
            "windows": self.windows,
            "used": round(self.used, 2),
            "dropped": round(self.dropped, 2),
            "words": self.words(),
        }
