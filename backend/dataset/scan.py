"""Scans image folders, without torch: every picture is checked to its end, every caption read, oddities named.

For families that are trained on clips, videos and animations beside the pictures are cut into windows, an item each.

`scan` takes folders, `scan_dataset` a config; `python -m backend.dataset FOLDER --json --progress` does it in a
process of its own for the page. Nothing is written into a person's image folder.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from backend.base.paths import PROJECT_ROOT, resolve
from backend.dataset import controls, masks, scan_findings
from backend.dataset.caption_variants import CaptionRule
from backend.dataset.clips import BadClip, hash_of, is_video
from backend.dataset.clips import probe as probe_clip
from backend.dataset.file_lists import is_list, read_list
from backend.dataset.images import BadImage, probe, read_picture
from backend.dataset.items import CaptionRow, DatasetScan, Finding, FolderReport, Item, Scan
from backend.dataset.known_looks import looks_of
from backend.dataset.scan_cache import Measured, ScanCache, Stamp
from backend.dataset.scan_captions import by_lower_ending, caption_files, finished, read_all
from backend.dataset.scan_state import FolderSpec, ScannedPicture, ScanState
from backend.dataset.split import HELD_OUT, hold_out, trained_too
from backend.dataset.walk import Walk, named_repeats, walk
from backend.dataset.windows import ClipRule, cut_clip
from backend.families.table import family

if TYPE_CHECKING:
    from backend.config.schema import Config
    from backend.config.sections.dataset import ImageFolder
    from backend.config.sections.validation import ValidationFolder

log = logging.getLogger(__name__)

_EXCLUDED = "it is one of the excluded images"
_NO_REPEATS = "its folder has 0 repeats"

# done, total, path of the picture just measured
Progress = Callable[[int, int, str], None]


def scan(
    folders: Iterable[FolderSpec],
    caption_extension: str = ".txt",
    *,
    trigger_word: str | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    more_extensions: Sequence[str] = (),
    caption_lines: bool = False,
    rule: CaptionRule = CaptionRule(),  # noqa: B008 - frozen
    excluded: Collection[Path] = (),
) -> Scan:
    """Find and measure every picture below `folders`; problems are findings, nothing raises for what a folder holds.

    caption_extension: ending of the caption files, looked for without letter case. cache_dir: where measures are kept,
    so that a second scan only lists files; None keeps none. workers: threads that decode, None for one a core, at most
    8. Sub-folders named `10_name` right below a chosen folder multiply its repeats by that number (0 leaves them out).
    more_extensions: of further caption files of a picture. caption_lines: each line of one is a caption. rule: what
    changes in captions. excluded: files that are left out, whatever they hold.
    """
    gathered = ScanState(tuple(folders), caption_extension, trigger_word)
    gathered.more_extensions, gathered.caption_lines, gathered.rule = more_extensions, caption_lines, rule
    gathered.excluded = frozenset(excluded)
    places = _walk_all(gathered)
    # clips and pictures of one list: folders of a run are all scanned for the same family
    clips = any(spec.clips is not None for spec in gathered.folders)
    measures = _measure([path for path, *_ in places], ScanCache(cache_dir), progress, workers, clips)
    texts = {index: by_lower_ending(files.texts) for index, files in gathered.walks.items()}
    for (path, index, repeats), measured in zip(places, measures, strict=True):
        files = caption_files(path, texts[index], (caption_extension, *more_extensions))
        picture = ScannedPicture(path, index, repeats, measured, next(iter(files), None), caption_files=files)
        of_list = gathered.lists.get(index)
        if of_list is not None and path in of_list.captions:
            picture.listed = (of_list.captions[path],)
            picture.row = CaptionRow(gathered.folders[index].path, of_list.rows[path])
        gathered.found.append(picture)
    read_all(gathered)
    for index, spec in enumerate(gathered.folders):
        if spec.control is not None:
            own = [picture for picture in gathered.found if picture.folder == index]
            measure = partial(_measure, memory=ScanCache(cache_dir), progress=None, workers=workers)
            most = spec.most_controls
            gathered.findings += controls.pair(own, spec.path, spec.control, most, spec.setting, measure)
        if spec.mask is not None or spec.alpha_mask:
            own = [picture for picture in gathered.found if picture.folder == index]
            gathered.findings += _give_masks(own, spec, cache_dir, workers)
    items = _items(gathered)
    gathered.findings += scan_findings.findings(gathered, items)
    return Scan(
        items=tuple(items),
        findings=tuple(gathered.findings),
        folders=tuple(gathered.reports),
        pictures=len(gathered.found) + sum(len(files.unread) for files in gathered.walks.values()),
        captions=len(gathered.used_captions) + sum(bool(f.listed and not f.caption_path) for f in gathered.found),
        ignored=scan_findings.add_counts(files.ignored for files in gathered.walks.values()),
        other=scan_findings.other_files(gathered),
        clips=tuple(gathered.clips),
        left_out=tuple((str(each.path), why) for each in gathered.found if (why := _left_out(each, gathered))),
    )


def cache_folder(cfg: Config) -> Path:
    """Where scans, latents and texts are kept: `dataset.cache_dir`, else `cache` in the project."""
    return resolve(cfg.dataset.cache_dir) if cfg.dataset.cache_dir is not None else PROJECT_ROOT / "cache"


def scan_dataset(cfg: Config, progress: Progress | None = None, *, cache_dir: Path | None = None) -> DatasetScan:
    """Scan the folders of `cfg`, hold out its `validation_split` (as the set "held out"), scan its validation folders.

    cache_dir: where measures are kept, `cache_folder(cfg)` when left out.
    """
    data, memory = cfg.dataset, cache_dir or cache_folder(cfg)

    def look(folders: Sequence[FolderSpec]) -> Scan:
        return scan(
            folders,
            data.caption_extension,
            trigger_word=data.trigger_word,
            cache_dir=memory,
            progress=progress,
            more_extensions=cfg.captions.more_caption_extensions,
            caption_lines=cfg.captions.caption_lines,
            rule=CaptionRule.of(cfg.captions),
            excluded=[resolve(path) for path in data.excluded_images or ()],
        )

    folders = folder_specs(cfg)
    train = look(folders)
    if not folders:
        problem = Finding("no_folders", "error", "No image folder is chosen", "Choose the folder with your images.")
        train = replace(train, findings=(problem, *train.findings))
    sets: dict[str, Scan] = {}
    if data.validation_split > 0:
        train, held = hold_out(train, data.validation_split, data.validation_split_seed)
        if held is not None:
            sets[HELD_OUT] = held
    for folder, spec in zip(cfg.validation.validation_folders, validation_specs(cfg), strict=True):
        result = look([spec])
        # Repeats weigh training; a measurement sees each picture once.
        once = tuple(replace(item, repeats=1) for item in result.items)
        findings = (*trained_too(train, once, folder.name, spec.setting), *result.findings)
        sets[folder.name] = replace(result, items=once, findings=findings)
    return DatasetScan(train, sets)


def _give_masks(
    own: list[ScannedPicture], spec: FolderSpec, cache_dir: Path | None, workers: int | None
) -> list[Finding]:
    """The masks of a folder's pictures: files, and where there is none the transparency, if that is asked for."""
    if spec.alpha_mask:
        for picture in own:
            picture.mask = masks.of_alpha(picture.measured)
    memory = ScanCache(cache_dir)
    findings = masks.pair(own, spec, partial(_measure, memory=memory, progress=None, workers=workers))
    return [*findings, *masks.nearly_black(own, spec, partial(looks_of, memory=memory, workers=workers))]


