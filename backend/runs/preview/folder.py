"""Keeps what the preview's worker and those who ask it share: a folder with requests, their pictures, and its state.

    worker.json             the worker's process and device; `pid` and the other words of an identity as in run.json
    stop                    a wish that the worker ends
    log.txt                 what the worker says
    requests/ID/request.json, status.json, cancel, and the pictures
    controls/HASH.png       (or .jpg, .webp) images to start from that came from a browser

Every file is written whole or not at all. A request is there as soon as request.json is, and its last state is in
status.json, whoever looks and whenever.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from backend.base.errors import Refused, WriteFailed
from backend.base.files import in_words, open_file, write_atomic
from backend.base.jsonable import dumps, jsonable
from backend.base.redact import redact_value
from backend.dataset.images import DECODE_ERRORS, BadImage, probe
from backend.dataset.png import without_text
from backend.runs.preview.request import PreviewRequest
from backend.runs.process import ProcessId

log = logging.getLogger(__name__)

ENDS = frozenset({"done", "cancelled", "failed"})
"""States of a request that it stays in."""

_ID = re.compile(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{6}")
_PICTURE = re.compile(r"\d{2,}-\d{2,}\.(png|mp4|sheet\.png)")
GRID, PAGE = "grid.png", "index.html"
"""What a matrix has besides its pictures."""

_KEPT = 30
"""Requests whose pictures stay."""
_CONTROLS = {"PNG": "png", "JPEG": "jpg", "MPO": "jpg", "WEBP": "webp"}
"""Kinds of images that are taken from a browser, with the ending of each."""
_KEPT_CONTROLS = 60
"""Images from a browser that stay."""


class PreviewFolder:
    """The folder of one worker. Cheap to make; holds nothing open."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.requests_dir = self.path / "requests"
        self.controls_dir = self.path / "controls"
        self.worker_path = self.path / "worker.json"
        self.stop_path = self.path / "stop"
        self.log_path = self.path / "log.txt"
        self.lock_path = self.path / ".start.lock"

    @classmethod
    def of_page(cls, place: Path) -> PreviewFolder:
        """That of the page which keeps its own files at `place`."""
        return cls(place / "preview")

    def submit(self, request: PreviewRequest) -> str:
        """Write a request for the worker; its id. The oldest requests go. WriteFailed where it can't be written."""
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now * 1000) % 1000:03d}"
        identity = f"{name}-{secrets.token_hex(3)}"
        folder = self.requests_dir / identity
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            text = f"{folder} can't be made: {error.strerror or error}."
            raise WriteFailed(text, "Free some space there.", error.errno) from error
        write_atomic(folder / "request.json", dumps(request.to_json()))
        self._forget_old()
        return identity

    def ids(self) -> list[str]:
        """All requests, oldest first."""
        try:
            names = sorted(name for name in os.listdir(self.requests_dir) if _ID.fullmatch(name))
        except OSError:
            return []
        return [name for name in names if (self.requests_dir / name / "request.json").is_file()]

    def next_id(self, but: Collection[str] = ()) -> str | None:
        """The oldest request that is not done, and none of `but`."""
        return next((name for name in self._open_ids() if name not in but), None)

    def _open_ids(self) -> list[str]:
        """The requests that are not done, oldest first."""
        return [name for name in self.ids() if self.status(name).get("state") not in ENDS]

    def request(self, identity: str) -> PreviewRequest:
        """What was asked. Refused, KeyError, TypeError, OSError or ValueError where its file is not whole."""
        return _read_request(self._of(identity) / "request.json")

    def status(self, identity: str) -> dict[str, Any]:
        """How far a request is; empty before the worker has seen it."""
        return _read(self._of(identity) / "status.json")

    def write_status(self, identity: str, status: Mapping[str, Any]) -> None:
        """Say how far a request is; a disk that is full ends no drawing."""
        try:
            write_atomic(self._of(identity) / "status.json", dumps(redact_value(jsonable(dict(status)))))
        except WriteFailed as error:
            log.warning("The state of a preview can't be written: %s", error)

    def cancel(self, identity: str) -> None:
        """Ask that a request ends; one that nobody works on has ended with it."""
        write_atomic(self._of(identity) / "cancel", "")
        if not self.is_alive() and self.status(identity).get("state") not in ENDS:
            self.write_status(identity, {**self.status(identity), "state": "cancelled"})

    def cancel_all_but_newest(self) -> None:
        """For the start of a worker: what one before it left undone may be why it ended."""
        for name in self.ids()[:-1]:
            if self.status(name).get("state") not in ENDS:
                self.write_status(name, {**self.status(name), "state": "cancelled"})

    def cancel_open(self, why: str) -> None:
        """For the end of a worker: what it leaves undone is cancelled, and says why.

        What was asked for after the wish that it ends is for the worker after it, and waits.
        """
        wished = _written_ns(self.stop_path)
        for name in self._open_ids():
            if wished is None or (_written_ns(self._of(name) / "request.json") or 0) <= wished:
                self.write_status(name, {**self.status(name), "state": "cancelled", "why": why})

    def is_cancelled(self, identity: str) -> bool:
        """Whether somebody asked that."""
        return (self._of(identity) / "cancel").exists()

    def pictures_dir(self, identity: str) -> Path:
        """Where a request's pictures go."""
        return self._of(identity)

    def picture(self, identity: str, name: str) -> Path | None:
        """A picture, clip or picture of its frames by names that a browser sent; None where there is no such file."""
        if not _ID.fullmatch(identity) or not _PICTURE.fullmatch(name):
            return None
        path = self._of(identity) / name
        return path if path.is_file() and not path.is_symlink() else None

    def keep_control(self, data: bytes) -> Path:
        """Keep an image to start from; the same one is kept once. Refused for what is no image, WriteFailed."""
        try:
            ending = _control_ending(data)
        except BadImage as error:
            raise Refused(
                f"the file is no image that can be used: {error}", "Choose a PNG, JPEG or WebP file."
            ) from error
        path = self.controls_dir / f"{hashlib.sha256(data).hexdigest()[:24]}.{ending}"
        try:
            self.controls_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise in_words(error, self.controls_dir) from error
        write_atomic(path, data)
        by_time = sorted(self.controls_dir.iterdir(), key=lambda each: _written_ns(each) or 0)
        for old in by_time[:-_KEPT_CONTROLS]:
            old.unlink(missing_ok=True)
        return path

    def matrix(self, identity: str) -> list[Path]:
        """The files of a request's matrix: its pictures, its grid and its page; empty where there is none."""
        if not _ID.fullmatch(identity) or not (self._of(identity) / PAGE).is_file():
            return []
        names = sorted(os.listdir(self._of(identity)))
        return [self._of(identity) / name for name in names if name in (GRID, PAGE) or _PICTURE.fullmatch(name)]

    def worker(self) -> dict[str, Any]:
        """What the worker says of itself; empty where there never was one."""
        return _read(self.worker_path)

    def process(self) -> ProcessId | None:
        """The process of the newest worker, alive or not."""
        return ProcessId.from_record(self.worker())

    def is_alive(self) -> bool:
        """Whether a worker is there."""
        process = self.process()
        return process is not None and process.is_alive()

    def write_worker(self, **facts: object) -> None:
        """Write down this process as the worker. Raises WriteFailed."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.worker_path, dumps({**ProcessId.of(os.getpid()).to_record(), **facts}))

    def ask_to_end(self) -> None:
        """Ask the worker to end; it cancels what it draws."""
        if self.path.is_dir():
            write_atomic(self.stop_path, "")

    def is_asked_to_end(self) -> bool:
        """Whether the worker is asked to end."""
        return self.stop_path.exists()

    def clear_stop(self) -> None:
        """Forget a wish to the worker before."""
        self.stop_path.unlink(missing_ok=True)

    def _of(self, identity: str) -> Path:
        if not _ID.fullmatch(identity):
            raise ValueError(f"{identity!r} is no request")
        return self.requests_dir / identity

    def _forget_old(self) -> None:
        for name in self.ids()[:-_KEPT]:
            if self.status(name).get("state") in ENDS:
                shutil.rmtree(self._of(name), ignore_errors=True)


@lru_cache(maxsize=_KEPT)
def _read_request(path: Path) -> PreviewRequest:
    """The request in a file, which never changes once it is there."""
    return PreviewRequest.from_json(json.loads(path.read_text(encoding="utf-8")))


def _control_ending(data: bytes) -> str:
    """The file ending of an image from a browser. BadImage for what is no whole image of a kind that is taken."""
    try:
        # named kinds alone: of others that Pillow knows, some are read by other programs
        with Image.open(io.BytesIO(without_text(data)), formats=[*_CONTROLS]) as image:
            ending = _CONTROLS[image.format or "PNG"]
    except DECODE_ERRORS:
        raise BadImage("it is not an image in a known format") from None
    probe(io.BytesIO(data))
    return ending


def _written_ns(path: Path) -> int | None:
    """When a file was written, in ns; None where it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as stream:
            data = json.loads(stream.read().decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
