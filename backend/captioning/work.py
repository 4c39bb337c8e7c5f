"""Captions the images of a request, batch by batch: each caption is on the disk before the next batch begins."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image

from backend.base.errors import Failed
from backend.dataset.images import BadImage, open_image
from backend.runs.captioning.folder import Result, ResultFolder
from backend.runs.captioning.proposals import tidy
from backend.runs.folder import Run
from backend.runs.start_lock import shares_device

log = logging.getLogger(__name__)

_RUNS_S = 2.0
_BATCH = {"cuda": 4, "cpu": 1}
_RECENT = 8
"""Batches whose pace says how long the rest takes."""
_NO_WORDS = "the model said nothing about it"


class Describes(Protocol):
    """What captions a batch; `backend.captioning.captioner.Captioner` is it."""

    @property
    def device(self) -> torch.device: ...

    def describe(self, images: Sequence[Image.Image]) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """How far the work is. seconds_left: None before the first batch is done."""

    done: int
    total: int
    seconds_left: float | None
    results: tuple[Result, ...] = ()


@dataclass(kw_only=True, slots=True)
class TrainingRuns:
    """Knows whether a training run computes on the same device; looks at the disk now and then.

    runs: gives those that may be at work. gpus: what this process sees, as in CUDA_VISIBLE_DEVICES.
    """

    runs: Callable[[], Iterable[Run]]
    gpus: str | None
    clock: Callable[[], float] = time.monotonic
    _looked: float = field(init=False, default=float("-inf"))

    def refuse_if_busy(self) -> None:
        """Failed, with the name of the run, when one has started."""
        if self.clock() - self._looked < _RUNS_S:
            return
        self._looked = self.clock()
        other = next((run for run in self.runs() if run.is_at_work() and shares_device(run, self.gpus)), None)
        if other is not None:
            where = "CPU" if self.gpus in ("", "-1") else "GPU"
            raise Failed(
                f"The run {other.name} has started and needs the {where}.",
                "The captions so far are kept. Start again when it has ended: it continues where it stopped.",
            )


def caption_images(
    paths: Sequence[Path],
    captioner: Describes,
    folder: ResultFolder,
    *,
    batch: int | None = None,
    training: TrainingRuns | None = None,
    note: Callable[[str], None] = log.info,
) -> Iterator[Step]:
    """Caption `paths` and give a step after each batch; the results are in `folder` by then.

    batch: images at once; None: 4 on a GPU, 1 on the CPU. It is halved where the GPU's memory is too small, which
    `note` is told. An image that can't be read is a result with an error, and the others go on.

    Raises:
        Failed: a training run needs the device, or one image alone does not fit into the GPU's memory.
        WriteFailed: a result can't be written.
    """
    size = batch or _BATCH.get(captioner.device.type, 1)
    done, begun, paces = 0, time.monotonic(), list[float]()
    with ThreadPoolExecutor(max_workers=1) as reader:
        # the next batch is opened while the model works on this one
        waiting = reader.submit(_open_all, paths[:size])
        while done < len(paths):
            opened = waiting.result()
            after = done + len(opened)
            waiting = reader.submit(_open_all, paths[after : after + size])
            results: list[Result] = []
            while len(results) < len(opened):
                if training is not None:
                    training.refuse_if_busy()
                part = opened[len(results) : len(results) + size]
                try:
                    fresh = _caption(part, captioner)
                except torch.OutOfMemoryError:
                    size = _halved(size, note)
                    continue
                folder.append(fresh)
                results += fresh
            done = after
            now = time.monotonic()
            paces.append((now - begun) / len(opened))
            begun = now
            recent = paces[-_RECENT:]
            left = (len(paths) - done) * sum(recent) / len(recent)
            yield Step(done, len(paths), left, tuple(results))


def _halved(size: int, note: Callable[[str], None]) -> int:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if size == 1:
        raise Failed(
            "The GPU's memory is too small for one image.",
            "Choose 8-bit or 4-bit weights, smaller images (megapixels), or fewer beams. The captions so far are kept.",
        )
    note(f"The GPU's memory is too small for {size} images at once: {size // 2} from now on.")
    return size // 2


@dataclass(frozen=True, slots=True)
class _Opened:
    """An image with its file's size and time, or why it can't be used."""

    path: Path
    size: int
    changed_ns: int
    image: Image.Image | None
    fault: str = ""

    def result(self, text: str) -> Result:
        """What became of it."""
        error = self.fault or ("" if text else _NO_WORDS)
        return Result(image=str(self.path), size=self.size, changed_ns=self.changed_ns, text=text, error=error)


def _open_all(paths: Sequence[Path]) -> list[_Opened]:
    return [_open(path) for path in paths]


def _open(path: Path) -> _Opened:
    size = changed = 0
    try:
        status = path.stat()
        size, changed = status.st_size, status.st_mtime_ns
        return _Opened(path, size, changed, open_image(path))
    except BadImage as error:
        return _Opened(path, size, changed, None, f"it can't be used: {error}")
    except OSError as error:
        return _Opened(path, size, changed, None, f"it can't be read: {error.strerror or error}")


def _caption(opened: Sequence[_Opened], captioner: Describes) -> list[Result]:
    images = [each.image for each in opened if each.image is not None]
    try:
        texts = iter(captioner.describe(images) if images else ())
    except ValueError as error:
        # of an image that the model can't take, such as one 200 times as wide as high: the others go on
        if len(opened) > 1:
            return [result for each in opened for result in _caption([each], captioner)]
        return [replace(opened[0], image=None, fault=f"the model can't take it: {error}").result("")]
    return [each.result("" if each.image is None else tidy(next(texts))) for each in opened]
