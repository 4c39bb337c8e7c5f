"""Reads where the images are: a folder that the arguments name, or a data set file with all that it says."""

from __future__ import annotations

from typing import Any

from backend.config.file_kinds import DATA_SETS
from backend.families.table import FAMILIES
from backend.importers.datasets import AS_MANY
from backend.importers.names import read_name
from backend.importers.notes import Fate, Note, shown
from backend.importers.values import is_off
from backend.importers.work import Work

_FOLDERS = ("train_data_dir", "image_dir")
_TEXTS = {
    "caption_prefix": "caption_prefix",
    "caption_suffix": "caption_suffix",
    "in_json": "metadata_file",
    "conditioning_data_dir": "mask_path",
}
"""Arguments about captions and masks -> the column of the folder here."""


def read_folder(work: Work) -> None:
    """The folder among the arguments, and what became of the data set file that they name."""
    reg = work.values.get("reg_data_dir")
    regular = [{"path": reg.strip(), "is_reg": True}] if isinstance(reg, str) and reg.strip() else []
    named = any(isinstance(path := work.values.get(key), str) and path.strip() for key in _FOLDERS)
    if regular and not named:
        work.note("reg_data_dir", "off", f"it is used only beside {_FOLDERS[0]}")
    elif "reg_data_dir" in work.values:
        work.note("reg_data_dir", "near" if regular else "off", AS_MANY if regular else "empty", "dataset.folders")
    texts = _texts(work)
    for key in _FOLDERS:
        path = work.values.get(key)
        if isinstance(path, str) and path.strip():
            rows: list[dict[str, Any]] = [{"path": path.strip(), **texts}, *regular]
            work.take("dataset.folders", rows, key)
            work.note(key, "taken", "", "dataset.folders")
        elif key in work.values:
            work.note(key, "off", "empty")
    if "enable_bucket" in work.values:
        near = "images always keep their shape; the other program cropped them to a square"
        off = is_off(work.values["enable_bucket"])
        work.note("enable_bucket", "near" if off else "not needed", near if off else "it is always on")
    if "dataset_config" in work.values:
        path = work.values["dataset_config"]
        if work.dataset is None and not is_off(path):
            work.note("dataset_config", "not offered", "import that file together with this one: add it")
        else:
            work.note("dataset_config", "off" if is_off(path) else "taken")


def read_masks(work: Work) -> None:
    """Whether the masks of folders count, and that their loss is not normalised there."""
    key = "masked_loss"
    on = not is_off(work.values.get(key))
    rows = [row for row in work.ours.get("dataset.folders", []) if "mask_path" in row]
    if rows and not on and work.kind not in DATA_SETS:
        for row in rows:
            why = f"the other program uses it only if {key} is on"
            work.notes.append(Note("conditioning_data_dir", "off", why, None, None, row.pop("mask_path")))
        rows = []
    has = bool(rows) or work.ours.get("masks.alpha_mask") is True
    if key in work.values:
        missing = on and not has
        why = "no folder names its masks: set mask_path in dataset.folders" if missing else ""
        work.note(key, "near" if missing else "taken" if on else "off", why, "dataset.folders" if has else None)
    if has:
        work.take("masks.normalize_masked_area_loss", False, key)


def _texts(work: Work) -> dict[str, Any]:
    """What the arguments say of the captions and masks of their folder."""
    row = {}
    for key, column in _TEXTS.items():
        text = work.values.get(key)
        if isinstance(text, str) and text.strip():
            row[column] = text.strip()
            work.note(key, "taken", "", "dataset.folders")
        elif key in work.values:
            work.note(key, "off", "empty")
    return row


def read_lines(work: Work) -> None:
    """Where wildcards are on, sd-scripts draws one of the lines of a caption file too."""
    if work.ours.get("captions.enable_wildcard") is True:
        work.take("captions.caption_lines", True, work.origin["captions.enable_wildcard"])


def read_data_set(work: Work) -> None:
    """Everything that the data set file says, where there is one: name by name, then its folders."""
    if work.dataset is None or work.data is None:
        return
    data, lines, names = work.data, work.dataset.lines, work.dataset.names

    def called(path: str) -> str:
        return names.get(path, path)

    def say(key: str, fate: Fate, why: str = "", path: str | None = None) -> None:
        where = data.paths.get(key, key)
        work.notes.append(Note(called(where), fate, why, lines.get(where), path, shown(key, data.values.get(key))))

    for key, value in data.values.items():
        if key == "enable_bucket":
            say(key, "near" if is_off(value) else "not needed", "images always keep their shape")
        else:
            read_name(work, key, value, say)
    work.notes += [Note(called(row.path), row.fate, row.why, lines.get(row.path)) for row in data.rows]
    if data.folders:
        folders = [_controlled(work, dict(row), called(at)) for row, at in zip(data.folders, data.places, strict=True)]
        work.take("dataset.folders", folders, "datasets")
        work.notes.append(Note("datasets", "taken", "", lines.get("datasets"), "dataset.folders"))


def _controlled(work: Work, row: dict[str, Any], place: str) -> dict[str, Any]:
    """A folder without its control images where the family takes none; the folder itself stays."""
    if "control_path" in row and FAMILIES[work.family_here].controls is None:
        path = row.pop("control_path")
        why = f"{work.family_here} takes no control images; the folder itself is used"
        if not work.family:
            why = (
                f"{work.family_here} takes no control images; choose a family that edits images, such as "
                "--family flux_kontext"
            )
        work.notes.append(Note(f"{place} control images", "not offered", why, None, None, path))
    return row
