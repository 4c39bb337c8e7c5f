"""Runs the process that captions images for the page, and holds the difference that a person looks at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from backend.base.errors import Refused
from backend.base.files import write_atomic
from backend.base.jsonable import dumps
from backend.base.paths import resolve
from backend.base.redact import redact
from backend.dataset import caption_changes
from backend.plan.memory.machine import installed_gpus
from backend.runs.captioning.folder import ResultFolder, newest
from backend.runs.captioning.model_folder import CaptionModel, read_model
from backend.runs.captioning.proposals import Proposal, proposals
from backend.runs.captioning.request import CaptionOptions, CaptionRequest, Target, identity
from backend.runs.captioning.targets import old_captions, targets_of
from gui import messages
from gui.caption_refresh import refresh
from gui.caption_writing import CaptionWriter, Work, ending
from gui.jobs import Job

PAGE = 24
_MOST_FAULTS = 50
_WORKER = "backend.captioning.worker"


class CaptionJob:
    """The newest request, its process while it runs, and its captions beside those that are there."""

    def __init__(self, writer: CaptionWriter, folder: Path) -> None:
        """writer: of the captions of the page's scan. folder: of the page's own files."""
        self.scan, self.writer = writer.scan, writer
        self.root = folder / "captions"
        self.job = Job()
        self._results: ResultFolder | None = newest(self.root)
        self._request = None if self._results is None else self._results.request()
        self._progress: dict[str, Any] = {}
        self._old: dict[Target, tuple[object, str | None | Refused]] = {}

    def start(self, options: CaptionOptions, roots: Sequence[Path]) -> None:
        """Caption the scanned images. roots: folders of runs that may need the GPU.

        Raises Refused for a model or options that can't be used, HTTPException where there is nothing to caption.
        """
        if self.job.state == "running":
            raise HTTPException(409, "Captions are being made. Wait until they are there, or cancel it.")
        model = read_model(resolve(options.model))
        options.asked(model)
        images = [item for item in self.scan.items if item.window is None]
        if not images:
            raise HTTPException(422, "No image is known yet. Scan the dataset first, then start.")
        targets = targets_of(images, self.scan.caption_extension, options.existing)
        if not targets:
            text = f"All {len(images)} images have a caption." if len(images) > 1 else "The image has a caption."
            raise HTTPException(422, f"{text} Choose to replace captions, or to add to them.")
        request = CaptionRequest(options=options, targets=tuple(targets))
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / "request.json"
        write_atomic(path, dumps(request.to_json()))
        results = ResultFolder(self.root / identity(options, model))
        # also here, so that what is known already is shown at once
        results.begin(request)
        self._results, self._request, self._old = results, request, {}
        self._progress = {"phase": "Starting", "notes": [], "done": 0, "total": 0, "left_s": None, "problem": None}
        arguments = [str(self.root), str(path), *(word for root in roots for word in ("--runs", str(root)))]
        self.job.start(_WORKER, arguments, self._line, self._end)

    def _line(self, document: dict[str, Any]) -> None:
        kind, progress = document.get("kind"), self._progress
        if kind == "phase":
            progress["phase"] = str(document["text"])
        elif kind == "note":
            progress["notes"] = [*progress["notes"], str(document["text"])]
        elif kind == "progress":
            progress |= {"done": document["done"], "total": document["total"], "left_s": document["seconds_left"]}
        elif kind == "problem":
            progress["problem"] = f"{messages.sentence(document['text'])} {document['remedy']}".strip()

    def _end(self, code: int, errors: str) -> bool:
        if code and not self._progress["problem"]:
            last = redact(errors.splitlines()[-1])[:500] if errors else ""
            text = f"The process ended with code {code}. {last}".strip()
            self._progress["problem"] = f"{text} The captions so far are kept: start again to continue."
        return code == 0

    def facts(self) -> dict[str, Any]:
        """State and progress, the options of the newest request, and how many captions there are to look at."""
        request, results = self._request, self._results
        known = {} if results is None or request is None else results.results()
        own = [] if request is None else [known.get(str(each.image)) for each in request.targets]
        faults = [each for each in own if each is not None and each.error]
        return {
            "state": self.job.state,
            "number": self.job.number,
            **self._progress,
            "options": None if request is None else request.options.model_dump(),
            "images": len(own),
            "captioned": sum(1 for each in own if each is not None and not each.error),
            "failed": [f"{Path(each.image).name}: {each.error}" for each in faults[:_MOST_FAULTS]],
            "failures": len(faults),
            "scanned": sum(1 for item in self.scan.items if item.window is None),
        }

    def difference(self, page: int) -> dict[str, Any]:
        """One page of captions to look at, and how many there are and are chosen."""
        offered = self._offered()
        shown = [each for each in offered if isinstance(each, Proposal)]
        pages = max(1, -(-len(shown) // PAGE))
        page = min(page, pages - 1)
        numbers = {} if self._request is None else {each: n for n, each in enumerate(self._request.targets)}
        items = {item.path: index for index, item in enumerate(self.scan.items)}
        return {
            "page": page,
            "pages": pages,
            "scan": self.scan.number,
            "count": len(shown),
            "chosen": sum(not each.left for each in shown),
            "problems": [messages.sentence(each.text) for each in offered if isinstance(each, Refused)][:_MOST_FAULTS],
            "rows": [
                {
                    "number": numbers[each.target],
                    "item": items.get(each.target.image),
                    "name": each.target.image.name,
                    "old": each.old or "",
                    "new": each.new,
                    "left": each.left,
                    "edited": each.edited,
                }
                for each in shown[page * PAGE : (page + 1) * PAGE]
            ],
        }

    def choose(self, number: int | None, text: str | None, left: bool | None) -> None:
        """Keep what a person decided of a caption, or of all: another text (empty: the model's again), or left out."""
        if self._request is None or self._results is None:
            raise HTTPException(404, "There are no captions of a model.")
        if number is not None and number >= len(self._request.targets):
            raise HTTPException(404, "There is no such caption any more. Look at the list again.")
        row = {} if left is None else {"left": left}
        if number is None:
            every = [each.target for each in self._offered() if isinstance(each, Proposal)]
            self._results.choose({str(each.image): row for each in every})
        else:
            words = {} if text is None else {"text": text.strip() or None}
            self._results.choose({str(self._request.targets[number].image): {**row, **words}})

    def write(self) -> None:
        """Write the chosen captions in the background. Refused when other captions are being written.

        Where files changed meanwhile nothing is written. When it is stopped, what is written stays, with its undo, and
        the rest is still offered.
        """
        if self._request is None:
            raise Refused("No caption is chosen", "")

        def write(work: Work) -> str:
            proposed = [each for each in self._offered() if isinstance(each, Proposal) and not each.left]
            applied = caption_changes.apply(
                [each.change for each in proposed],
                "Captions by a model",
                folder=self.writer.folder,
                progress=work.count,
                stopped=work.stop.is_set,
            )
            work.made = applied.id
            refresh(self.scan, {each.target.file.resolve() for each in proposed})
            return f"Caption files written: {applied.files:,}.{ending(applied)}"

        self.writer.run(write)

    def _offered(self) -> list[Proposal | Refused]:
        if self._request is None or self._results is None:
            return []
        return list(proposals(self._request, self._results, self._old_captions))

    def _old_captions(self, targets: Sequence[Target]) -> dict[Target, str | None | Refused]:
        """As `old_captions`, read again only where a file has changed."""
        stamps = {each: _stamp(each.file) for each in targets}
        stale = [each for each in targets if each not in self._old or self._old[each][0] != stamps[each]]
        for target, text in old_captions(stale).items():
            self._old[target] = stamps[target], text
        return {each: self._old[each][1] for each in targets}


def _stamp(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def model_facts(model: CaptionModel, options: CaptionOptions) -> dict[str, Any]:
    """What the page says of a model before it is loaded."""
    gpus = installed_gpus()
    on_gpu = bool(gpus) and options.device != "cpu"
    needed = model.device_bytes(options.precision, on_gpu)
    warning = ""
    if on_gpu and needed > max(gpu.free for gpu in gpus):
        warning = "No GPU has so much memory free. Choose 4-bit or 8-bit weights, or end what uses the GPU."
    return {
        "title": model.layout.title,
        "prompt": model.layout.prompt,
        "tokens": model.layout.tokens,
        "beams": model.layout.beams,
        "sentence": model.sentence(options.precision, on_gpu),
        "warning": warning,
        "gpu": bool(gpus),
    }
