"""Fills the caches: pictures through the VAE, captions through the text encoders, each once.

One picture and one caption at a time: what lands in the cache does not depend on what else was missing.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from backend.base.errors import Refused
from backend.base.files import free_bytes, human_bytes
from backend.base.problems import Problem
from backend.dataset.augmentation import recoloured
from backend.dataset.buckets import Fit
from backend.dataset.clips import BadClip, hash_of, read_frames
from backend.dataset.decode_budget import BUDGET
from backend.dataset.images import BadImage, cut, open_image, read_picture
from backend.dataset.items import Item, Window
from backend.dataset.scan_cache import Stamp
from backend.latents.store import LatentCache, TextCache
from backend.latents.wanted import Words

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

# done, total
Progress = Callable[[int, int], None]
# Pictures decoded ahead of the VAE, and the threads that do it.
_AHEAD = 4
_THREADS = 2
# Left free on the disk beyond what the caches take: as much again, at least and at most these.
_SPARE_BYTES = (5_000_000, 500_000_000)


class Vae(Protocol):
    """What is needed of a family's VaeStack."""

    @property
    def dtype(self) -> torch.dtype: ...
    def encode_row(self, pixels: Tensor) -> dict[str, Tensor]: ...
    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Vae: ...


class Encoders(Protocol):
    """What is needed of a family's TextStack."""

    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]: ...


class SeeingEncoders(Encoders, Protocol):
    """The same of a family whose text encoder reads a caption together with its control pictures."""

    def encode_with_pictures(
        self, caption: str, pictures: Sequence[Image.Image], text_length: int
    ) -> dict[str, Tensor]: ...


def build_latents(
    cache: LatentCache,
    wanted: Iterable[tuple[Item, Fit]],
    load_vae: Callable[[], Vae],
    progress: Progress | None = None,
    again: bool = False,
) -> int:
    """Encode what the cache lacks and return how many that were; `load_vae` is called only if something is missing.

    A latent with NaN or infinity is made again in float32. Refused, with every picture named, when one can't be read
    any more, has changed since the scan or stays without finite values. An exception of `progress` (a stop) passes
    through. again: in the middle of a run, where what the disk refuses is kept in memory.
    """
    by_file = {cache.path(item, fit): (item, fit) for item, fit in wanted}
    missing = cache.missing(by_file)
    if not missing:
        return 0
    pairs = [by_file[path] for path in missing]
    old = sum(cache.path_before(item, fit).exists() for item, fit in pairs)
    if old:
        log.info("%s of %s cached pictures were made before colour profiles were read; made again", old, len(by_file))
    vae = load_vae()
    problems: list[Problem] = []
    for done, (path, (item, _), pixels) in enumerate(zip(missing, pairs, _decoded(pairs, cache), strict=True)):
        if progress is not None:
            progress(done, len(missing))
        if isinstance(pixels, Problem):
            problems.append(pixels)
            continue
        row, made_in = _encode(vae, pixels)
        if row is None:
            text = f"The VAE gives no finite values for {item.path}, not even in float32"
            problems.append(Problem("dataset.folders", None, text, "Take the picture out, or choose another VAE."))
            continue
        if done == 0 and not again:
            size = sum(tensor.numel() * tensor.element_size() for tensor in row.values())
            _check_room(cache.folder, round(size * _mean_share(pairs)), len(missing), "pictures")
        write = cache.write_or_hold if again else cache.write
        write(path, row, picture=item.key, made_in=str(made_in))
    if problems:
        raise Refused.of(problems)
    if progress is not None:
        progress(len(missing), len(missing))
    return len(missing)


