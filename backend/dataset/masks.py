"""Finds the mask of each image, by its name in a mask folder or in its transparency, and reads it.

White counts. A mask has the name of its image; as OneTrainer has it, also with -masklabel behind it, which may lie next
to the image.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from backend.dataset.buckets import Fit
from backend.dataset.images import BadImage, alpha_of, open_image, read_picture
from backend.dataset.items import Finding, Item, Mask, count_of, name_files
from backend.dataset.looks import Look
from backend.dataset.scan_cache import Measured
from backend.dataset.scan_state import FolderSpec, ScannedPicture
from backend.dataset.walk import walk

LABEL = "-masklabel"
# Sides of a mask may be rounded; more than this and it is of another picture.
_SAME_SHAPE = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskRule:
    """How masks count; the fields have the names of the settings in [masks]."""

    unmasked_weight: float = 0.0
    unmasked_probability: float = 0.0
    normalize_masked_area_loss: bool = True


def is_label(path: Path) -> bool:
    """Whether a file is a mask by its name, and no picture."""
    return path.stem.casefold().endswith(LABEL)


def without_labels(pictures: Sequence[Path], are_masks: bool) -> list[Path]:
    """Those of a folder's `pictures` that are no mask by their name. are_masks: also where no image has the name."""
    stems = {path.stem.casefold() for path in pictures}
    labels = {path for path in pictures if is_label(path)}
    return [
        path
        for path in pictures
        if path not in labels or not (are_masks or path.stem.casefold().removesuffix(LABEL) in stems)
    ]


def pair(
    pictures: Sequence[ScannedPicture], spec: FolderSpec, measure: Callable[[list[Path]], list[Measured]]
) -> list[Finding]:
    """Give each picture of a folder its mask file; findings name those without any mask, and what fits no picture.

    Names are compared without ending and letter case, sub-folders included.
    """
    setting = spec.setting.removesuffix(".path") + ".mask_path"
    if spec.mask is None:
        return []
    if not spec.mask.is_dir():
        return [Finding("no_mask_folder", "error", f"The mask folder {spec.mask} does not exist", "Check the path.",
                        (), setting)]  # fmt: skip
    beside = spec.mask == spec.path
    masks = [path for paths in walk(spec.mask).pictures.values() for path in paths if is_label(path) or not beside]
    files = {_name(path, spec.mask).removesuffix(LABEL): path for path in masks}
    wanted = [(each, files.get(_name(each.path, spec.path))) for each in pictures if each.measured.fault is None]
    there = [path for _, path in wanted if path is not None]
    measured = dict(zip(there, measure(there), strict=True))
    missing: list[str] = []
    for picture, path in wanted:
        if path is None:
            # its own transparency may be its mask
            missing += [] if picture.mask is not None else [str(picture.path)]
            continue
        seen = measured[path]
        picture.mask_fault = seen.fault or _other_shape(picture.measured, seen)
        picture.mask = Mask(seen.key, path)
    return [*_missing(missing, len(wanted), spec, setting), *_faults([each for each, _ in wanted], setting)]


def nearly_black(
    pictures: Sequence[ScannedPicture],
    spec: FolderSpec,
    looks_of: Callable[[dict[str, tuple[Path, int, int]]], dict[str, Look]],
) -> list[Finding]:
    """The warning of mask files whose brightest value is 1, as programs save them that count from 0 to 1."""
    used = [(each, each.mask) for each in pictures if each.mask is not None and each.mask_fault is None]
    files = {mask.key: (mask.path, each.measured.width, each.measured.height) for each, mask in used if mask.path}
    looks = looks_of(files) if files else {}
    faint = sorted({str(path) for key, (path, *_) in files.items() if key in looks and looks[key].peak == 1})
    if not faint:
        return []
    names = name_files([Path(path).name for path in faint])
    text = f"{count_of(len(faint), 'mask')} saved with values of 0 and 1 in place of 0 and 255: {names}"
    remedy = "All of them is as good as black, so they have almost no effect: save them again with 255 for what counts."
    setting = spec.setting.removesuffix(".path") + ".mask_path"
    return [Finding("faint_mask", "warning", text, remedy, tuple(faint), setting)]


def of_alpha(measured: Measured) -> Mask | None:
    """The mask in a picture's own transparency; None for a picture that is opaque everywhere."""
    return Mask("alpha", None) if measured.has_alpha and measured.clip is None else None


def grey(item: Item) -> Image.Image:
    """The mask of `item` as `grey_of` gives it."""
    assert item.mask is not None
    return grey_of(item.path, item.mask.path or item.path)


def grey_of(picture: Path, mask: Path) -> Image.Image:
    """A mask as grey from 0 to 255, as large as it is; where it is the picture itself, its opacity.

    ValueError, in words, when it can't be read.
    """
    try:
        if mask == picture:
            return alpha_of(io.BytesIO(read_picture(picture)))
        # what is transparent in a mask counts as black
        return open_image(mask, "black").convert("L")
    except BadImage as error:
        raise ValueError(f"{mask} can't be used as a mask: {error}") from error
    except OSError as error:
        raise ValueError(f"{mask} can't be read: {error.strerror or error}") from error


def reduced(mask: Image.Image, item: Item, fit: Fit, size: tuple[int, int]) -> Image.Image:
    """What `fit` takes of `mask`, the mean of each cell of a latent of `size` (width, height)."""
    across, down = mask.width / item.width, mask.height / item.height
    left, top, right, bottom = fit.box
    # the last digits of a product may lie outside of the mask
    box = (left * across, top * down, min(right * across, mask.width), min(bottom * down, mask.height))
    small = mask.resize(size, Image.Resampling.BOX, box=box)
    return small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if fit.flip else small


def _other_shape(picture: Measured, mask: Measured) -> str | None:
    ratio = picture.width * mask.height / (picture.height * mask.width)
    if abs(math.log(ratio)) <= _SAME_SHAPE:
        return None
    return f"it has {mask.width} x {mask.height} px, and its image {picture.width} x {picture.height}"


def _missing(missing: list[str], count: int, spec: FolderSpec, setting: str) -> list[Finding]:
    if not missing:
        return []
    names = name_files([Path(path).name for path in missing])
    text = f"{len(missing):,} of {count_of(count, 'image')} without a mask: {names}"
    remedy = f"Put one with the same name into {spec.mask}; without one, all of an image counts."
    return [Finding("no_mask", "warning", text, remedy, tuple(missing), setting)]


def _faults(pictures: Sequence[ScannedPicture], setting: str) -> list[Finding]:
    bad = [each for each in pictures if each.mask_fault is not None and each.mask is not None]
    if not bad:
        return []
    names = name_files([f"{each.mask.path}: {each.mask_fault}" for each in bad if each.mask is not None])
    text = f"{count_of(len(bad), 'mask')} that can't be used: {names}"
    remedy = "Make each as large as its image, or of the same shape; until then the image is left out."
    return [Finding("bad_mask", "warning", text, remedy, tuple(str(each.path) for each in bad), setting)]


def _name(path: Path, root: Path) -> str:
    inner = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    return inner.with_suffix("").as_posix().casefold()