def folder_specs(cfg: Config) -> list[FolderSpec]:
    """The image folders of `cfg`, as they are scanned."""
    most, clips = most_controls(cfg), ClipRule.of(cfg)
    return [
        FolderSpec(
            resolve(folder.path),
            folder.num_repeats,
            f"dataset.folders[{index}].path",
            _control(folder),
            most,
            clips,
            folder.is_reg,
            folder.class_tokens,
            folder.class_images,
            folder.trigger_word,
            folder.caption_prefix and folder.caption_prefix.strip(),
            folder.caption_suffix and folder.caption_suffix.strip(),
            None if folder.metadata_file is None else resolve(folder.metadata_file),
            None if folder.mask_path is None else resolve(folder.mask_path),
            cfg.masks.alpha_mask,
        )
        for index, folder in enumerate(cfg.dataset.folders)
    ]


def validation_specs(cfg: Config) -> list[FolderSpec]:
    """The validation folders of `cfg`, as they are scanned."""
    most, clips = most_controls(cfg), ClipRule.of(cfg)
    specs = []
    for index, folder in enumerate(cfg.validation.validation_folders):
        setting = f"validation.validation_folders[{index}].path"
        spec = FolderSpec(resolve(folder.path), 1, setting, _control(folder), most, clips)
        mask = None if folder.mask_path is None else resolve(folder.mask_path)
        specs.append(replace(spec, mask=mask, alpha_mask=cfg.masks.alpha_mask))
    return specs