def build_text(
    cache: TextCache,
    wanted: Iterable[Words | tuple[str, int]],
    load_text: Callable[[], Encoders],
    progress: Progress | None = None,
    again: bool = False,
) -> int:
    """Encode the captions that the cache lacks and return how many; `load_text` is called only if one is missing.

    Refused when a caption gives NaN or infinity, or its picture can't be read any more. An exception of `progress` (a
    stop) passes through. again: as in `build_latents`.
    """
    by_file = {cache.path(*words): Words(*words) for words in wanted}
    missing = cache.missing(by_file)
    if not missing:
        return 0
    encoders = load_text()
    for done, path in enumerate(missing):
        if progress is not None:
            progress(done, len(missing))
        words = by_file[path]
        encoded = encode_words(encoders, words, cache.transparency)
        bad = [name for name, tensor in encoded.items() if not torch.isfinite(tensor).all()]
        if bad:
            text = f"The text encoders give no finite values ({', '.join(bad)}) for the caption {words.caption[:60]!r}"
            raise Refused(text, "Set weight_dtype to bf16 or fp32.", "model.weight_dtype")
        if done == 0 and not again:
            size = sum(tensor.numel() * tensor.element_size() for tensor in encoded.values())
            _check_room(cache.folder, size, len(missing), "captions")
        (cache.write_or_hold if again else cache.write)(path, encoded)
    if progress is not None:
        progress(len(missing), len(missing))
    return len(missing)


def encode_words(encoders: Encoders | SeeingEncoders, words: Words, transparency: str) -> dict[str, Tensor]:
    """What the text encoders make of one caption. Refused where a picture that is read with it can't be read."""
    if not words.controls:
        return encoders.encode([words.caption], words.length)[0]
    pictures = []
    for item, fit in words.controls:
        try:
            pictures.append(picture_of(item, fit, transparency))
        except ValueError as error:
            text = f"{item.path} {error}"
            raise Refused(text, "Start the run again: the folder is then scanned again.", "dataset.folders") from error
    return encoders.encode_with_pictures(words.caption, pictures, words.length)


def encode_picture(vae: Vae, item: Item, fit: Fit, transparency: str) -> dict[str, Tensor]:
    """What the denoiser reads of one picture or clip, as `build_latents` keeps it.

    Refused where it can't be read, or the VAE gives no finite values for it.
    """
    try:
        row, _ = _encode(vae, _bytes_of(item, fit, transparency))
    except ValueError as error:
        raise Refused(f"{item.path} {error}", "Choose another image.") from error
    if row is None:
        text = f"the VAE gives no finite values for {item.path}, not even in float32"
        raise Refused(text, "Choose another image, or another VAE.")
    return row


def pixels_of(item: Item, fit: Fit, transparency: str) -> Tensor:
    """Pixels float32 in [-1, 1] of `item` cut to its bucket, (3, H, W), of clips (3, F, H, W).

    ValueError as `picture_of`.
    """
    return _scaled(_bytes_of(item, fit, transparency))


def _bytes_of(item: Item, fit: Fit, transparency: str) -> Tensor:
    """The same as they come, from 0 to 255 in uint8."""
    if item.window is None:
        return _channels_first(picture_of(item, fit, transparency))
    if not item.window.rate:
        still = _channels_first(picture_of(item, fit, transparency))
        return still[:, None].expand(-1, item.window.frames, -1, -1)
    try:
        return _clip_of(item, item.window, fit, transparency)
    except BadClip as error:
        raise ValueError(f"can't be used: {error}") from error
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror or error}") from error


def _clip_of(item: Item, window: Window, fit: Fit, transparency: str) -> Tensor:
    """The frames of a window one after the other: no more than one is held besides the result."""
    if _hash_now(item.path) != item.key:
        raise ValueError("has changed since it was scanned")
    width, height = fit.bucket.size
    result = torch.empty((3, window.frames, height, width), dtype=torch.uint8)
    with BUDGET.room(item.width, item.height), closing(read_frames(item.path, window.times, transparency)) as frames:
        for number, frame in enumerate(frames):
            # the box is in px as seen, which are not the file's where its pixels are not square
            across, down = frame.width / item.width, frame.height / item.height
            left, top, right, bottom = fit.box
            box = (left * across, top * down, right * across, bottom * down)
            result[:, number] = _channels_first(recoloured(cut(frame, (width, height), box), fit))
    return result


def _hash_now(path: Path) -> str:
    """SHA-256 of a file's content now, which is read once as long as the file stays as it is."""
    return _hash_of_stamp(path, Stamp.of(path))


@lru_cache(maxsize=4096)
def _hash_of_stamp(path: Path, stamp: Stamp) -> str:
    return hash_of(path)


