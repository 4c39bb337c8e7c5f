"""Reads batches out of the caches, by their place in the run: (epoch, batch) is all there is to a position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from backend.latents.masks import MaskCache
from backend.latents.store import CacheLost, LatentCache, TextCache
from backend.models.common.conditioning import CAPTION, Conditioning, with_controls

if TYPE_CHECKING:
    from backend.dataset.buckets import Fit
    from backend.dataset.items import Item
    from backend.plan.plan import Plan

Renew = Callable[[CacheLost], None]
"""Encodes again what a cache file held. Raises what says why it can't."""

T = TypeVar("T")

Conditions = Callable[[tuple[int, int], tuple[float, float], tuple[int, int]], dict[str, Tensor]]
"""Size of the file, crop in px of the scaled picture, size of the bucket -> what the denoiser receives of them."""

# Batches that each worker reads ahead.
_AHEAD = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One batch on the CPU."""

    latents: list[Tensor]
    """Of each row, (C, h, w), of clips (C, f, h, w), float32."""
    text: list[Conditioning]
    """Of each row."""
    keys: list[str]
    """Content key of each row's picture."""
    index: int
    epoch: int
    is_reg: tuple[bool, ...] = ()
    """Of each row, whether it is a regularization image; () where there is none."""
    weights: tuple[Tensor | None, ...] = ()
    """Of each row, what its latent's cells count in the loss, float32 (h, w); None where all count the same, () where
    they do in every row."""


