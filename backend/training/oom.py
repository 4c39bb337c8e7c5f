"""Explains an error about memory that ran out: what was being done, how much was missing, and what to change."""

from __future__ import annotations

import gc
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from backend.base.errors import Failed
from backend.compile.memory_shortage import is_out_of_ram, is_out_of_vram
from backend.plan.memory.changes import Change
from backend.plan.memory.report import gigabytes
from backend.runs.diagnose_rules import LESS_RAM
from backend.runs.events import EventWriter, read_events
from backend.runs.events.kinds import CudaGraphsEvent, PhaseEvent
from backend.training.expected_memory import ExpectedMemory

log = logging.getLogger(__name__)

_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"([\d.]+) ([KMGT]iB|bytes|B)"
_DOING = {
    "cache_latents": "encoding the pictures",
    "cache_text": "encoding the captions",
    "load": "loading the base model",
    "compile": "compiling, in the first step",
    "train": "training",
    "sample": "drawing samples",
    "validate": "measuring the validation loss",
    "picture_losses": "measuring the loss of each image",
    "save": "saving the files",
    "pause": "waiting for a preview, or taking the model back to the GPU after it",
}
_STAGES = {
    "cache_latents": ("encode_pictures",),
    "cache_text": ("encode_text",),
    "load": ("train",),
    "compile": ("train",),
    "train": ("train",),
    "sample": ("sample", "decode_samples"),
    "validate": ("validate",),
    "picture_losses": ("validate",),
}
"""Stages of the estimate that a phase belongs to."""

_OTHERWISE = {
    "cache_text": "",
    "cache_latents": ", or lower resolution",
    "sample": ", or draw smaller samples",
    "pause": ", or draw the preview once the run has ended",
}
"""What is left where no setting of the estimate helps."""

_LEAST = 200_000_000
"""Bytes that a change should save at least, however little the last allocation lacked."""


class OutOfMemory(Failed):
    """The GPU was full. `kind` and `cause` are those of `backend.runs.diagnose`."""

    kind = "cuda_oom"
    cause = "Model, pictures and settings together need more VRAM than is free on this GPU."


class OutOfRam(Failed):
    """The machine had no RAM left, in the same words."""

    kind = "ram"
    cause = "Models, swapped blocks and caches together need more RAM than is free."


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """Numbers of torch's own message, in bytes; None where it does not say."""

    wanted: int | None = None
    """The allocation that failed."""
    free: int | None = None
    """On the GPU."""
    total: int | None = None
    """Of the GPU."""
    ours: int | None = None
    """Held by this process."""
    others: int | None = None
    """Held by other processes."""
    allowed: int | None = None
    """A limit set on this process."""

    @classmethod
    def read(cls, text: str) -> Shortage:
        """The numbers in a message of torch 2.x; all None in that of another library."""
        others = [_bytes(*size) for size in re.findall(rf"Process \d+ has {_SIZE} memory in use", text)]
        ours = _one(rf"this process has {_SIZE} memory in use", text)
        allocated = _one(rf"allocated memory {_SIZE} is allocated by PyTorch", text)
        unused = _one(rf"and {_SIZE} is reserved by PyTorch but unallocated", text)
        if ours is None and allocated is not None:
            ours = allocated + (unused or 0)
        return cls(
            wanted=_one(rf"[Tt]ried to allocate {_SIZE}", text),
            free=_one(rf"of which {_SIZE} is free", text),
            total=_one(rf"total capac\w* of {_SIZE}", text),
            ours=ours,
            others=sum(others) if others else None,
            allowed=_one(rf"{_SIZE} allowed", text),
        )

    @property
    def missing(self) -> int | None:
        """Bytes that would have been enough for this allocation."""
        if self.wanted is None:
            return None
        room = self.free
        if self.allowed is not None and self.ours is not None:
            room = max(0, self.allowed - self.ours)
        return self.wanted if room is None else max(0, self.wanted - room)

    def words(self) -> str:
        """What was missing, as sentences; empty when nothing is known."""
        sentences = []
        if self.wanted is not None:
            more = f"{_size(self.wanted)} more were needed"
            if self.allowed is not None:
                sentences.append(f"{more}, and vram_limit_gb allows {_size(self.allowed)}.")
            elif self.free is not None and self.total is not None:
                sentences.append(f"{more}, and {_size(self.free)} of {_size(self.total)} were free.")
            else:
                sentences.append(f"{more}.")
        if self.ours is not None:
            others = f", other programs {_size(self.others)}" if self.others else ""
            sentences.append(f"This run held {_size(self.ours)}{others}.")
        return " ".join(sentences)