def _channels_first(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture, dtype=np.uint8)).permute(2, 0, 1)


def _scaled(values: Tensor) -> Tensor:
    """Bytes of a picture (3, H, W) or clip (3, F, H, W) as float32 in [-1, 1]; of a clip a frame at a time."""
    if values.ndim == 3:
        return values.float() / 127.5 - 1.0
    result = torch.empty(values.shape, dtype=torch.float32)
    for number in range(values.shape[1]):
        result[:, number] = values[:, number].float() / 127.5 - 1.0
    return result


def picture_of(item: Item, fit: Fit, transparency: str) -> Image.Image:
    """RGB picture of `item` cut to its bucket.

    ValueError, in words, when the file can't be read or is not the one that was scanned.
    """
    try:
        data = read_picture(item.path)
    except BadImage as error:
        raise ValueError(f"can't be used: {error}") from error
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror or error}") from error
    if hashlib.sha256(data).hexdigest() != item.key:
        raise ValueError("has changed since it was scanned")
    try:
        with BUDGET.room(item.width, item.height):
            picture = open_image(io.BytesIO(data), transparency)
            return recoloured(cut(picture, (fit.bucket.width, fit.bucket.height), fit.box), fit)
    except BadImage as error:
        raise ValueError(f"can't be used: {error}") from error


def _decoded(pairs: Sequence[tuple[Item, Fit]], cache: LatentCache) -> Iterator[Tensor | Problem]:
    """Bytes of each picture or clip in order, decoded a few ahead, of clips one; a Problem where that fails."""
    count = 1 if any(item.window is not None for item, _ in pairs) else _AHEAD

    def read(pair: tuple[Item, Fit]) -> Tensor | Problem:
        try:
            return _bytes_of(*pair, cache.transparency)
        except ValueError as error:
            return Problem(
                "dataset.folders",
                None,
                f"{pair[0].path} {error}",
                "Start the run again: the folder is then scanned again.",
            )

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")
    try:
        ahead: list[Future[Tensor | Problem]] = []
        for number in range(len(pairs) + count):
            if number < len(pairs):
                ahead.append(pool.submit(read, pairs[number]))
            if number >= count:
                yield ahead.pop(0).result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _encode(vae: Vae, values: Tensor) -> tuple[dict[str, Tensor] | None, torch.dtype]:
    """What is kept of a picture or clip, of its bytes, and what it was made in; None where nothing finite comes."""
    dtype, pixels = vae.dtype, _scaled(values)
    row = vae.encode_row(pixels)
    if _is_finite(row):
        return _kept(row), dtype
    if dtype == torch.float32:
        return None, dtype
    log.warning("A latent holds NaN in %s; made again in float32", dtype)
    vae.to(dtype=torch.float32)
    try:
        row = vae.encode_row(pixels)
    finally:
        vae.to(dtype=dtype)
    return (_kept(row) if _is_finite(row) else None), torch.float32


def _is_finite(row: Mapping[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in row.values())


def _kept(row: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The latent in float32, and the rest as the family has it."""
    return {name: tensor.float() if name == "latent" else tensor for name, tensor in row.items()}


def _mean_share(pairs: Sequence[tuple[Item, Fit]]) -> float:
    """Tokens of the mean picture or clip for each token of the first one; 1 where there are no clips."""
    tokens = [fit.bucket.tokens for _, fit in pairs]
    return sum(tokens) / len(tokens) / tokens[0] if any(item.window is not None for item, _ in pairs) else 1.0


def _check_room(folder: Path, bytes_each: int, count: int, what: str) -> None:
    """Refused when the disk can't hold what is about to be written."""
    folder.mkdir(parents=True, exist_ok=True)
    free, needed = free_bytes(folder), bytes_each * count
    spare = min(max(needed, _SPARE_BYTES[0]), _SPARE_BYTES[1])
    if free is not None and needed + spare > free:
        reserve = f"and {human_bytes(spare)} are left free for the system and the run's own files"
        text = (
            f"The cache of {count:,} {what} needs about {human_bytes(needed)}, {reserve}; {human_bytes(free)} are free"
        )
        raise Refused(text, "Free some space, or set cache_dir to a folder on another disk.", "dataset.cache_dir")
