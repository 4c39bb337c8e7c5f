"""Computes the two hashes by which other programs know a model file, while other work continues."""

from __future__ import annotations

import hashlib
import logging
import threading
from pathlib import Path

log = logging.getLogger(__name__)

_START, _LENGTH = 0x100000, 0x10000
_BLOCK = 1 << 22


def legacy_hash(path: Path) -> str:
    """First 8 digits of the SHA-256 of 64 KiB from 1 MiB on, as A1111 had it first (sd-scripts ``model_hash``)."""
    with path.open("rb") as stream:
        stream.seek(_START)
        return hashlib.sha256(stream.read(_LENGTH)).hexdigest()[:8]


class ModelHashes:
    """Hashes of the file `path`, computed in a thread from now on; none of a folder or of a file that can't be read.

    Reading 24 GB takes up to a minute, and no step of the training needs the result: only the LoRA files name it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._hashes: dict[str, str] = {}
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        if path is not None and path.is_file():
            self._thread = threading.Thread(target=self._compute, args=(path,), name="model hashes", daemon=True)
            self._thread.start()

    def metadata(self, wait_s: float = 30.0) -> dict[str, str]:
        """``ss_sd_model_hash`` and ``ss_new_sd_model_hash`` (SHA-256), waiting so many seconds; {} where not known."""
        if self._thread is not None:
            self._thread.join(wait_s)
            if self._thread.is_alive():
                log.info("The hash of %s is not known yet; this LoRA file goes without it", self._path)
                return {}
        return dict(self._hashes)

    def stop(self) -> None:
        """End the computation, whatever it has."""
        self._left.set()

    def _compute(self, path: Path) -> None:
        try:
            legacy, whole = legacy_hash(path), hashlib.sha256()
            with path.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    if self._left.is_set():
                        return
                    whole.update(block)
        except OSError as error:
            log.warning("The hash of %s can't be computed: %s", path, error)
            return
        self._hashes = {"ss_sd_model_hash": legacy, "ss_new_sd_model_hash": whole.hexdigest()}
