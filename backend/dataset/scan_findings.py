"""Puts what a scan found into words: what is wrong or odd, which files it is about, and the fix."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from backend.dataset import caption_tables, clip_findings
from backend.dataset.class_images import DRAW_CLASS_IMAGES
from backend.dataset.file_lists import is_list
from backend.dataset.items import Finding, Item, count_of, name_files
from backend.dataset.picture_findings import caption_name, paths_of, picture_name, pixels, profiles, special_files
from backend.dataset.scan_state import FolderSpec, ScannedPicture, ScanState
from backend.dataset.walk import Walk

# Up to here every damaged picture gets its own sentence.
_SINGLY = 20
_TEXT_ENDINGS = (".txt", ".caption", ".cap", ".tags", ".text")


def folder_fault(spec: FolderSpec) -> Finding | None:
    """Why a chosen folder can't be walked, or None."""
    path = spec.path
    if is_list(path):
        return None
    if path.is_file():
        return Finding(
            "not_a_folder",
            "error",
            f"{path} is a file, not a folder",
            f"Choose the folder that contains it: {path.parent}, or a list of images (.jsonl).",
            (str(path),),
            spec.setting,
        )
    if not path.is_dir():
        above = next((parent for parent in path.parents if parent.is_dir()), None)
        hint = f"{above} is there, but nothing called {_below(path, above)}" if above else "no part of it exists"
        return Finding(
            "missing_folder",
            "error",
            f"The image folder {path} does not exist: {hint}",
            "Choose a folder that exists; maybe a disk is not connected."
            if spec.class_images is None
            else f"Draw its {spec.class_images} images: {DRAW_CLASS_IMAGES}.",
            (str(path),),
            spec.setting,
        )
    return None


def broken_list(spec: FolderSpec, error: OSError | ValueError) -> Finding:
    """The error of a list of files that can't be read."""
    why = str(error.strerror if isinstance(error, OSError) else error)
    if isinstance(error, UnicodeError):
        why = "it is not text in UTF-8"
    text, remedy = f"The list {spec.path} can't be read: {why}", "Save it as UTF-8, one JSON object a line."
    return Finding("broken_list", "error", text, remedy, (str(spec.path),), spec.setting)


def no_pictures(spec: FolderSpec, files: Walk) -> Finding:
    """The error of a folder without a single picture, with what is in it instead."""
    if files.closed:
        text, remedy = f"The folder {spec.path} can't be read", "Give yourself permission to read it."
    elif files.unread:
        endings = ", ".join(sorted({path.suffix.lower() for path in files.unread}))
        text = f"{spec.path} contains {count_of(len(files.unread), 'image')} of a kind that can't be read ({endings})"
        remedy = "Convert them to PNG, JPEG or WebP."
    else:
        inside = f"only {count_of(files.other.total(), 'other file')}" if files.other else "it is empty"
        where = "" if is_list(spec.path) else " or its sub-folders"
        text = f"There is no image {'or video ' if spec.clips else ''}in {spec.path}{where}: {inside}"
        kinds = "images (png, jpg, jpeg, webp, bmp, tif, avif)"
        videos = " or videos (mp4, mov, mkv, webm, avi, gif)" if spec.clips else ""
        remedy = f"Choose the folder with the {kinds}{videos}."
        if spec.class_images is not None and not files.other:
            remedy = f"Draw its {spec.class_images} images: {DRAW_CLASS_IMAGES}."
    return Finding("no_pictures", "error", text, remedy, (str(spec.path),), spec.setting)


