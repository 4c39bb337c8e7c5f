"""Stores encoded pictures and captions: one safetensors file each, keyed by content and all that made it.

A key covers the picture or caption, its bucket and crop, the backing colour of transparency, the picture that a caption
is read with, the encoder's files and the number format it computed in, so nothing stale is ever read: a changed input
is another file. Files are written whole or not at all and carry a checksum; a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor

from backend.base.errors import Refused, WriteFailed
from backend.base.files import write_atomic
from backend.dataset.buckets import Fit
from backend.dataset.clips import VERSION as CLIP_LOADER
from backend.dataset.images import VERSION as LOADER
from backend.dataset.items import Item
from backend.dataset.references import Cut

log = logging.getLogger(__name__)

# Raise it when the way from picture or caption to tensors changes.
_VERSION = 1
# Up to this many bytes are read and checked in full at a start; of more, only headers and sizes.
_CHECK_BYTES = 2_000_000_000


class Damaged(ValueError):
    """A cache file that is cut off, overwritten or of another kind."""


class CacheLost(Refused):
    """A cache file that was there and can't be read now. path: the file. wanted: what it was encoded from."""

    def __init__(self, text: str, remedy: str, path: Path, wanted: Cut | tuple[str, int, tuple[Cut, ...]]) -> None:
        super().__init__(text, remedy)
        self.file = path
        self.wanted = wanted


class TensorCache:
    """Files of named tensors below `folder`, by a key of everything that made them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: set[Path] = set()
        self._held: dict[Path, dict[str, Tensor]] = {}
        self._lock = threading.Lock()

    def file_of(self, inputs: Mapping[str, Any]) -> Path:
        """The file for these inputs, whether it exists or not."""
        text = json.dumps({"version": _VERSION, **inputs}, sort_keys=True)
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        return self.folder / name[:2] / f"{name}.safetensors"

    def write(self, path: Path, tensors: Mapping[str, Tensor], **facts: str) -> None:
        """Write tensors (any device) to `path`, whole or not at all. DiskFull or WriteFailed when it can't be done."""
        host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, save_bytes(host, {**facts, "crc32": str(_checksum(host))}))
        with self._lock:
            self._whole.add(path)

    def write_or_hold(self, path: Path, tensors: Mapping[str, Tensor], **facts: str) -> None:
        """`write`, or keep them in memory for this process where the disk refuses them."""
        try:
            self.write(path, tensors, **facts)
        except WriteFailed as error:
            log.warning("%s Its content stays in memory until the run ends.", error.text)
            with self._lock:
                self._held[path] = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def forget(self, path: Path) -> None:
        """Take `path` for one that was never read: the next look reads it in full."""
        with self._lock:
            self._whole.discard(path)

    def read(self, path: Path) -> dict[str, Tensor]:
        """The tensors of `path` on the CPU. Damaged when it is not as it was written, OSError when it is not there."""
        if path in self._held:
            return dict(self._held[path])
        data = path.read_bytes()
        try:
            tensors = load_bytes(data)
            facts = _metadata(data)
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{path}: {error}") from None
        if path not in self._whole:
            if facts.get("crc32") != str(_checksum(tensors)):
                raise Damaged(f"{path}: the checksum does not fit")
            with self._lock:
                self._whole.add(path)
        return tensors

    def facts(self, path: Path) -> dict[str, str]:
        """What was written of `path` beside its tensors, by its header alone; nothing of one that is in memory.

        OSError when it is not there.
        """
        if path in self._held:
            return {}
        with safetensors.safe_open(path, "pt") as opened:
            return opened.metadata() or {}

    def missing(self, paths: Iterable[Path]) -> list[Path]:
        """Those of `paths`, each once, that don't exist or are damaged; damaged files are removed."""
        result = []
        budget = _CHECK_BYTES
        for path in dict.fromkeys(paths):
            if path in self._held:
                continue
            try:
                size = path.stat().st_size
                budget -= size
                if path not in self._whole:
                    self.read(path) if budget > 0 else _check_ends(path, size)
                continue
            except FileNotFoundError:
                pass
            except Damaged as error:
                log.warning("A cache file is damaged and is made again: %s", error)
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("A cache file can't be read and is made again: %s", error)
            result.append(path)
        return result


