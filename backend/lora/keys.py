"""Names of a LoRA's tensors in files, by layout.

``transformer`` and ``unet`` are diffusers' (``<prefix>.<module path>.lora_A.weight``, no alpha); ``kohya_unet`` is that
of sd-scripts with diffusers' names (``lora_unet_<module path>.lora_down.weight``, points as underscores, with alpha).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PREFIX = "transformer."
"""In front of every key of a transformer; diffusers and ComfyUI load what carries it."""

LAYOUTS = ("transformer", "unet", "kohya_unet")

_UNET, _KOHYA = "unet.", "lora_unet_"
_HALVES = {"A": "lora_down.weight", "B": "lora_up.weight", "alpha": "alpha"}

_KEY = re.compile(r"(?P<path>.+)\.(?:lora_(?P<half>A|B)(?:\.[A-Za-z]\w*)?\.weight|(?P<alpha>alpha))")


def file_key(path: str, half: str, layout: str = "transformer") -> str:
    """The key of A, B or (in ``kohya_unet`` alone) alpha (`half`) of the layer at `path`."""
    if layout == "kohya_unet":
        return f"{_KOHYA}{path.replace('.', '_')}.{_HALVES[half]}"
    prefix = {"transformer": PREFIX, "unet": _UNET}[layout]
    return f"{prefix}{path}.lora_{half}.weight"


def kohya_keys(paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Key in ``kohya_unet`` -> module path and ``A``, ``B`` or ``alpha``: its names can't be read without the paths."""
    return {file_key(path, half, "kohya_unet"): (path, half) for path in paths for half in _HALVES}


def parse_key(key: str) -> tuple[str, str] | None:
    """Module path and ``A``, ``B`` or ``alpha`` of a key in this layout, with or without prefix; None for any other."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return match["path"].removeprefix(PREFIX).removeprefix(_UNET), match["half"] or "alpha"


def not_loadable(paths: Iterable[str], accepted: Sequence[str]) -> list[str]:
    """Module paths that no pattern of `accepted` takes whole: other programs would leave these layers out."""
    patterns = [re.compile(pattern) for pattern in accepted]
    return [path for path in paths if not any(pattern.fullmatch(path) for pattern in patterns)]
