"""Keeps the masks of images at the size of their latents, and makes weights for the loss of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.problems import Problem
from backend.dataset.buckets import Fit
from backend.dataset.images import VERSION as LOADER
from backend.dataset.items import Item
from backend.dataset.masks import MaskRule, grey, reduced
from backend.latents.store import Damaged, TensorCache

log = logging.getLogger(__name__)

# Raise it when the same mask gives other weights.
_VERSION = 1
# Name in a file's header: whether the mask shows anything.
_SHOWS = "shows"


class MaskCache(TensorCache):
    """Masks by picture and bucket, at the latents' size. downscale: px a side that a latent cell stands for."""

    def __init__(self, folder: Path, downscale: int, rule: MaskRule, seed: int) -> None:
        super().__init__(folder / "masks")
        self.rule = rule
        self._downscale = downscale
        self._seed = seed

    def path(self, item: Item, fit: Fit) -> Path:
        """The file of the mask of `item`, which has one, cut as `fit` cuts it."""
        assert item.mask is not None
        box = [round(edge, 3) for edge in fit.box]
        inputs = {"mask": item.mask.key, "box": box, "cells": self._cells(fit), "flip": fit.flip, "masks": _VERSION}
        # the box is in px of the picture
        picture = [item.width, item.height, item.key if item.mask.path is None else None]
        return self.file_of({**inputs, "picture": picture, "loader": LOADER})

    def build(self, wanted: Iterable[tuple[Item, Fit]], progress: Callable[[int, int], None] | None = None) -> int:
        """Make what is missing and return how many that were. Refused, with each named, for masks that can't be read,
        and for those that show nothing, where the rest counts for nothing either."""
        by_file = {self.path(item, fit): (item, fit) for item, fit in wanted if item.mask is not None}
        missing = self.missing(by_file)
        problems: list[Problem] = []
        for done, path in enumerate(missing):
            if progress is not None:
                progress(done, len(missing))
            item, fit = by_file[path]
            try:
                mask = self._make(item, fit)
                self.write(path, {"mask": mask}, **_facts(mask))
            except ValueError as error:
                problems.append(Problem("dataset.folders", None, str(error), "Export the mask again, or remove it."))
        if not self.rule.unmasked_weight and not problems:
            # a crop at random may miss what the mask shows, as long as another one has it
            seen: set[Item] = set()
            for done, (path, (item, _)) in enumerate(by_file.items()):
                if progress is not None:
                    progress(done, len(by_file))
                if item not in seen and self._shows(path):
                    seen.add(item)
            problems = [
                _empty(item) for item in dict.fromkeys(item for item, _ in by_file.values()) if item not in seen
            ]
        if problems:
            raise Refused.of(problems)
        if progress is not None and by_file:
            progress(len(by_file), len(by_file))
        return len(missing)

    def _shows(self, path: Path) -> bool:
        """Whether a mask shows anything, by the header of its file; those of before it was kept there are read."""
        shows = self.facts(path).get(_SHOWS)
        return bool(self.read(path)["mask"].any()) if shows is None else shows == "1"

    def weights(self, item: Item, fit: Fit, place: tuple[int, int] | None = None) -> Tensor | None:
        """Weights (h, w) of the latent's cells, float32 on the CPU; None where all count the same.

        place: epoch and row in it, by which an image is trained without its mask at times; None to measure it.
        A file that is lost is made again. Refused when the mask is gone too.
        """
        if item.mask is None or (place is not None and self._leaves_out(item, place)):
            return None
        outside = self.rule.unmasked_weight
        weights = outside + (1 - outside) * self._load(item, fit)
        mean = float(weights.mean())
        return weights / mean if self.rule.normalize_masked_area_loss and mean > 0 else weights

    def _leaves_out(self, item: Item, place: tuple[int, int]) -> bool:
        text = f"mask:{self._seed}:{place[0]}:{place[1]}:{item.key}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < self.rule.unmasked_probability

    def _load(self, item: Item, fit: Fit) -> Tensor:
        path = self.path(item, fit)
        try:
            return self.read(path)["mask"]
        except (Damaged, OSError) as error:
            log.warning("The mask of %s is made again: %s", item.path, error)
        try:
            made = self._make(item, fit)
        except ValueError as error:
            raise Refused(str(error), "Leave the masks alone during a run, and start again.") from error
        self.write_or_hold(path, {"mask": made}, **_facts(made))
        return made

    def _make(self, item: Item, fit: Fit) -> Tensor:
        """The mask (h, w) from 0 to 1 in float32. ValueError, in words, when it can't be read."""
        small = reduced(grey(item), item, fit, self._cells(fit))
        return torch.from_numpy(np.array(small, dtype=np.float32)) / 255

    def _cells(self, fit: Fit) -> tuple[int, int]:
        return fit.bucket.width // self._downscale, fit.bucket.height // self._downscale


def _facts(mask: Tensor) -> dict[str, str]:
    return {_SHOWS: str(int(bool(mask.any())))}


def _empty(item: Item) -> Problem:
    where = "its transparency" if item.mask is None or item.mask.path is None else str(item.mask.path)
    text = f"The mask of {item.path} ({where}) shows nothing of what is trained of it"
    remedy = "Paint white what counts, remove the mask, or set masks.unmasked_weight above 0."
    return Problem("masks.unmasked_weight", None, text, remedy)