def most_controls(cfg: Config) -> int:
    """Control pictures that a picture of a run may have."""
    rule = family(cfg.model.family).controls
    return 1 if rule is None else rule.most


def _control(folder: ImageFolder | ValidationFolder) -> Path | None:
    return None if folder.control_path is None else resolve(folder.control_path)


def _walk_all(gathered: ScanState) -> list[tuple[Path, int, int]]:
    """(path, index of its folder, repeats) of every picture file, in the order that everything later keeps."""
    places = []
    for index, spec in enumerate(gathered.folders):
        fault = scan_findings.folder_fault(spec)
        if fault is not None:
            gathered.findings.append(fault)
            continue
        files = gathered.walks[index] = _files_of(gathered, index, spec)
        for folder, pictures in files.pictures.items():
            if any(folder.is_relative_to(inner) for inner in (spec.control, spec.mask_below) if inner is not None):
                continue
            unmasked = masks.without_labels(pictures, spec.mask == spec.path)
            if len(unmasked) < len(pictures) and spec.mask != spec.path:
                files.ignored[f"masks of images ({masks.LABEL})"] += len(pictures) - len(unmasked)
            pictures = unmasked
            named = _named_below(spec.path, folder)
            repeats = spec.num_repeats * (1 if named is None else named)
            gathered.reports.append(_report(spec, folder, named, repeats))
            places += [(path, index, repeats) for path in pictures]
        if not files.pictures:
            gathered.findings.append(scan_findings.no_pictures(spec, files))
    return places


def _files_of(gathered: ScanState, index: int, spec: FolderSpec) -> Walk:
    """The files of a chosen folder, or of a list of files."""
    if not is_list(spec.path):
        return walk(spec.path, spec.clips is not None)
    try:
        endings = (gathered.caption_extension, *gathered.more_extensions)
        gathered.lists[index] = read_list(spec.path, endings, spec.clips is not None)
    except (OSError, ValueError) as error:
        gathered.findings.append(scan_findings.broken_list(spec, error))
        return Walk()
    return gathered.lists[index].walk


def _named_below(root: Path, folder: Path) -> int | None:
    """The number of the `10_name` right below `root` that `folder` is or lies in."""
    parts = folder.relative_to(root).parts if folder.is_relative_to(root) else ()
    return named_repeats(root / parts[0]) if parts else None


def _report(spec: FolderSpec, folder: Path, named: int | None, repeats: int) -> FolderReport:
    is_root = folder == spec.path
    if is_root:
        named = named_repeats(folder)
    offer = str(folder.parent) if is_root and named is not None else None
    return FolderReport(str(folder), 0, repeats, named, is_root, offer)


