"""A data set file of sd-scripts or musubi-tuner: [general], [[datasets]] and [[datasets.subsets]], as one flat table.

There a setting may stand at any of the three levels, the innermost rules. Here there is one for all folders, so where
data sets differ the largest is taken and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backend.importers.source import Source
from backend.importers.values import is_off, number

_FOLDER = ("image_dir", "image_directory")
_CONTROL = ("control_directory",)
_OWN = (*_FOLDER, *_CONTROL, "num_repeats", "subsets", "is_reg", "cache_directory")
_NO_PICTURES = {
    "video_directory": "videos are not offered",
    "video_jsonl_file": "videos are not offered",
    "image_jsonl_file": "pictures are found in folders, captions beside them",
    "metadata_file": "pictures are found in folders, captions beside them",
    "is_reg": "regularisation pictures are not offered; the folder is left out",
}


class Row(NamedTuple):
    """Something that is not taken as it is: its path in the file, and why."""

    path: str
    why: str


class Dataset(NamedTuple):
    """folders: rows of dataset.folders. values: the other names, as if they were arguments. paths: name -> path."""

    folders: list[dict[str, Any]]
    values: dict[str, Any]
    paths: dict[str, str]
    left: list[Row]
    near: list[Row]


def read_dataset(source: Source) -> Dataset:
    """Everything that the file says, of every level."""
    out = Dataset([], {}, {}, [], [])
    general = source.values.get("general")
    general = general if isinstance(general, Mapping) else {}
    seen: dict[str, list[tuple[Any, str]]] = {}
    for key in source.values:
        if key not in ("general", "datasets"):
            out.left.append(Row(key, "it stands outside [general] and [[datasets]]"))
    for key, value in general.items():
        seen[key] = [(value, f"general.{key}")]
    told: dict[str, list[tuple[Any, str]]] = {}
    for number_, dataset in enumerate(source.values["datasets"]):
        where = f"datasets[{number_}]"
        if not isinstance(dataset, Mapping):
            out.left.append(Row(where, "it is no table"))
            continue
        subsets = dataset.get("subsets")
        if isinstance(subsets, list):
            rows = [(row, f"{where}.subsets[{index}]") for index, row in enumerate(subsets)]
        else:
            rows = [(dataset, where)]
        outer = {key: value for key, value in dataset.items() if isinstance(subsets, list) and key != "subsets"}
        for key, value in outer.items():
            told.setdefault(key, []).append((value, f"{where}.{key}"))
        for row, place in rows:
            if not isinstance(row, Mapping):
                out.left.append(Row(place, "it is no table"))
                continue
            _folder(out, {**general, **outer, **row}, row, place)
            for key, value in row.items():
                if key not in _OWN and key not in _NO_PICTURES:
                    told.setdefault(key, []).append((value, f"{place}.{key}"))
    for key, found in (seen | told).items():
        if key not in _OWN:
            _common(out, key, found)
    return out


def _folder(out: Dataset, all_: Mapping[str, Any], row: Mapping[str, Any], place: str) -> None:
    for key, why in _NO_PICTURES.items():
        if not is_off(all_.get(key)):
            out.left.append(Row(f"{place}.{key}", why))
            return
    path = next((str(row[key]) for key in _FOLDER if row.get(key)), None)
    if path is None:
        out.left.append(Row(place, "it names no folder of pictures (image_dir, image_directory)"))
        return
    folder: dict[str, Any] = {"path": path}
    if "num_repeats" in all_:
        folder["num_repeats"] = number(all_["num_repeats"])
    control = next((str(row[key]) for key in _CONTROL if row.get(key)), None)
    if control is not None:
        folder["control_path"] = control
    if "cache_directory" in row:
        out.left.append(Row(f"{place}.cache_directory", "pictures are cached in a folder for all (dataset.cache_dir)"))
    out.folders.append(folder)


def _common(out: Dataset, key: str, found: list[tuple[Any, str]]) -> None:
    """One value for all folders."""
    value, path = max(found, key=lambda pair: _size(pair[0]))
    out.values[key], out.paths[key] = value, path
    if any(each != value for each, _ in found):
        out.near.append(Row(path, "data sets differ in it, and here there is one for all: the largest is taken"))


def _size(value: Any) -> float:
    first = number(value[0] if isinstance(value, list) and value else value)
    if isinstance(first, str):
        first = number(first.split(",")[0])
    return float(first) if isinstance(first, int | float) else 0.0
