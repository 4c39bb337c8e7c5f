"""Out of video memory: what was being done, how much was missing, and what to change, in order of least cost."""

from __future__ import annotations

import gc
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from backend.memory.expected import Expected
from backend.plan.memory_report import gigabytes
from backend.refused import Failed
from backend.runs.events import EventWriter, read_events

if TYPE_CHECKING:
    from backend.job import Job

log = logging.getLogger(__name__)

_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"([\d.]+) ([KMGT]iB|bytes|B)"
# What libraries say when the card is full, beside torch's own exception: cuBLAS, cuDNN, NVRTC, bitsandbytes, HIP.
_FULL = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
    r"cudaErrorMemoryAllocation|HIP out of memory|CUDA driver error: out of memory|Triton Error \[CUDA\]: out of memory"
)
_DOING = {
    "cache_latents": "encoding the pictures",
    "cache_text": "encoding the captions",
    "load": "loading the base model",
    "compile": "compiling, in the first step",
    "train": "training",
    "sample": "drawing samples",
    "validate": "measuring the validation loss",
    "save": "saving",
}


class OutOfMemory(Failed):
    """The card was full. `kind` and `cause` are those of `backend.runs.diagnose`."""

    kind = "cuda_oom"
    cause = "Model, pictures and settings together need more VRAM than is free on this GPU."


@dataclass(frozen=True)
class Shortage:
    """Numbers of torch's own message, in bytes; None where it does not say.

    wanted: the allocation that failed. free, total: of the card. ours: held by this process. others: by other ones.
    allowed: a limit that this process was given.
    """

    wanted: int | None = None
    free: int | None = None
    total: int | None = None
    ours: int | None = None
    others: int | None = None
    allowed: int | None = None

    @classmethod
    def read(cls, text: str) -> Shortage:
        """The numbers in a message of torch 2.x; all None in that of another library."""
        others = [_bytes(*found) for found in re.findall(rf"Process \d+ has {_SIZE} memory in use", text)]
        ours = _one(rf"this process has {_SIZE} memory in use", text)
        allocated = _one(rf"allocated memory {_SIZE} is allocated by PyTorch", text)
        unused = _one(rf"and {_SIZE} is reserved by PyTorch but unallocated", text)
        if ours is None and allocated is not None:
            ours = allocated + (unused or 0)
        return cls(
            _one(rf"Tried to allocate {_SIZE}", text),
            _one(rf"of which {_SIZE} is free", text),
            _one(rf"total capac\w* of {_SIZE}", text),
            ours,
            sum(others) if others else None,
            _one(rf"{_SIZE} allowed", text),
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
        said = []
        if self.wanted is not None:
            more = f"{_size(self.wanted)} more were needed"
            if self.allowed is not None:
                said.append(f"{more}, and vram_limit_gb allows {_size(self.allowed)}.")
            elif self.free is not None and self.total is not None:
                said.append(f"{more}, and {_size(self.free)} of {_size(self.total)} were free.")
            else:
                said.append(f"{more}.")
        if self.ours is not None:
            others = f", other programs {_size(self.others)}" if self.others else ""
            said.append(f"This run held {_size(self.ours)}{others}.")
        return " ".join(said)


def is_full(error: BaseException) -> bool:
    """Whether an exception says that the card is full."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _FULL.search(str(error)) is not None


@contextmanager
def explained(events: EventWriter, expected: Expected | None) -> Iterator[None]:
    """Turn an exception about a full card into OutOfMemory that says what was being done and what to change."""
    try:
        yield
    except RuntimeError as error:
        if not is_full(error):
            raise
        raise told(error, events, expected) from error


def told(
    error: BaseException,
    events: EventWriter,
    expected: Expected | None,
    shape: str = "",
    keep: Callable[[], str] = lambda: "",
) -> OutOfMemory:
    """What a person should know of it. shape: of what was worked on. keep: saves what can be, and says what."""
    log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    doing = doing_words(events)
    of = f" ({shape})" if shape else ""
    text = f"The card ran out of memory while {doing}{of}. {Shortage.read(str(error)).words()} {keep()}"
    return OutOfMemory(" ".join(text.split()), remedy(expected))


def doing_words(events: EventWriter) -> str:
    """The phase that the run's events name last, in words."""
    written, _ = read_events(events.path)
    phases = [event for event in written if event["kind"] == "phase"]
    if not phases:
        return "starting"
    return _DOING.get(str(phases[-1].get("phase")), str(phases[-1].get("phase")))


def remedy(expected: Expected | None) -> str:
    """Three settings in order of least cost, with what each is predicted to save."""
    changes = expected.told_changes() if expected is not None else []
    if not changes:
        return "Close other programs that use the card, or lower batch_size or resolution."
    said = [
        f"({number}) {change.words} ({', '.join(f'{path} = {_value(value)}' for path, value in change.values.items())})"
        f": saves about {gigabytes(saved)} and costs {change.cost}"
        for number, (change, saved) in enumerate(changes, 1)
    ]
    return f"In order of least cost: {'; '.join(said)}."


def keep_whole(job: Job, error: BaseException) -> str:
    """Save what is whole, once memory is free again; a sentence about what was kept.

    The step in which the card ran out is given up: LoRA, optimizer and position are those after the step before it.
    """
    in_optimizer = any("optim" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
    free_after(error)
    position, whole = job.position, job.whole
    if in_optimizer or whole is None:
        return "The state of the last save is kept." if job.saver.run.has_state() else "Nothing was saved before it."
    if not whole.step:
        return "No step was done yet, so there is nothing to keep."
    for name, value in vars(whole).items():
        setattr(position, name, value)
    job.optimizer.zero_grad()
    path = job.saver.save_stopped()
    where = "" if path is None else f" in {path.name}"
    resumed = " Resume goes on from there, with other settings too." if job.saver.settings.save_state else ""
    return f"The LoRA of step {whole.step} is kept{where}.{resumed}"


def free_after(error: BaseException) -> None:
    """Let go of what the failed work held: its frames still name every tensor of it."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _one(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return _bytes(found[1], found[2]) if found else None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _size(count: int) -> str:
    return gigabytes(count) if count >= 2**30 / 10 else f"{count / 2**20:.0f} MB"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
