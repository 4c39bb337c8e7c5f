"""Where the pictures are: a folder that the arguments name, or a data set file with all that it says."""

from __future__ import annotations

from backend.importers.datasets import Row
from backend.importers.names import read_name
from backend.importers.notes import Fate, Note, shown
from backend.importers.values import is_off
from backend.importers.work import Work


def read_folder(work: Work) -> None:
    """The folder among the arguments, and what became of the data set file that they name."""
    for key in ("train_data_dir", "image_dir"):
        path = work.values.get(key)
        if isinstance(path, str) and path.strip():
            work.take("dataset.folders", [{"path": path.strip()}], key)
            work.note(key, "taken", "", "dataset.folders")
        elif key in work.values:
            work.note(key, "off", "empty there")
    if "enable_bucket" in work.values:
        near = "pictures always keep their shape here; there they were cropped to a square"
        off = is_off(work.values["enable_bucket"])
        work.note("enable_bucket", "near" if off else "not needed", near if off else "it is always on")
    if "dataset_config" in work.values:
        path = work.values["dataset_config"]
        if work.dataset is None and not is_off(path):
            work.note("dataset_config", "not offered", "that file is brought over together with this one: add it")
        else:
            work.note("dataset_config", "off" if is_off(path) else "taken")


def read_data_set(work: Work) -> None:
    """Everything that the data set file says, where there is one: name by name, then its folders."""
    if work.dataset is None or work.data is None:
        return
    found, lines = work.data, work.dataset.lines

    def say(key: str, fate: Fate, why: str = "", path: str | None = None) -> None:
        where = found.paths.get(key, key)
        work.notes.append(Note(where, fate, why, lines.get(where), path, shown(key, found.values.get(key))))

    for key, value in found.values.items():
        if key == "enable_bucket":
            say(key, "near" if is_off(value) else "not needed", "pictures always keep their shape here")
        elif key == "class_tokens":
            work.take("dataset.trigger_word", value, key)
            say(key, "near", "put in front of every caption, not only where there is none", "dataset.trigger_word")
        else:
            read_name(work, key, value, say)
    rows: tuple[tuple[Fate, list[Row]], ...] = (("not offered", found.left), ("near", found.near))
    work.notes += [Note(row.path, fate, row.why, lines.get(row.path)) for fate, each in rows for row in each]
    if found.folders:
        work.take("dataset.folders", found.folders, "datasets")
        work.notes.append(Note("datasets", "taken", "", lines.get("datasets"), "dataset.folders"))
