"""Defines the compile profiles: one name for six compile options."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from backend.base.problems import Problem
from backend.config.schema import Config, by_name

# What each profile stands for. All compile the blocks through inductor; what a shape costs differs.
#   balanced: every shape the plan lists gets kernels of its own.
#   max_speed: the same, and inductor times several kernels for each matrix product. Not max-autotune, which also
#   records CUDA graphs: cuda_graphs decides over that.
PROFILES: dict[str, dict[str, Any]] = {
    "balanced": {
        "compile": True,
        "compile_backend": "inductor",
        "compile_mode": "default",
        "compile_dynamic": "false",
        "compile_fullgraph": False,
        "compile_cache_size_limit": None,
    },
    "max_speed": {
        "compile": True,
        "compile_backend": "inductor",
        "compile_mode": "max-autotune-no-cudagraphs",
        "compile_dynamic": "false",
        "compile_fullgraph": False,
        "compile_cache_size_limit": None,
    },
}


def apply_profile(cfg: Config, written: Collection[str] = ()) -> list[Problem]:
    """Set the six options of ``cfg`` to what its profile says; with the profile ``custom`` they stay as they are.

    A compile that is switched off stays off. written: names of the options that the person wrote; one that says
    otherwise than the profile is a warning, never silently ignored. Applying twice changes nothing.
    """
    section = cfg.compile
    values = PROFILES.get(section.compile_profile)
    if values is None or not section.compile:
        return []
    ruled = [n for n in written if n in values and getattr(section, n) != values[n]]
    for name, value in values.items():
        setattr(section, name, value)
    if not ruled:
        return []
    names = ", ".join(f"{by_name()[n].label} ({n})" for n in ruled)
    return [
        Problem(
            f"compile.{ruled[0]}",
            None,
            f"the profile {section.compile_profile} replaces {names}",
            "Set compile_profile to custom to choose the options yourself",
            "warning",
        )
    ]