class LatentCache(TensorCache):
    """Latents by picture and bucket.

    vae: identity of the VAE's files. dtype: what it computes in. transparency: backing colour. A change of any of them
    is another file.
    """

    def __init__(self, folder: Path, vae: str, dtype: torch.dtype, transparency: str) -> None:
        super().__init__(folder / "latents")
        self.transparency = transparency
        self.dtype = dtype
        self._vae = vae

    def path(self, item: Item, fit: Fit) -> Path:
        """The file of `item` in its bucket."""
        return self._file({**_seen(item, fit, self.transparency), "loader": LOADER})

    def path_before(self, item: Item, fit: Fit) -> Path:
        """Where a version that did not read colour profiles kept it."""
        return self._file(_seen(item, fit, self.transparency))

    def _file(self, seen: Mapping[str, Any]) -> Path:
        return self.file_of({**seen, "vae": self._vae, "dtype": str(self.dtype)})

    def load(self, item: Item, fit: Fit) -> Tensor:
        """Latent (C, h, w), of clips (C, f, h, w), float32 on the CPU. Raises as `load_row`."""
        return self.load_row(item, fit)["latent"]

    def load_row(self, item: Item, fit: Fit) -> dict[str, Tensor]:
        """The latent by that name, and what else the family's denoiser reads of the picture or clip, on the CPU.

        CacheLost when the file is gone or damaged in the middle of a run.
        """
        return _load(self, self.path(item, fit), str(item.path), (item, fit))


class TextCache(TensorCache):
    """Encoded captions.

    encoders: identity of the text encoders' and tokenizers' files. dtype: what they compute in. transparency: backing
    colour of pictures that are read with a caption.
    """

    def __init__(self, folder: Path, encoders: str, dtype: torch.dtype, transparency: str = "white") -> None:
        super().__init__(folder / "text")
        self.dtype = dtype
        self.transparency = transparency
        self._encoders = encoders

    def path(self, caption: str, length: int, controls: Sequence[Cut] = ()) -> Path:
        """The file of `caption` at a text length in tokens; controls: the pictures that it is read with, cut."""
        inputs = {"caption": caption, "length": length, "encoders": self._encoders, "dtype": str(self.dtype)}
        # without a picture the key is what it was before there were any: caches made then are still good
        pictures = [{**_seen(*control, self.transparency), "loader": LOADER} for control in controls]
        seen = {"control": pictures[0]} if len(pictures) == 1 else {"controls": pictures} if pictures else {}
        return self.file_of({**inputs, **seen})

    def load(self, caption: str, length: int, controls: Sequence[Cut] = ()) -> dict[str, Tensor]:
        """What the family's encoders gave for it, on the CPU. CacheLost when the file is gone or damaged."""
        wanted = (caption, length, tuple(controls))
        return _load(self, self.path(caption, length, controls), f"the caption {caption[:60]!r}", wanted)


def _seen(item: Item, fit: Fit, transparency: str) -> dict[str, Any]:
    """What decides the pixels of `item` in its bucket."""
    window = {} if item.window is None else {"window": item.window.to_dict(), "frames": CLIP_LOADER}
    return {
        "picture": item.key,
        "size": [fit.bucket.width, fit.bucket.height],
        "box": [round(edge, 3) for edge in fit.box],
        # The backing colour matters only where something is transparent.
        "transparency": transparency if item.has_alpha else None,
        **window,
        **({"flip": True} if fit.flip else {}),
        **({} if fit.colour is None else {"colour": list(fit.colour)}),
    }


def _load(cache: TensorCache, path: Path, what: str, wanted: Any) -> dict[str, Tensor]:
    try:
        return cache.read(path)
    except Damaged as error:
        text, remedy = f"The cache of {what} is damaged: {error}", "Start the run again: it is then encoded again."
    except OSError as error:
        text = f"The cache of {what} can't be read: {error.strerror or error}"
        remedy = "Leave the cache folder alone during a run, and start again."
    cache.forget(path)
    raise CacheLost(text, remedy, path, wanted)


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]).get("__metadata__", {})


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().reshape(-1).view(torch.uint8)
        value = zlib.crc32(flat.numpy().tobytes(), zlib.crc32(name.encode(), value))
    return value


def _check_ends(path: Path, size: int) -> None:
    """Damaged unless header and length fit together; reads the header only."""
    try:
        with safetensors.safe_open(path, "pt") as opened:
            opened.keys()
    except (safetensors.SafetensorError, ValueError) as error:
        raise Damaged(f"{path} ({size} bytes): {error}") from None
