"""Makes thumbnails in a process of bounded memory, one at a time, and keeps them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from backend.base.paths import PROJECT_ROOT
from backend.dataset.clips import VERSION as CLIP_LOADER
from backend.dataset.images import VERSION as LOADER
from backend.dataset.items import Item

log = logging.getLogger(__name__)

_PX = 300
# Each of the frames in a clip's strip.
_STRIP_PX = 160
# An image that takes longer is given up; the process ends when it was idle for so long.
_PATIENCE_S = 30.0
_IDLE_S = 60.0
_MODULE = "backend.dataset.thumbnails"


class Thumbnails:
    """Small JPEGs in `folder`, by the files' content. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._leave: threading.Timer | None = None
        self._without: set[Path] = set()  # images without a thumbnail are tried once

    def of(self, item: Item) -> bytes | None:
        """A small JPEG of an image with its mask, or of a window's first frame; None when it can't be made."""
        return self._made(item, _PX, [] if item.window is None else [item.window.start])

    def strip(self, item: Item, times: Sequence[float]) -> bytes | None:
        """Frames of a clip side by side, at `times` in seconds; None when they can't be read."""
        return self._made(item, _STRIP_PX, times)

    def _made(self, item: Item, px: int, times: Sequence[float]) -> bytes | None:
        what = f"{item.key} {LOADER}" if not times else f"{item.key} {CLIP_LOADER} {px} {[*times]}"
        mask = item.mask if item.window is None else None
        what += "" if mask is None else f" mask {mask.key}"
        name = hashlib.sha256(what.encode()).hexdigest()[:32]
        kept = self.folder / f"{name}.jpg"
        with contextlib.suppress(OSError):
            return kept.read_bytes()
        with self._lock:
            if kept in self._without:
                return None
            fault = None if kept.exists() else self._ask(item.path, kept, px, times, mask and (mask.path or item.path))
            if fault is not None:
                log.info("No thumbnail of %s: %s", item.path, fault)
                self._without.add(kept)
                return None
        try:
            return kept.read_bytes()
        except OSError:
            return None

    def end(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _ask(self, path: Path, kept: Path, px: int, times: Sequence[float], mask: Path | None) -> str | None:
        """What is wrong with a file; None when its thumbnail was made."""
        if self._leave is not None:
            self._leave.cancel()
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                cwd=PROJECT_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
        assert process.stdin is not None and process.stdout is not None
        patience = threading.Timer(_PATIENCE_S, process.kill)
        patience.start()
        try:
            request = {"path": str(path), "to": str(kept), "px": px, **({"times": [*times]} if times else {})}
            request |= {} if mask is None else {"mask": str(mask)}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())["fault"]
        except (OSError, ValueError):
            self._end()
            return "the process for it ended or took too long"
        finally:
            patience.cancel()
            self._leave = threading.Timer(_IDLE_S, self.end)
            self._leave.daemon = True
            self._leave.start()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream and stream.close()
