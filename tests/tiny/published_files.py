"""Reads names and shapes of published files, written down by their makers' code (tests/models/golden)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def golden(name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The names and shapes of a published file, from its makers' code (golden/make_golden.py)."""
    listed = json.loads((Path(__file__).parents[1] / "models" / "golden" / f"{name}.json").read_text(encoding="utf-8"))[
        "tensors"
    ]
    out = {}
    for key, shape in listed.items():
        match = re.search(r"\{(\d+)-(\d+)\}", key)
        numbers = range(int(match[1]), int(match[2]) + 1) if match else [None]
        for number in numbers:
            name = key if match is None else key[: match.start()] + str(number) + key[match.end() :]
            out[name] = ("BF16", tuple(shape))
    return out


DIFFERS: dict[str, dict[str, Any]] = {
    "flux1-schnell": {"guidance_embeds": False},
    "sd3_medium": {"pos_embed_max_size": 192, "dual_attention_layers": [], "qk_norm": None},
    "sd3.5_large": {
        "num_layers": 38,
        "num_attention_heads": 38,
        "caption_projection_dim": 2432,
        "pos_embed_max_size": 192,
        "dual_attention_layers": [],
    },
}
