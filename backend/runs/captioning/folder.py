"""Keeps the results of captioning requests: a folder for each kind of request, with a line for each image.

    ID/request.json     options and images of the newest request
    ID/results.jsonl    a line an image, written as soon as its caption is there
    ID/choices.json     captions that a person edited or left out

The name of a folder says what decides the words of a caption (`request.identity`). So a request that was cut off, or
that comes again with more images, continues; and what is written around a caption can change without the model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backend.base.files import in_words, write_atomic
from backend.base.jsonable import dumps
from backend.runs.captioning.request import CaptionRequest

_ID = re.compile(r"[0-9a-f]{16}")
_KEPT = 8
"""Folders whose results stay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a model said of an image, or why it said nothing (`error`). size, changed_ns: of the file that it saw."""

    image: str
    size: int
    changed_ns: int
    text: str = ""
    error: str = ""

    def is_of(self, path: Path) -> bool:
        """Whether the file is still the one that the model saw."""
        with suppress(OSError):
            status = path.stat()
            return (status.st_size, status.st_mtime_ns) == (self.size, self.changed_ns)
        return False


class ResultFolder:
    """The folder of one kind of request. Cheap to make."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.request_path = path / "request.json"
        self.results_path = path / "results.jsonl"
        self.choices_path = path / "choices.json"
        self._results: dict[str, Result] = {}
        self._read_to = 0

    def begin(self, request: CaptionRequest) -> None:
        """Write down the request. Raises WriteFailed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise in_words(error, self.path) from error
        write_atomic(self.request_path, dumps(request.to_json()))
        _forget_old(self.path.parent, self.path)

    def request(self) -> CaptionRequest | None:
        """The newest request; None where there is none that can be read."""
        try:
            return CaptionRequest.from_json(json.loads(self.request_path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def results(self) -> Mapping[str, Result]:
        """All results by the image's path, the newest of each. Only what is new since the last call is read."""
        try:
            with open(self.results_path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._read_to:
                    self._results, self._read_to = {}, 0
                file.seek(self._read_to)
                data = file.read()
        except OSError:
            return self._results
        # a line that is being written, or that a crash cut off, has no end
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError, TypeError):
                result = Result(**json.loads(line))
                self._results[result.image] = result
        return self._results

    def append(self, results: Iterable[Result]) -> None:
        """Add lines, flushed to the disk. A line that a crash cut off is ended first. Raises WriteFailed."""
        try:
            with open(self.results_path, "a+b") as file:
                end = file.seek(0, os.SEEK_END)
                if end:
                    file.seek(end - 1)
                    if file.read(1) != b"\n":
                        file.write(b"\n")
                file.write(b"".join(dumps(asdict(each)).encode() + b"\n" for each in results))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise in_words(error, self.results_path) from error

    def missing(self, request: CaptionRequest) -> list[Path]:
        """The images of a request that have no caption yet, or have changed since; those that failed are among them."""
        known = self.results()
        missing = []
        for target in request.targets:
            result = known.get(str(target.image))
            if result is None or result.error or not result.is_of(target.image):
                missing.append(target.image)
        return list(dict.fromkeys(missing))

    def choices(self) -> dict[str, dict[str, Any]]:
        """What a person decided: image -> `text` (edited) and `left` (out)."""
        try:
            content = json.loads(self.choices_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return (
            {image: row for image, row in content.items() if isinstance(row, dict)} if isinstance(content, dict) else {}
        )

    def choose(self, changes: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Keep decisions; None forgets one. Raises WriteFailed."""
        kept = self.choices()
        for image, row in changes.items():
            if row is None:
                kept.pop(image, None)
            else:
                kept[image] = {**kept.get(image, {}), **row}
        write_atomic(self.choices_path, dumps(kept))


def newest(root: Path) -> ResultFolder | None:
    """The folder of the newest request below `root`."""
    folders = _folders(root)
    return ResultFolder(folders[-1]) if folders else None


def _folders(root: Path) -> list[Path]:
    """Folders with a request, the newest last."""
    dated = []
    with suppress(OSError):
        for path in root.iterdir():
            if _ID.fullmatch(path.name):
                with suppress(OSError):
                    dated.append(((path / "request.json").stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated)]


def _forget_old(root: Path, but: Path) -> None:
    for path in _folders(root)[:-_KEPT]:
        if path != but:
            shutil.rmtree(path, ignore_errors=True)
