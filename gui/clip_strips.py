"""Describes clips for the Dataset tab: each as a strip of frames on its time line, with the windows that are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from backend.dataset.items import ClipReport, Item, Window

# A strip is about 13 times as long as it is high, whatever the shape of its frames.
_LENGTH = 13
_FEWEST, _MOST = 4, 24
# A clip in many small steps has hundreds of windows, which nobody tells apart on a line.
_MOST_WINDOWS = 120


def clip_facts(report: ClipReport) -> dict[str, Any]:
    """What the page shows of a clip: times in seconds after its first frame; `dropped` are the parts in no window."""
    windows = sorted(report.windows, key=lambda window: (window.start, window.frames))
    return {
        "seconds": report.seconds,
        "rate": report.rate,
        "taken_rate": windows[0].rate if windows else report.rate,
        "used": report.used,
        "lengths": sorted({window.frames for window in windows}),
        "count": len(windows),
        "windows": [
            {"start": window.start, "end": min(_end(window), report.seconds), "frames": window.frames}
            for window in windows[:_MOST_WINDOWS]
        ],
        "dropped": [{"start": start, "end": end} for start, end in _gaps(windows, report.seconds)],
    }


def frame_times(seconds: float, width: int, height: int) -> list[float]:
    """When the frames of a strip are shown, in seconds: in the middle of equal parts of the clip."""
    count = min(_MOST, max(_FEWEST, round(_LENGTH * height / width)))
    return [seconds * (number + 0.5) / count for number in range(count)]


def one_of_each_clip(items: Iterable[Item]) -> list[Item]:
    """The pictures, and of each clip its first window: what has a caption of its own."""
    seen: set[Path] = set()
    kept = []
    for item in items:
        if item.window is None:
            kept.append(item)
        elif item.path not in seen:
            seen.add(item.path)
            kept.append(item)
    return kept


def _end(window: Window) -> float:
    return window.start + window.frames / window.rate


def _gaps(windows: Sequence[Window], seconds: float) -> list[tuple[float, float]]:
    """Parts of the clip that lie in no window; windows ascend by their start."""
    gaps, reached = [], 0.0
    for window in windows:
        if window.start > reached:
            gaps.append((reached, window.start))
        reached = max(reached, _end(window))
    # less than a frame is a matter of rounding
    shortest = 0.5 / windows[0].rate if windows else 0.0
    return [(a, min(b, seconds)) for a, b in [*gaps, (reached, seconds)] if min(b, seconds) - a > shortest]