def findings(gathered: ScanState, items: Sequence[Item]) -> list[Finding]:
    """Everything else there is to say, errors and warnings first."""
    result = [
        *_damaged(gathered),
        *_unread(gathered),
        *_closed(gathered),
        *_captions(gathered),
        *_lists(gathered),
        *_twice(gathered, items),
        *_folder_names(gathered),
        *special_files(gathered),
        *pixels(gathered),
        *profiles(gathered),
        *_clips(gathered, items),
        *caption_tables.findings(gathered),
        *_leftovers(gathered),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(result, key=lambda finding: order[finding.severity])


def _clips(gathered: ScanState, items: Sequence[Item]) -> list[Finding]:
    rule = next((spec.clips for spec in gathered.folders if spec.clips is not None), None)
    if rule is None:
        return []
    return [*clip_findings.findings(gathered.clips, rule), *clip_findings.too_few(items, rule)]


def add_counts(counters: Iterable[Counter[str]]) -> dict[str, int]:
    """The sum of counters, as a plain dict in a fixed order."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return {reason: total[reason] for reason in sorted(total)}


def other_files(gathered: ScanState) -> dict[str, int]:
    """Files that are neither pictures nor captions in use, by ending."""
    counts = Counter(add_counts(files.other for files in gathered.walks.values()))
    for caption in gathered.used_captions:
        counts[os.path.splitext(caption)[1].lower()] -= 1
    return {ending: number for ending, number in sorted(counts.items()) if number > 0}


def _damaged(gathered: ScanState) -> list[Finding]:
    bad = [
        picture
        for picture in gathered.found
        if picture.measured.fault is not None and picture.path not in gathered.excluded
    ]
    remedy = "It is left out; copy or export it again, or remove it."
    if len(bad) <= _SINGLY:
        return [
            Finding(
                "unreadable",
                "warning",
                f"{picture_name(picture, gathered)} can't be used: {picture.measured.fault}",
                remedy,
                (str(picture.path),),
            )
            for picture in bad
        ]
    names = [picture_name(picture, gathered) for picture in bad]
    text = f"{count_of(len(bad), 'image')} can't be used: {name_files(names)}; the first: {bad[0].measured.fault}"
    remedy = "They are left out; copy or export them again, or remove them."
    return [Finding("unreadable", "warning", text, remedy, paths_of(bad))]


def _unread(gathered: ScanState) -> list[Finding]:
    by_ending: dict[str, list[Path]] = defaultdict(list)
    for files in gathered.walks.values():
        # A folder with nothing else is an error of its own.
        for path in files.unread if files.pictures else ():
            by_ending[path.suffix.lower()].append(path)
    return [
        Finding(
            "unread_kind",
            "warning",
            f"{count_of(len(paths), f'{ending} file')} can't be read: {name_files([path.name for path in paths])}",
            "Convert them to PNG, JPEG or WebP, or remove them; until then they are left out.",
            tuple(map(str, paths)),
        )
        for ending, paths in sorted(by_ending.items())
    ]


def _closed(gathered: ScanState) -> list[Finding]:
    closed = [str(path) for files in gathered.walks.values() if files.pictures for path in files.closed]
    if not closed:
        return []
    text = f"{count_of(len(closed), 'sub-folder')} can't be opened: {name_files(closed)}"
    return [Finding("closed_folder", "warning", text, "Give yourself permission to read them.", tuple(closed))]


def _captions(gathered: ScanState) -> list[Finding]:
    usable = [
        picture
        for picture in gathered.found
        if picture.measured.fault is None and picture.repeats and picture.path not in gathered.excluded
    ]
    result = []
    for picture in usable:
        if picture.caption_fault is not None:
            is_json = picture.caption_path is not None and picture.caption_path.suffix.lower() == ".json"
            result.append(
                Finding(
                    "bad_caption",
                    "warning",
                    f"The caption {caption_name(picture, gathered)} can't be used: {picture.caption_fault}",
                    f"{'Correct it' if is_json else 'Save it as UTF-8'}; until then its image is left out.",
                    (str(picture.caption_path),),
                )
            )
    foreign = [picture for picture in usable if picture.encoding == "cp1252"]
    if foreign:
        names = name_files([caption_name(picture, gathered) for picture in foreign])
        result.append(
            Finding(
                "cp1252_caption",
                "warning",
                f"{count_of(len(foreign), 'caption')} not in UTF-8, read as Windows-1252: {names}",
                "Check the text, and save it as UTF-8.",
                tuple(str(picture.caption_path) for picture in foreign),
            )
        )
    empty = [
        picture for picture in usable if picture.caption_path and not picture.caption and picture.caption_fault is None
    ]
    if empty:
        names = name_files([caption_name(picture, gathered) for picture in empty])
        result.append(
            Finding(
                "empty_caption",
                "warning",
                f"{count_of(len(empty), 'caption file')} without text: {names}",
                f"Write what the image shows, or leave it empty: it then trains with {_instead(gathered, empty)}.",
                tuple(str(picture.caption_path) for picture in empty),
            )
        )
    return result + _missing_captions(gathered, usable)


def _instead(gathered: ScanState, pictures: Iterable[ScannedPicture]) -> str:
    """What pictures without caption train with; regularization images get no trigger word."""
    specs = (gathered.folders[picture.folder] for picture in pictures)
    words = {spec.trigger_word or gathered.trigger_word for spec in specs if not spec.is_reg} - {None, ""}
    if len(words) > 1:
        return "only the trigger word of its folder"
    return f"only the trigger word {words.pop()!r}" if words else "an empty caption"


def _lists(gathered: ScanState) -> list[Finding]:
    """Lines of lists that can't be used, and captions that files have in the place of the list."""
    result = []
    for index, listed in gathered.lists.items():
        spec = gathered.folders[index]
        if listed.faults:
            number, why = next(iter(listed.faults.items()))
            text = f"{count_of(len(listed.faults), 'line')} of {spec.path.name} can't be used; line {number}: {why}"
            result.append(Finding("list_lines", "warning", text, "", (str(spec.path),), spec.setting))
    both = [each for each in gathered.found if each.listed is not None and each.caption_path is not None]
    if both:
        names = name_files([picture_name(each, gathered) for each in both])
        text = f"{count_of(len(both), 'listed image')} with a caption file, which counts before the list: {names}"
        result.append(Finding("listed_captions", "warning", text, "Remove the files to use the list.", paths_of(both)))
    return result


def _missing_captions(gathered: ScanState, usable: list[ScannedPicture]) -> list[Finding]:
    alone = [picture for picture in usable if picture.is_alone]
    elsewhere = _other_endings(gathered, alone)
    # a folder's own caption is no reason to be silent about texts that lie there and are not read
    missing = alone if elsewhere else [picture for picture in alone if not picture.caption]
    if not missing:
        return []
    instead = _instead(gathered, missing)
    remedy = f"Put a text file with the same name next to each image; without one, it trains with {instead}."
    if elsewhere:
        remedy = f"Files ending in {elsewhere} are next to them: set caption_extension to that if they are captions."
    if len(missing) < len(usable):
        names = name_files([picture_name(picture, gathered) for picture in missing])
        text = f"{len(missing):,} of {len(usable):,} images have no caption ({gathered.caption_extension}): {names}"
    elif len(usable) == 1:
        text = f"The image has no caption ({gathered.caption_extension})"
    else:
        text = f"None of the {len(usable):,} images has a caption ({gathered.caption_extension})"
    kind = "missing_caption" if len(missing) < len(usable) else "no_captions"
    return [Finding(kind, "warning", text, remedy, paths_of(missing), "dataset.caption_extension")]


def _other_endings(gathered: ScanState, missing: list[ScannedPicture]) -> str:
    """The ending of text files that lie beside most of the pictures without caption, if there is one."""
    stems = {os.path.splitext(picture.path)[0] for picture in missing}
    counts: Counter[str] = Counter()
    for files in gathered.walks.values():
        for text in files.texts:
            stem, ending = os.path.splitext(text)
            if stem in stems and ending.lower() in _TEXT_ENDINGS:
                counts[ending.lower()] += 1
    best = max(counts, key=lambda ending: counts[ending], default="")
    return best if counts[best] * 2 >= len(missing) else ""


def _twice(gathered: ScanState, items: Sequence[Item]) -> list[Finding]:
    real = {report.path: os.path.realpath(report.path) for report in gathered.reports}
    by_place: dict[tuple[str, str], list[str]] = defaultdict(list)
    by_key: dict[str, list[Item]] = defaultdict(list)
    heads = {item.path: item.window for item in reversed(items)}
    for item in (item for item in items if item.window == heads[item.path]):
        by_place[real[str(item.path.parent)], item.path.name].append(str(item.path))
        by_key[item.key].append(item)
    result = []
    chosen_twice = [paths[0] for paths in by_place.values() if len(paths) > 1]
    if chosen_twice:
        text = f"{count_of(len(chosen_twice), 'image')} in more than one of the chosen folders"
        remedy = "They are trained once for each; remove the inner folder from the list if you do not want that."
        result.append(Finding("chosen_twice", "warning", text, remedy, tuple(chosen_twice)))
    several = [same for same in by_key.values() if len(same) > 1]
    copies = [same for same in several if len({os.path.realpath(item.path) for item in same}) > 1]
    if copies:
        pairs = name_files([f"{same[1].path.name} = {same[0].path.name}" for same in copies])
        text = f"{count_of(len(copies), 'image')} in more than one copy: {pairs}"
        remedy = "Every copy is trained, so these count more; delete copies that you do not want."
        names = tuple(str(item.path) for same in copies for item in same)
        result.append(Finding("copies", "warning", text, remedy, names))
    return result


def _folder_names(gathered: ScanState) -> list[Finding]:
    result = []
    for report in gathered.reports:
        name = Path(report.path).name
        if report.offer is not None:
            text = (
                f"The chosen folder is called {name}; the number in its own name is not used: "
                f"{count_of(report.repeats, 'repeat')} of each image"
            )
            remedy = f"Choose {report.offer} to use such names, or set num_repeats to {report.named_repeats}."
            result.append(Finding("named_folder", "warning", text, remedy, (report.path,)))
        elif report.repeats == 0:
            text = f"{name} is left out with its {count_of(report.images, 'image')}: its name sets 0 repeats"
            result.append(
                Finding("zero_repeats", "warning", text, f"Rename it to 1_{name[2:]} to use it.", (report.path,))
            )
    named = [report for report in gathered.reports if not report.chosen and report.named_repeats is not None]
    if named:
        # Sub-folders beside them that carry no number have their repeats listed as well.
        others = [report for report in gathered.reports if not report.chosen and report.named_repeats is None]
        repeats = [f"{Path(r.path).name} x {r.repeats}" for r in (*named, *others)]
        paths = tuple(r.path for r in (*named, *others))
        result.append(Finding("final_repeats", "note", f"Repeats by folder name: {', '.join(repeats)}", "", paths))
    return result


def _leftovers(gathered: ScanState) -> list[Finding]:
    result = []
    by_caption: dict[str, list[ScannedPicture]] = defaultdict(list)
    for picture in gathered.found:
        if picture.caption_path is not None:
            by_caption[str(picture.caption_path)].append(picture)
    shared = {caption: users for caption, users in by_caption.items() if len({user.path for user in users}) > 1}
    if shared:
        names = name_files([" and ".join(user.path.name for user in users) for users in shared.values()])
        text = f"{count_of(len(shared), 'caption')} used by more than one image of the same name: {names}"
        result.append(Finding("shared_caption", "note", text, "", tuple(shared)))
    ending = gathered.caption_extension.lower()
    lone = sorted(
        text
        for files in gathered.walks.values()
        for text in files.texts
        if text.lower().endswith(ending) and text not in gathered.used_captions
    )
    if lone:
        text = f"{count_of(len(lone), f'{ending} file')} without an image: {name_files([Path(p).name for p in lone])}"
        result.append(Finding("lone_caption", "note", text, "", tuple(lone)))
    return result


def _below(path: Path, above: Path) -> str:
    return path.relative_to(above).parts[0]
