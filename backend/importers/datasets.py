"""Reads a data set file of sd-scripts or musubi-tuner ([general], [[datasets]], subsets of these) as one flat table.

There a setting may stand at any of the three levels, the innermost rules. Here there is one for all folders, so where
those that stay differ in a number the largest is taken, and said. What stands only at a folder that is left out counts
for none of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from backend.importers.common_reasons import NO_VIDEOS
from backend.importers.notes import Fate, shown
from backend.importers.source import Source
from backend.importers.values import is_off, number

_PICTURES = ("image_dir", "image_directory", "image_jsonl_file")
_VIDEOS = ("video_directory", "video_jsonl_file")
_FOLDER = (*_PICTURES, *_VIDEOS)
_CONTROL = ("control_directory",)
_OWN = (*_FOLDER, *_CONTROL, "num_repeats", "subsets", "is_reg", "class_tokens")
_OWN += ("cache_directory", "metadata_file", "caption_prefix", "caption_suffix", "conditioning_data_dir")
_TEXTS = ("class_tokens", "caption_prefix", "caption_suffix", "metadata_file")
"""Texts of a folder, which have the same names here."""
_NO_PICTURES = {
    "video_directory": NO_VIDEOS,
    "video_jsonl_file": NO_VIDEOS,
}


AS_MANY = (
    "the other program repeats regularization images until they are as many as the others; Monotile goes by the "
    "repeats of the folder"
)
_RATES = (
    "without source_fps the other program takes every frame, whatever the rate; Monotile reads the rate of each file "
    "and takes frames by time"
)


class Row(NamedTuple):
    """Something that is not taken as it is: its path in the file, and why."""

    path: str
    why: str
    fate: Fate = "not offered"


class Dataset(NamedTuple):
    """folders: rows of dataset.folders. places: the path in the file of each. values: the other names, as if they were
    arguments. paths: name -> path. rows: what is not taken as it is."""

    folders: list[dict[str, Any]]
    places: list[str]
    values: dict[str, Any]
    paths: dict[str, str]
    rows: list[Row]


@dataclass(frozen=True)
class _Folder:
    """One folder of the file. values: all that holds for it. paths: where each of these stands. own: what stands at
    the folder itself. why: why it is left out; empty for one that stays."""

    place: str
    values: dict[str, Any]
    paths: dict[str, str]
    own: Mapping[str, Any]
    why: str = ""


def read_dataset(source: Source, videos: bool = False) -> Dataset:
    """Everything that the file says, of every level. videos: the family is trained on clips."""
    out = Dataset([], [], {}, {}, [])
    general = source.values.get("general")
    general = general if isinstance(general, Mapping) else {}
    for key, value in source.values.items():
        if key not in ("general", "datasets") or (key == "general" and value and not general):
            out.rows.append(Row(key, "it is outside of [general] and [[datasets]]"))
    folders = _folders(out, general, source.values["datasets"], videos)
    staying = [folder for folder in folders if not folder.why]
    for folder in staying:
        _take_folder(out, folder)
    # regularization images go by what holds for the subject
    staying = [folder for folder in staying if is_off(folder.values.get("is_reg"))] or staying
    names = dict.fromkeys(key for folder in staying for key in folder.values)
    if not staying:
        names = dict.fromkeys(general)
    for key in names:
        if key not in _OWN and key not in _NO_PICTURES:
            _common(out, key, staying, general)
    _unheard(out, folders)
    return out


def _folders(out: Dataset, general: Mapping[str, Any], datasets: list[Any], videos: bool) -> list[_Folder]:
    folders: list[_Folder] = []
    for place, dataset in enumerate(datasets):
        where = f"datasets[{place}]"
        if not isinstance(dataset, Mapping):
            out.rows.append(Row(where, "it is not a table"))
            continue
        subsets = dataset.get("subsets")
        nested = isinstance(subsets, list)
        outer = {key: value for key, value in dataset.items() if nested and key != "subsets"}
        rows = (
            [(row, f"{where}.subsets[{index}]") for index, row in enumerate(subsets)] if nested else [(dataset, where)]
        )
        for row, at in rows:
            if not isinstance(row, Mapping):
                out.rows.append(Row(at, "it is not a table"))
                continue
            paths = {key: f"general.{key}" for key in general}
            paths |= {key: f"{where}.{key}" for key in outer} | {key: f"{at}.{key}" for key in row}
            folder = _Folder(at, {**general, **outer, **row}, paths, {**outer, **row})
            folders.append(_Folder(at, folder.values, paths, folder.own, _left_out(out, folder, videos)))
    return folders


def _left_out(out: Dataset, folder: _Folder, videos: bool) -> str:
    """Why a folder can't stay, which is said once; empty for one that can."""
    for key, why in _NO_PICTURES.items():
        if not is_off(folder.values.get(key)) and not (videos and key in _FOLDER):
            out.rows.append(Row(f"{folder.place}.{key}", why))
            return why
    if not any(folder.own.get(key) for key in _FOLDER):
        names = _FOLDER if videos else _PICTURES
        either = ", ".join(names[:2])
        why = f"it names no image or video folder ({either})" if videos else f"it names no image folder ({either})"
        out.rows.append(Row(folder.place, why))
        return why
    return ""


