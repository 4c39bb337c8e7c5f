"""Gathers what a report says of a run, from the run's own folder."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL import Image, UnidentifiedImageError

from backend.base.errors import Refused
from backend.config.schema import Config
from backend.plan.finish.earlier_runs import compared
from backend.runs.comparison import settings_of
from backend.runs.errors import RunError
from backend.runs.events import read_events
from backend.runs.events.event import Event
from backend.runs.folder import Checkpoint, Run
from backend.runs.notes import Notes, read_notes
from backend.runs.samples import Sample
from backend.runs.status import RunStatus
from backend.runs.summary import Curve, Summary, curve, summarise

log = logging.getLogger(__name__)

AnyEvent = TypeVar("AnyEvent", bound=Event)
LARGEST_HASHED = 4 * 10**9
"""Bytes of a file up to which its hash is in the report: more takes longer than a person waits."""
_MOST_PICTURES, _PICTURE_PX, _QUALITY = 24, 512, 82
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFacts:
    """A run as its report shows it."""

    run: Run
    cfg: Config
    status: RunStatus
    summary: Summary
    curve: Curve
    events: Sequence[Event]
    notes: Notes
    pictures: list[tuple[Sample, str]]
    """Samples with their pictures as data addresses, by prompt and step."""
    left_out: int
    """Samples that the report has no room for."""
    files: list[tuple[Checkpoint, str]]
    """Saved files with their SHA-256; "" where a file is too large or can't be read."""
    finish: str
    """The finish time that was told before the start, compared with the run; "" without one."""

    def all_of(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        """The run's events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[AnyEvent]) -> AnyEvent | None:
        """The newest event of a kind."""
        events = self.all_of(kind)
        return events[-1] if events else None


def gather(run: Run, with_notes: bool = True, all_hashes: bool = False) -> ReportFacts:
    """Read everything. Refused for a folder without settings."""
    cfg = settings_of(run)
    if cfg is None:
        raise Refused(f"{run.name} holds no settings that can be read", "Give the name or the folder of a run.")
    events, _ = read_events(run.events_path)
    status = run.status()
    samples = [sample for sample in run.samples() if sample.picture is not None]
    shown = _shown(samples)
    pictures = [(sample, data) for sample in shown if (data := picture_data(sample))]
    return ReportFacts(
        run=run,
        cfg=cfg,
        status=status,
        summary=summarise(run, events),
        curve=curve(run),
        events=events,
        notes=_notes(run) if with_notes else Notes(),
        pictures=pictures,
        left_out=len(samples) - len(shown),
        files=[
            (file, sha256(file.path) if all_hashes or file.size <= LARGEST_HASHED else "") for file in run.checkpoints()
        ],
        finish=compared(run, status),
    )


def _notes(run: Run) -> Notes:
    try:
        return read_notes(run)
    except RunError as error:
        log.warning("%s", error)
        return Notes()


def _shown(samples: Sequence[Sample]) -> list[Sample]:
    """The samples for which there is room: of each prompt the first and the newest, then the newest of all."""
    prompts: dict[int | None, list[Sample]] = {}
    for sample in samples:
        prompts.setdefault(sample.prompt_index, []).append(sample)
    wanted = [sample for each in prompts.values() for sample in (each[-1], each[0])]
    wanted += reversed(samples)
    kept = list(dict.fromkeys(wanted))[:_MOST_PICTURES]
    return sorted(kept, key=lambda each: (each.prompt_index or 0, each.step or 0, each.path.name))


def picture_data(sample: Sample) -> str:
    """A sample as the address of a small JPEG, without the texts that sample files hold; "" where it can't be read."""
    assert sample.picture is not None
    try:
        with Image.open(sample.picture) as opened:
            picture = opened.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        log.warning("The sample %s is left out: %s", sample.picture.name, error)
        return ""
    picture.thumbnail((_PICTURE_PX, _PICTURE_PX))
    plain = Image.new("RGB", picture.size)
    plain.paste(picture)
    buffer = io.BytesIO()
    plain.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def sha256(path: Path) -> str:
    """The hash of a file in hexadecimal; "" where it can't be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        log.warning("%s can't be read: %s", path.name, error)
        return ""
    return digest.hexdigest()
