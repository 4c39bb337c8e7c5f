"""Reads what a run measured of each image, for the Dataset tab and the Run tab: losses, change and verdict in words."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.runs.folder import Run
from backend.runs.picture_table import FILE, MOMENTS, read_table
from backend.runs.picture_verdicts import VERDICTS, PictureResult, results_of

_WORDS = {
    "rose": "loss rose",
    "not_learnt": "not learnt",
    "memorised": "maybe memorised",
    "learnt": "learnt",
}
_LAST = float("inf")
UNKNOWN = (_LAST, _LAST)
"""Sorts behind all images that have a loss."""
SORTS: dict[str, Callable[[PictureResult], tuple[float, float]]] = {
    "verdict": lambda result: (_place(result), _fall(result)),
    "change": lambda result: (_fall(result), 0.0),
    "loss": lambda result: (_LAST if result.newest is None else -result.newest, 0.0),
}
"""What needs a look comes first: the worst verdict, the smallest fall, the largest loss."""
_SHORT = 10
"""Rows of the Run tab's table."""


def loss_facts(result: PictureResult) -> dict[str, Any]:
    """What the page shows of an image: losses by moment, the change as a share of the first, verdict and its word."""
    return {
        "losses": [{"moment": name, "loss": result.losses[name]} for name in MOMENTS if name in result.losses],
        "change": None if result.fall is None else -result.fall,
        "verdict": result.verdict,
        "word": _WORDS[result.verdict] if result.verdict else "",
    }


def short_table(run: Run) -> list[dict[str, Any]]:
    """The trained images of a run that need a look first, for its tab; empty before the second measurement."""
    judged = [result for result in read_results(run) if result.verdict is not None]
    return [
        {"name": Path(result.picture.path).name, **loss_facts(result)}
        for result in sorted(judged, key=SORTS["verdict"])[:_SHORT]
    ]


def _place(result: PictureResult) -> float:
    return _LAST if result.verdict is None else VERDICTS.index(result.verdict)


def _fall(result: PictureResult) -> float:
    return _LAST if result.fall is None else result.fall


def read_results(run: Run) -> tuple[PictureResult, ...]:
    """Every image that a run measured; empty where it measured none."""
    try:
        mark = (run.path / FILE).stat()
    except OSError:
        return ()
    return _results_at(run, mark.st_mtime_ns, mark.st_size)


@lru_cache(maxsize=64)
def _results_at(run: Run, changed: int, size: int) -> tuple[PictureResult, ...]:
    """The results of a run's table, read again when its file changed."""
    table = read_table(run)
    return () if table is None else tuple(results_of(table))