def _take_folder(out: Dataset, folder: _Folder) -> None:
    row: dict[str, Any] = {"path": next(str(folder.own[key]) for key in _FOLDER if folder.own.get(key))}
    if "num_repeats" in folder.values:
        row["num_repeats"] = number(folder.values["num_repeats"])
    if not is_off(folder.values.get("is_reg")):
        row["is_reg"] = True
        out.rows.append(Row(folder.paths["is_reg"], AS_MANY, "near"))
    row |= {name: str(folder.values[name]) for name in _TEXTS if folder.values.get(name)}
    if folder.values.get("conditioning_data_dir"):
        row["mask_path"] = str(folder.values["conditioning_data_dir"])
    control = next((str(folder.values[key]) for key in _CONTROL if folder.values.get(key)), None)
    if control is not None:
        row["control_path"] = control
    if "cache_directory" in folder.values:
        why = "all images are cached in one folder (dataset.cache_dir)"
        out.rows.append(Row(folder.paths["cache_directory"], why))
    videos = next((key for key in _VIDEOS if folder.own.get(key)), None)
    if videos is not None and is_off(folder.values.get("source_fps")):
        out.rows.append(Row(f"{folder.place}.{videos}", _RATES, "near"))
    out.folders.append(row)
    out.places.append(folder.place)


def _common(out: Dataset, key: str, staying: list[_Folder], general: Mapping[str, Any]) -> None:
    """One value for all folders; where they differ, the largest, or none where each has its own."""
    if not staying:
        out.values[key], out.paths[key] = general[key], f"general.{key}"
        return
    having = [folder for folder in staying if key in folder.values]
    values = [folder.values.get(key) for folder in staying]
    differ = any(value != values[0] for value in values)
    source = max(having, key=lambda folder: _size(folder.values[key]))
    out.values[key], out.paths[key] = source.values[key], source.paths[key]
    if not differ:
        return
    shown_values = ", ".join(dict.fromkeys("no value" if value is None else shown(key, value) for value in values))
    numbers = isinstance(_first(source.values[key]), int | float)
    why = f"data sets differ in it ({shown_values}), and Monotile has one value for all: the first is used"
    if numbers:
        why = f"data sets differ in it ({shown_values}), and Monotile has one value for all: the largest is used"
    out.rows.append(Row(source.paths[key], why, "near"))


def _unheard(out: Dataset, folders: list[_Folder]) -> None:
    """A word for each name that stands only at folders that are left out, or is not the one that was taken."""
    named = {row.path for row in out.rows} | set(out.paths.values())
    for folder in folders:
        for key in folder.own:
            path = folder.paths[key]
            if path in named or (not folder.why and key in _OWN):
                continue
            named.add(path)
            why = "it belongs to a folder that is left out" if folder.why else "see the value that is used for all"
            out.rows.append(Row(path, why, "off"))


def _first(value: Any) -> Any:
    first = number(value[0] if isinstance(value, list) and value else value)
    return number(first.split(",")[0]) if isinstance(first, str) else first


def _size(value: Any) -> float:
    first = _first(value)
    return float(first) if isinstance(first, int | float) else 0.0