class Loader:
    """Training and validation batches of a plan.

    workers: threads that read ahead; with 0 a batch is read when it is asked for. Any batch can be asked for at any
    time: what it holds depends on the plan and its place alone, so a resumed run continues with the same rows and the
    same dropped captions. text: None leaves captions as they are, to be encoded in the loop. conditions: of the
    family, where its denoiser receives a picture's size: goes with the text. renew: makes a cache file again that can't
    be read any more, called in the thread that asks for the batch. masks: of pictures that have one. stride: of
    several processes each reads every so many-th batch ahead, from the one that it was asked for.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        latents: LatentCache,
        text: TextCache | None,
        workers: int = 0,
        conditions: Conditions | None = None,
        renew: Renew | None = None,
        masks: MaskCache | None = None,
        stride: int = 1,
    ) -> None:
        self.plan = plan
        self._stride = stride
        self._conditions = conditions
        self._renew = renew
        self._masks = masks
        self.last_wait = 0.0
        self.total_wait = 0.0
        self._latents = latents
        self._text = text
        self._ahead = workers * _AHEAD
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="loader") if workers else None
        self._coming: dict[tuple[int, int], Future[Batch]] = {}
        self._epochs: dict[int, list[list[int]]] = {}

    @property
    def batches_per_epoch(self) -> int:
        """Batches of every epoch."""
        return self.plan.steps.batches_per_epoch

    def batch(self, epoch: int, index: int) -> Batch:
        """Batch `index` of `epoch`, both from 0. IndexError beyond the epoch.

        A cache file that can't be read is made again first; CacheLost, or what `renew` raises, where that fails.
        The seconds it took are in `last_wait`, and add up in `total_wait`.
        """
        if not 0 <= index < self.batches_per_epoch:
            raise IndexError(f"epoch {epoch} has {self.batches_per_epoch} batches, and number {index} was asked for")
        started = time.monotonic()
        coming = self._coming.pop((epoch, index), None)
        if coming is None:
            # A jump: what was read ahead is of no use.
            self._drop()
            batch = self._whole(lambda: self._read(epoch, index, self._rows(epoch, index)))
        else:
            batch = self._after(coming, lambda: self._read(epoch, index, self._rows(epoch, index)))
        self._read_ahead(epoch, index)
        self.last_wait = time.monotonic() - started
        self.total_wait += self.last_wait
        return batch

    def validation(self, name: str) -> Iterator[Batch]:
        """The pictures of a validation set, one a batch, always in the same order and with their captions."""
        return self._one_by_one(zip(self.plan.validation[name], self.plan.validation_fits[name], strict=True))

    def training_sample(self) -> Iterator[Batch]:
        """The training pictures that are measured too, as `validation` gives those of a set."""
        return self._one_by_one((self.plan.items[n], self.plan.fits[n]) for n in self.plan.training_sample)

    def _one_by_one(self, pairs: Iterable[tuple[Item, Fit]]) -> Iterator[Batch]:
        for index, (item, fit) in enumerate(pairs):
            yield self._whole(partial(self._measured, index, item, fit))

    def each_trained(self) -> Iterator[Batch]:
        """The pictures that are learnt, one a batch, in the order of the plan and with their captions."""
        return self._one_by_one(
            (item, fit) for item, fit in zip(self.plan.items, self.plan.fits, strict=True) if not item.is_reg
        )

    def _measured(self, index: int, item: Item, fit: Fit) -> Batch:
        """One picture to measure."""
        encoded = self._encoded(item.caption, self.plan.text_length, item.controls, fit.bucket.size)
        text = self._with_sizes(self._trimmed(encoded, self.plan.text.fit(item.caption)), item, fit)
        row = self._latents.load_row(item, fit)
        latent = row.pop("latent")
        weights = self._weights([(item, fit)])
        return Batch(latents=[latent], text=[{**text, **row}], keys=[item.key], index=index, epoch=0, weights=weights)

    def _weights(
        self, pictures: Sequence[tuple[Item, Fit]], places: Sequence[tuple[int, int]] = ()
    ) -> tuple[Tensor | None, ...]:
        """Of each row; places: epoch and row in it of each, in training."""
        if self._masks is None or all(item.mask is None for item, _ in pictures):
            return ()
        at = places or [None] * len(pictures)
        return tuple(self._masks.weights(item, fit, place) for (item, fit), place in zip(pictures, at, strict=True))

    def _after(self, coming: Future[T], read: Callable[[], T]) -> T:
        """What a thread read ahead; `read` once more in this one where a cache file was lost to it."""
        try:
            return coming.result()
        except CacheLost:
            return self._whole(read)

    def _whole(self, read: Callable[[], T]) -> T:
        """What `read` gives; each cache file that can't be read is made again, once."""
        renewed: set[Path] = set()
        while True:
            try:
                return read()
            except CacheLost as lost:
                if self._renew is None or lost.file in renewed:
                    raise
                renewed.add(lost.file)
                self._renew(lost)

    def drawn(
        self,
        prompt: str,
        size: tuple[int, int],
        length: int | None = None,
        controls: Sequence[Item] = (),
        frames: int = 1,
    ) -> Conditioning:
        """The conditioning of a prompt for a picture of `size` (width, height), as if it were not cropped.

        Where captions are trimmed, with the prompt's own length. controls: the pictures to start from. frames: of a
        clip.
        """
        encoded = self._encoded(prompt, self.plan.text.asked(length), controls, size)
        sizes = {} if self._conditions is None else self._conditions(size, (0.0, 0.0), size)
        trimmed = self._trimmed(encoded, self.plan.text.fit(prompt, length))
        if self.plan.references.starts:
            cuts = self.plan.references.cuts(controls, size, frames=frames)
            kept = [row for cut in cuts for row in self._latents.load_row(*cut).items()]
            return {**trimmed, **sizes, **{name: tensor for name, tensor in kept if name != "latent"}}
        return self._with_controls({**trimmed, **sizes}, controls, size)

    def _encoded(self, caption: str, length: int, controls: Sequence[Item], size: tuple[int, int]) -> Conditioning:
        """controls: pictures that some families read the caption with, for a result of `size` px."""
        if self._text is None:
            return {CAPTION: caption}
        read = self.plan.references.cuts(controls, size, read=True) if self.plan.text.reads_control else ()
        return self._text.load(caption, length, read)

    def _with_controls(self, encoded: Conditioning, controls: Sequence[Item], size: tuple[int, int]) -> Conditioning:
        """`encoded`, with the latents of the control pictures of a result of `size` px."""
        return with_controls(encoded, [self._latents.load(*cut) for cut in self.plan.references.cuts(controls, size)])

    def _with_sizes(self, encoded: Conditioning, item: Item, fit: Fit) -> Conditioning:
        """The caption, with the control pictures' latents and the picture's size, where there are such."""
        encoded = self._with_controls(encoded, item.controls, fit.bucket.size)
        if self._conditions is None:
            return encoded
        # of a mirrored picture, from the edge that is left then
        left = item.width - fit.box[2] if fit.flip else fit.box[0]
        crop = (left * fit.scale, fit.box[1] * fit.scale)
        sizes = self._conditions((item.width, item.height), crop, (fit.bucket.width, fit.bucket.height))
        return {**encoded, **sizes}

    def close(self) -> None:
        """Stop reading ahead."""
        self._drop()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool, self._ahead = None, 0

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _rows(self, epoch: int, index: int) -> list[int]:
        if epoch not in self._epochs:
            # This epoch and, near its end, the next one.
            self._epochs = {kept: rows for kept, rows in self._epochs.items() if abs(kept - epoch) == 1}
            self._epochs[epoch] = self.plan.batches(epoch)
        return self._epochs[epoch][index]

    def _read(self, epoch: int, index: int, rows: list[int]) -> Batch:
        plan = self.plan
        captions = [plan.caption(epoch, index, row, item) for row, item in enumerate(rows)]
        # One text length a batch: the bucket that holds its longest caption.
        length = max(plan.text.fit(caption) for caption in captions)
        pictures = [(plan.items[item], plan.fit(epoch, index, row, item)) for row, item in enumerate(rows)]

        def conditioning(caption: str, item: Item, fit: Fit) -> Conditioning:
            encoded = self._encoded(caption, plan.text_length, item.controls, fit.bucket.size)
            return self._with_sizes(self._trimmed(encoded, length), item, fit)

        encoded = [self._latents.load_row(*picture) for picture in pictures]
        latents = [row.pop("latent") for row in encoded]
        text = [conditioning(caption, *picture) for caption, picture in zip(captions, pictures, strict=True)]
        return Batch(
            latents=latents,
            # what else the family kept of a picture or clip: where a clip starts from, and what an encoder saw of it
            text=[{**words, **row} for words, row in zip(text, encoded, strict=True)],
            keys=[plan.items[item].key for item in rows],
            index=index,
            epoch=epoch,
            is_reg=tuple(plan.items[item].is_reg for item in rows),
            weights=self._weights(pictures, [(epoch, index * plan.batch_size + row) for row in range(len(rows))]),
        )

    def _trimmed(self, encoded: Conditioning, length: int) -> Conditioning:
        """With `length`, the number of tokens that the denoiser keeps; without it, where nothing is trimmed."""
        kept = {name: tensor for name, tensor in encoded.items() if name != "length"}
        return kept if self.plan.caption_buckets is None else {**kept, "length": torch.tensor(length)}

    def _read_ahead(self, epoch: int, index: int) -> None:
        if self._pool is None:
            return
        for _ in range(self._ahead):
            epochs, index = divmod(index + self._stride, self.batches_per_epoch)
            epoch += epochs
            if (epoch, index) not in self._coming:
                rows = self._rows(epoch, index)
                self._coming[epoch, index] = self._pool.submit(self._read, epoch, index, rows)

    def _drop(self) -> None:
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()
