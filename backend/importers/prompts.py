"""Reads sample prompts of the other programs: one on each line, as in ``a cat --w 1024 --d 1 --n words``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from backend.config.sections.sampling import CONTROL_IMAGES
from backend.importers import tables
from backend.importers.notes import Note
from backend.importers.values import is_off, number
from backend.importers.work import Work

_FLAG = re.compile(r"\s--(?=[A-Za-z]{1,4}(\s|$))")
# Flag -> our column. --l is the scale of classifier-free guidance, --g the one that the model receives.
COLUMNS = {
    "w": "width", "h": "height", "d": "seed", "s": "steps", "l": "true_cfg_scale", "g": "guidance_scale",
    "n": "negative_prompt", "ci": "control_image", "i": "control_image", "f": "frames",
}  # fmt: skip
_WHY = {
    "ss": "samples use the Euler sampler", "fs": "samples use the model's own shift",
    "cn": "ControlNets are not supported", "ei": "a video can start from an image, but not end with one",
    "of": "FramePack's one-frame mode is not supported",
    "ctr": "guidance is used in every step", "rcfg": "guidance is not normalized",
}  # fmt: skip
_TEXTS = ("negative_prompt", "control_image")


def bring_prompts(work: Work) -> None:
    """The prompts of the arguments, as they are or in a file that these name."""
    prompts = work.values.get("sample_prompts")
    if "sample_prompts" not in work.values or is_off(prompts):
        if "sample_prompts" in work.values:
            work.note("sample_prompts", "off", "empty")
        return
    text = str(prompts)
    if "\n" not in text and re.search(r"\.(txt|toml|json)$", text.strip()):
        path = _beside(work.source.folder, text.strip())
        if path is None or path.suffix != ".txt":
            why = "only .txt files with one prompt on each line are read; add the prompts on the Sampling tab"
            if path is None:
                why = "the file does not exist; add the prompts on the Sampling tab"
            work.note("sample_prompts", "not offered", why)
            return
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    side = tables.SAMPLE_SIDE.get(work.kind, 512)
    usual = {"width": side, "height": side, **tables.SAMPLES.get(work.family, tables.OTHER_SAMPLES)}
    rows, left = read_prompts(text, usual)
    work.take("sampling.prompts", rows, "sample_prompts")
    work.note("sample_prompts", "taken", "", "sampling.prompts")
    for line, flag, why in left:
        work.notes.append(Note(f"sample_prompts {flag}", "not offered", f"prompt line {line}: {why}"))


def read_prompts(text: str, usual: dict[str, Any]) -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
    """(rows of sampling.prompts, [(line, flag, why it is not taken)]).

    usual: what the other program draws with where a line says nothing, by our column.
    """
    rows: list[dict[str, Any]] = []
    left: list[tuple[int, str, str]] = []
    for line, raw in enumerate(text.splitlines(), 1):
        words = raw.strip()
        if not words or words.startswith("#"):
            continue
        prompt, *flags = _pieces(words)
        row: dict[str, Any] = {"prompt": prompt.strip(), **usual}
        for flag in flags:
            name, _, argument = flag.partition(" ")
            name = name.lower()
            column = COLUMNS.get(name)
            if column is None:
                left.append((line, f"--{name}", _WHY.get(name, "an unknown option")))
            elif column in CONTROL_IMAGES:
                left_over = [each for each in CONTROL_IMAGES if each not in row]
                if left_over:
                    row[left_over[0]] = _value(column, argument.strip())
                else:
                    left.append((line, f"--{name}", f"a sample has {len(CONTROL_IMAGES)} control images at most"))
            else:
                row[column] = _value(column, argument.strip())
        scale = row.get("true_cfg_scale")
        if isinstance(scale, int | float) and scale < 1:
            row["true_cfg_scale"] = 1
        rows.append(row)
    return rows, left


def _pieces(words: str) -> list[str]:
    places = [match.start() for match in _FLAG.finditer(words)]
    ends = [*places, len(words)]
    return [words[: ends[0]], *(words[a:b].strip()[2:] for a, b in zip(places, ends[1:], strict=True))]


def _value(column: str, text: str) -> Any:
    if column not in _TEXTS:
        return number(text)
    if column == "control_image":
        return text.strip("\"'")
    return text


def _beside(folder: Path | None, name: str) -> Path | None:
    """A file named in another: as it is, or in the folder of that one."""
    for path in (Path(name).expanduser(), *([folder / name] if folder else [])):
        if path.is_file() and (path.is_absolute() or folder is not None):
            return path
    return None
