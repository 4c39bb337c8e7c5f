"""Names of a LoRA's tensors in files: diffusers' layout, ``transformer.<module path>.lora_A.weight``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PREFIX = "transformer."
"""In front of every key of the denoiser; diffusers and ComfyUI load what carries it."""

_KEY = re.compile(r"(?P<path>.+)\.(?:lora_(?P<half>A|B)(?:\.[A-Za-z]\w*)?\.weight|(?P<alpha>alpha))")


def file_key(path: str, half: str) -> str:
    """The key of A or B (`half`) of the layer at `path`."""
    return f"{PREFIX}{path}.lora_{half}.weight"


def parse_key(key: str) -> tuple[str, str] | None:
    """Module path and ``A``, ``B`` or ``alpha`` of a key in this layout, with or without prefix; None for any other."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return match["path"].removeprefix(PREFIX), match["half"] or "alpha"


def not_loadable(paths: Iterable[str], accepted: Sequence[str]) -> list[str]:
    """Module paths that no pattern of `accepted` takes whole: other programs would leave these layers out."""
    patterns = [re.compile(pattern) for pattern in accepted]
    return [path for path in paths if not any(pattern.fullmatch(path) for pattern in patterns)]