@contextmanager
def explained(events: EventWriter, expected: ExpectedMemory | None) -> Iterator[None]:
    """Turn an exception about memory that ran out into one that says what was being done and what to change."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise explanation(error, events, expected) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the GPU or the machine has no memory left."""
    return is_out_of_vram(error) or is_out_of_ram(error)


def explanation(
    error: BaseException,
    events: EventWriter,
    expected: ExpectedMemory | None,
    shape: str = "",
    keep: Callable[[], str] = lambda: "",
) -> OutOfMemory | OutOfRam:
    """The error as a person should read it. shape: of what was worked on. keep: saves what can be, and says what."""
    log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    phase, shortage = last_phase(events), Shortage.read(str(error))
    doing = _DOING.get(phase, phase or "starting the run")
    need = max(shortage.missing or 0, _LEAST)
    if is_out_of_vram(error):
        text = f"The GPU ran out of memory while {doing}."
        if shape:
            text = f"The GPU ran out of memory while {doing} ({shape})."
        text = _joined(text, shortage.words(), keep())
        offer = f"{_without_recordings(events)} {remedy(expected, phase, need)}"
        return OutOfMemory(text, offer.strip())
    text = f"The machine ran out of memory (RAM) while {doing}."
    if shape:
        text = f"The machine ran out of memory (RAM) while {doing} ({shape})."
    text = _joined(text, shortage.words(), keep())
    search = expected.search if expected is not None else None
    offered = [] if search is None else (search.cheapest_in_ram if search.on_gpu else search.cheapest)(need=need)
    return OutOfRam(text, f"{LESS_RAM} {_in_order(offered)}".rstrip())


def _joined(*sentences: str) -> str:
    return " ".join(" ".join(sentences).split())


def last_phase(events: EventWriter) -> str:
    """The phase that the run's events name last; "" before the first."""
    written, _ = read_events(events.path)
    phases = [event.phase for event in written if isinstance(event, PhaseEvent)]
    return phases[-1] if phases else ""


def _without_recordings(events: EventWriter) -> str:
    """What to set where recorded passes keep memory of the GPU; "" where there are none."""
    written, _ = read_events(events.path)
    recordings = [event for event in written if isinstance(event, CudaGraphsEvent)]
    if not recordings or recordings[-1].state != "recorded":
        return ""
    return f"Set compile.cuda_graphs to off: recorded passes keep {gigabytes(recordings[-1].kept or 0)}."


def remedy(expected: ExpectedMemory | None, phase: str, need: int) -> str:
    """Three settings that make the stage of `phase` smaller by `need` bytes, in order of least cost."""
    stages = _STAGES.get(phase, ())
    offered = expected.search.cheapest(stages=stages, need=need) if expected is not None else []
    if offered:
        return _in_order(offered)
    return f"Close other programs that use the GPU{_OTHERWISE.get(phase, ', or lower batch_size or resolution')}."


def _in_order(offered: Sequence[tuple[Change, int]]) -> str:
    """Changes with what each is predicted to save, as a sentence; "" for none."""
    numbered = [
        f"({number}) {change.words} ({', '.join(f'{path} = {_value(value)}' for path, value in change.values.items())})"
        f": saves about {gigabytes(saved)} and costs {change.cost}"
        for number, (change, saved) in enumerate(offered, 1)
    ]
    return f"In order of least cost: {'; '.join(numbered)}." if numbered else ""


def free_after(error: BaseException) -> None:
    """Let go of what the failed work held: its frames still name every tensor of it."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _one(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return _bytes(match[1], match[2]) if match else None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _size(count: int) -> str:
    return gigabytes(count) if count >= 2**30 / 10 else f"{count / 2**20:.0f} MB"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
