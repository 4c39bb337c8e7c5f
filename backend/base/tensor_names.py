"""Names free of torch.compile's wrappers, in every spelling, for load, save, target discovery and merge.

`torch.compile(module)` puts the module into a container, so that a name gains a part `_orig_mod`: `_orig_mod.x`,
`blocks.0._orig_mod.attn`, or, where a LoRA format writes dots as underscores, `lora_unet_blocks_0__orig_mod_attn`.
Our own compiling never does that; files and models of others do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")

# As a part of a dotted path; in the underscore spelling, where the dot before it is an underscore too; at a start.
_DOTTED = re.compile(r"(?:^|\.)_orig_mod(?=\.|$)")
_FLAT = re.compile(r"__orig_mod(?=[_.]|$)")
_FLAT_START = re.compile(r"(?:(?<=\.)|^)_orig_mod_")


def clean_key(name: str) -> str:
    """`name` without any `_orig_mod` part; unchanged if it has none."""
    if "_orig_mod" not in name:
        return name
    before = None
    while before != name:
        before = name
        name = _DOTTED.sub("", name).removeprefix(".")
        name = _FLAT_START.sub("", _FLAT.sub("", name))
    return name


def is_clean(names: Iterable[str]) -> bool:
    """Whether no name holds a wrapper's part."""
    return all(clean_key(name) == name for name in names)


def clean_keys(state_dict: Mapping[str, Value]) -> dict[str, Value]:
    """The same values under clean names, in the same order.

    ValueError when two names become one: the file then holds a model twice, and neither half may win in silence.
    """
    cleaned: dict[str, Value] = {}
    for name, value in state_dict.items():
        short = clean_key(name)
        if short in cleaned:
            raise ValueError(f"{name} and another key are both {short} without torch.compile's _orig_mod")
        cleaned[short] = value
    return cleaned
