"""Carries out a caption request in this process: checks, the model, the images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backend.base.errors import Failed
from backend.base.library_imports import library_imports
from backend.base.paths import resolve
from backend.runs.captioning.folder import ResultFolder
from backend.runs.captioning.model_folder import CaptionModel, read_model
from backend.runs.captioning.request import CaptionRequest, identity
from backend.runs.folder import Run, list_runs
from backend.runs.start_lock import one_start

if TYPE_CHECKING:
    from backend.captioning.work import Step


@dataclass(kw_only=True, slots=True)
class Session:
    """A request, its model, and where its results are kept."""

    request: CaptionRequest
    model: CaptionModel
    folder: ResultFolder

    @classmethod
    def open(cls, request: CaptionRequest, root: Path) -> Session:
        """Look at the model and write the request down. Refused, or WriteFailed. root: of all result folders."""
        model = read_model(resolve(request.options.model))
        folder = ResultFolder(root / identity(request.options, model))
        folder.begin(request)
        return cls(request=request, model=model, folder=folder)

    def carry_out(
        self, roots: Iterable[Path], note: Callable[[str], None], phase: Callable[[str], None]
    ) -> Iterator[Step]:
        """Load the model and caption what has no result yet; gives a `work.Step` after each batch.

        roots: folders of runs that may need the same device. Raises as `work.caption_images`; RunBusy when a run is at
        work there, Refused when the model can't be loaded.
        """
        missing = self.folder.missing(self.request)
        known = len(self.request.targets) - len(missing)
        if known > 0:
            note(f"{known} of {len(self.request.targets)} images have a caption of this model from before.")
        if not missing:
            return
        phase("Loading the libraries")
        # here, so that a wrong model is told at once
        with library_imports():
            import torch

            from backend.captioning.captioner import Captioner, device_of
            from backend.captioning.work import TrainingRuns, caption_images

        device = device_of(self.request.options)
        places = list(roots)

        def runs() -> list[Run]:
            return [run for root in places for run in list_runs(root)]

        gpus = _gpus(device.type, device.index)
        with one_start(runs, gpus=gpus):
            pass
        options = self.request.options
        phase(f"Loading {self.model.sentence(options.precision, device.type == 'cuda')}")
        try:
            captioner = Captioner(self.model, options)
        except torch.OutOfMemoryError:
            text = "The GPU's memory is too small for the model."
            raise Failed(text, "Choose 8-bit or 4-bit weights (precision), or a smaller model.") from None
        training = TrainingRuns(runs=runs, gpus=gpus)
        yield from caption_images(missing, captioner, self.folder, batch=options.batch, training=training, note=note)


def _gpus(kind: str, index: int | None) -> str:
    """The one GPU that is used, as CUDA_VISIBLE_DEVICES names it; empty for the CPU."""
    if kind == "cpu":
        return ""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return visible[index or 0] if visible else str(index or 0)
