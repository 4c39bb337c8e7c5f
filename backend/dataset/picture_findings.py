"""Puts into words what the pixels and files of pictures gave: transparency, frames, colour profiles, pipes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from backend.dataset.colour import UNUSABLE
from backend.dataset.items import Finding, count_of, name_files
from backend.dataset.scan_state import ScannedPicture, ScanState


def pixels(gathered: ScanState) -> list[Finding]:
    """Pictures with transparent parts or more than one frame."""
    usable = [picture for picture in gathered.found if picture.measured.fault is None]
    result = []
    clear = [picture for picture in usable if picture.measured.has_alpha]
    if clear:
        names = name_files([picture_name(picture, gathered) for picture in clear])
        text = f"{count_of(len(clear), 'image')} with transparent parts: {names}"
        remedy = "The setting transparency sets their background; their hidden colours are not trained."
        result.append(Finding("transparent", "note", text, remedy, paths_of(clear), "dataset.transparency"))
    moving = [picture for picture in usable if picture.measured.animated and not is_clip(picture, gathered)]
    if moving:
        names = name_files([picture_name(picture, gathered) for picture in moving])
        text = f"{count_of(len(moving), 'animated image')}: {names}"
        result.append(Finding("animated", "note", text, "Only the first frame is trained.", paths_of(moving)))
    return result


def is_clip(picture: ScannedPicture, gathered: ScanState) -> bool:
    """Whether it is trained as a clip."""
    return picture.measured.clip is not None and gathered.folders[picture.folder].clips is not None


def profiles(gathered: ScanState) -> list[Finding]:
    """Pictures whose colours are converted to sRGB, and those whose colour profile can't be used."""
    usable = [picture for picture in gathered.found if picture.measured.fault is None and picture.measured.profile]
    result = []
    lost = [picture for picture in usable if picture.measured.profile == UNUSABLE]
    if lost:
        names = name_files([picture_name(picture, gathered) for picture in lost])
        text = f"{count_of(len(lost), 'image')} with a colour profile that can't be used: {names}"
        remedy = "Their colours are read as sRGB and may be wrong; export them as sRGB."
        result.append(Finding("bad_profile", "warning", text, remedy, paths_of(lost)))
    converted = [picture for picture in usable if picture.measured.profile != UNUSABLE]
    if converted:
        kinds = Counter(picture.measured.profile for picture in converted)
        named = name_files([f"{kind} ({number:,})" for kind, number in kinds.most_common()])
        text = f"{count_of(len(converted), 'image')} in another colour profile than sRGB: {named}"
        result.append(Finding("profile", "note", text, "They are converted to sRGB.", paths_of(converted)))
    return result


def special_files(gathered: ScanState) -> list[Finding]:
    """Pipes, sockets and devices, which are left unopened."""
    special = [str(path) for files in gathered.walks.values() for path in files.special]
    if not special:
        return []
    text = f"{count_of(len(special), 'entry')} that is not a file but a pipe, socket or device: {name_files(special)}"
    if len(special) > 1:
        text = f"{len(special):,} entries that are not files but pipes, sockets or devices: {name_files(special)}"
    return [Finding("special_file", "warning", text, "They are left out; remove them.", tuple(special))]


def picture_name(picture: ScannedPicture, gathered: ScanState) -> str:
    """A picture's path below its chosen folder."""
    return _shown(picture.path, picture.folder, gathered)


def caption_name(picture: ScannedPicture, gathered: ScanState) -> str:
    """The path of a picture's caption file below its chosen folder."""
    assert picture.caption_path is not None
    return _shown(picture.caption_path, picture.folder, gathered)


def paths_of(pictures: Iterable[ScannedPicture]) -> tuple[str, ...]:
    """The full paths of pictures."""
    return tuple(str(one.path) for one in pictures)


def _shown(path: Path, folder: int, gathered: ScanState) -> str:
    """Below its chosen folder; with several folders, with that folder's name in front."""
    root = gathered.folders[folder].path
    # what a list names lies beside it, below it, or anywhere
    above = root.parent if folder in gathered.lists else root
    inner = path.relative_to(above) if path.is_relative_to(above) else Path(path.name)
    return str(inner if len(gathered.folders) == 1 else Path(root.name) / inner)
