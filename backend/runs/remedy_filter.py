"""Leaves out of a remedy what the run's settings have already: no advice that is followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Settings = Mapping[str, Any]

# A phrase of a remedy, what is left of it, the setting that it is about, and whether that is so already.
FOLLOWED: tuple[tuple[str, str, str, Callable[[Any], bool]], ...] = (
    ("Turn gradient_checkpointing on, lower", "Lower", "training.gradient_checkpointing", bool),
    (
        "ower batch_size (raise gradient_accumulation_steps to make up for it), then lower resolution",
        "ower resolution",
        "dataset.batch_size",
        lambda rows: rows == 1,
    ),
    (
        "Set shape_mode to static, or raise",
        "Raise",
        "compile.shape_mode",
        lambda mode: mode == "static",
    ),
    ("Set loader_workers to 0, or ", "", "dataset.loader_workers", lambda workers: workers == 0),
    ("Set loader_workers to 0, free", "Free", "dataset.loader_workers", lambda workers: workers == 0),
    (", set loader_workers to 0,", "", "dataset.loader_workers", lambda workers: workers == 0),
    (", use bf16 as mixed_precision", "", "training.mixed_precision", lambda precision: precision == "bf16"),
    ("Set compile_fullgraph to false, or compile", "Set compile", "compile.compile_fullgraph", lambda whole: not whole),
    ("Set attention to auto, or install", "Install", "compile.attention", lambda route: route == "auto"),
    ("Set attention to sdpa, then compile", "Set compile", "compile.attention", lambda route: route == "sdpa"),
    ("Set compile_backend to inductor", "Set compile to false", "compile.compile_backend", lambda b: b == "inductor"),
    (
        "Set mixed_precision to no and weight_dtype",
        "Set weight_dtype",
        "training.mixed_precision",
        lambda precision: precision == "no",
    ),
)


def shortened(remedy: str) -> set[str]:
    """All that `unfollowed` can make of a remedy, but not the remedy itself."""
    made = {remedy}
    for phrase, rest, *_ in FOLLOWED:
        made |= {each.replace(phrase, rest) for each in made if phrase in each}
    return {each[:1].upper() + each[1:] for each in made} - {remedy}


def unfollowed(remedy: str, settings: Settings | None) -> str:
    """The remedy without what `settings` (values by ``section.name``) have already; all of it where these are None."""
    for phrase, rest, path, is_followed in FOLLOWED if settings is not None else ():
        if phrase in remedy and settings is not None and path in settings and is_followed(settings[path]):
            remedy = remedy.replace(phrase, rest)
    return remedy[:1].upper() + remedy[1:]
