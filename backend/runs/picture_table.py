"""Keeps the loss of each picture of a run at its start, middle and end: one small file in the run's folder."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from backend.base.files import write_atomic
from backend.runs.paths import RunPaths

log = logging.getLogger(__name__)

Moment = Literal["start", "middle", "end"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)
"""In the order of a run."""
TRAINED = ""
"""The set of the pictures that are trained on; validation sets have their own names."""
FILE = "picture_losses.jsonl"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class PictureId:
    """One picture or clip: its set, the SHA-256 of its bytes (hex), and its file."""

    set: str
    key: str
    path: str


@dataclass(frozen=True, slots=True)
class PictureTable:
    """What was measured so far.

    how: what else decides the numbers (noise levels, repeats, seed), so that only equal measurements are compared.
    steps: of each moment that was measured, the step. losses: of each picture its loss by moment; None where it was
    not finite.
    """

    how: Mapping[str, Any]
    steps: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[PictureId, Mapping[str, float | None]] = field(default_factory=dict)

    def with_moment(self, moment: Moment, step: int, losses: Mapping[PictureId, float]) -> PictureTable:
        """The table with one more measurement, which takes the place of an earlier one of this moment."""
        rows = {picture: dict(known) for picture, known in self.without((moment,)).losses.items()}
        for picture, loss in losses.items():
            rows.setdefault(picture, {})[moment] = loss if math.isfinite(loss) else None
        return replace(self, steps={**self.steps, moment: step}, losses=rows)

    def without(self, moments: tuple[str, ...]) -> PictureTable:
        """The table without these measurements."""
        rows = {
            picture: kept
            for picture, known in self.losses.items()
            if (kept := {name: loss for name, loss in known.items() if name not in moments})
        }
        steps = {name: step for name, step in self.steps.items() if name not in moments}
        return replace(self, steps=steps, losses=rows)


def read_table(run: RunPaths) -> PictureTable | None:
    """The table of a run; None where nothing was measured, or its file can't be read."""
    path = run.path / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        head, *rows = [json.loads(line) for line in lines]
        if head["version"] != _VERSION:
            return None
        steps = {name: int(step) for name, step in head["steps"].items() if name in MOMENTS}
        losses = {
            PictureId(str(row["set"]), str(row["key"]), str(row["path"])): {
                name: None if loss is None else float(loss) for name, loss in row["losses"].items() if name in steps
            }
            for row in rows
        }
        return PictureTable(head["how"], steps, losses)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("The losses of pictures in %s can't be read: %s", path, error)
        return None


def write_table(run: RunPaths, table: PictureTable) -> None:
    """Write the whole table again. WriteFailed as `write_atomic`."""
    head = {"version": _VERSION, "how": dict(table.how), "steps": dict(table.steps)}
    rows = [
        {"set": picture.set, "key": picture.key, "path": picture.path, "losses": dict(known)}
        for picture, known in table.losses.items()
    ]
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in (head, *rows))
    write_atomic(run.path / FILE, text)