def _measure(
    paths: list[Path], memory: ScanCache, progress: Progress | None, workers: int | None, clips: bool = False
) -> list[Measured]:
    """One Measured a path, from memory or by decoding in threads (Pillow decodes without holding the interpreter).

    clips: animations are measured as clips.
    """
    measures: list[Measured | None] = [memory.get(path) for path in paths]
    new = [index for index, known in enumerate(measures) if known is None or (clips and _is_only_picture(known))]
    fresh: list[tuple[Path, Stamp, Measured]] = []
    done = len(paths) - len(new)
    if progress is not None and done:
        progress(done, len(paths), str(paths[-1]))
    count = workers or min(8, os.cpu_count() or 1)
    look = partial(_measure_one, clips=clips)
    with ThreadPoolExecutor(max_workers=count, thread_name_prefix="scan") as pool:
        for index, (stamp, measured) in zip(new, pool.map(look, [paths[i] for i in new]), strict=True):
            measures[index] = measured
            done += 1
            if stamp is not None:
                fresh.append((paths[index], stamp, measured))
            if progress is not None:
                progress(done, len(paths), str(paths[index]))
    memory.put(fresh)
    return [measured for measured in measures if measured is not None]


def _is_only_picture(known: Measured) -> bool:
    """Whether an animation was measured for a family of pictures, which looks at its first frame."""
    return known.animated and known.clip is None and known.fault is None


def _measure_one(path: Path, clips: bool = False) -> tuple[Stamp | None, Measured]:
    """The measure, and the stamp that the file had before; no stamp for what should be tried again next time."""
    try:
        stamp = Stamp.of(path)
        if is_video(path):
            facts = probe_clip(path)
            return stamp, Measured(hash_of(path), facts.width, facts.height, facts.has_alpha, True, clip=facts)
        data = read_picture(path)
    except BadClip as error:
        return stamp, Measured(fault=str(error))
    except BadImage as error:
        return None, Measured(fault=str(error))
    except OSError as error:
        return None, Measured(fault=f"it can't be read ({error.strerror or error})")
    if not data:
        return stamp, Measured(fault="the file is empty")
    try:
        seen = probe(io.BytesIO(data))
    except BadImage as error:
        return stamp, Measured(fault=str(error))
    key = hashlib.sha256(data).hexdigest()
    measured = Measured(
        key, seen.width, seen.height, seen.has_alpha, seen.animated, profile=seen.profile, look=seen.look
    )
    if not clips or not seen.animated:
        return stamp, measured
    try:
        return stamp, replace(measured, clip=probe_clip(path))
    except BadClip as error:
        # its first frame may be good for a family of pictures: not remembered
        return None, Measured(fault=str(error))


def _left_out(picture: ScannedPicture, gathered: ScanState) -> str:
    """Why a picture is not trained on; "" when it is."""
    if picture.path in gathered.excluded:
        return _EXCLUDED
    if picture.measured.fault is not None:
        return picture.measured.fault
    if picture.caption_fault is not None:
        return f"its caption can't be used: {picture.caption_fault}"
    if gathered.folders[picture.folder].control is not None and not picture.controls:
        return "it has no control image"
    if picture.mask_fault is not None:
        return f"its mask can't be used: {picture.mask_fault}"
    return "" if picture.repeats else _NO_REPEATS


def _items(gathered: ScanState) -> list[Item]:
    items = []
    used: dict[str, int] = {}
    for picture in gathered.found:
        seen = picture.measured
        why = _left_out(picture, gathered)
        if why and why != _NO_REPEATS:
            continue
        used[str(picture.path.parent)] = used.get(str(picture.path.parent), 0) + 1
        if picture.repeats:
            spec = gathered.folders[picture.folder]
            caption, texts, trigger = finished(picture.captions, spec, gathered.rule, gathered.trigger_word)
            item = Item(
                key=seen.key,
                path=picture.path,
                width=seen.width,
                height=seen.height,
                caption=caption,
                caption_path=picture.caption_path,
                repeats=picture.repeats,
                has_alpha=seen.has_alpha,
                controls=picture.controls,
                is_reg=spec.is_reg,
                texts=texts,
                trigger=trigger,
                mask=picture.mask,
                row=picture.row if picture.caption_path is None else None,
            )
            rule = spec.clips
            if seen.clip is None or rule is None:
                items.append(item)
            else:
                report = cut_clip(picture.path, seen.clip, rule)
                gathered.clips.append(report)
                alpha = seen.clip.has_alpha
                items += [replace(item, has_alpha=alpha, window=window) for window in report.windows]
    gathered.reports = [
        FolderReport(**{**vars(report), "images": used.get(report.path, 0)}) for report in gathered.reports
    ]
    return items
