"""Reading one part of a base model from disk: local files only, what is missing is named before anything is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers.utils.logging
import torch
import transformers.utils.logging

from backend.models import files
from backend.models.spec import Part
from backend.refused import Refused

# The run has a progress of its own; theirs would fill its log with control characters.
diffusers.utils.logging.disable_progress_bar()
transformers.utils.logging.disable_progress_bar()


def load_part(
    cls: Any, base: Path, part: Part, variant: str | None, dtype: torch.dtype, folder: Path | None = None
) -> Any:
    """The model of class `cls` that is `part` of the model at `base`, in `dtype` on the CPU.

    cls: any class with ``from_pretrained`` of diffusers or transformers. folder: read from this folder in place of the
    part's own (another VAE). Refused with every problem of the part's files.
    """
    where = folder or base / part.folder
    problems = files.check_part(where.parent, replace(part, folder=where.name), variant)
    if problems:
        raise Refused.of(problems)
    chosen = variant if variant and _has_variant(where, part, variant) else None
    try:
        # the keyword is called dtype in transformers 5 and torch_dtype in diffusers
        keyword = "dtype" if cls.__module__.startswith("transformers.") else "torch_dtype"
        return cls.from_pretrained(
            where, variant=chosen, local_files_only=True, use_safetensors=True, **{keyword: dtype}
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        text = f"{part.title} in {where} can't be loaded: {_first_line(error)}"
        raise Refused(
            text, f"Copy the folder {where.name} again from where the model came from.", files.SETTING
        ) from error


def _has_variant(folder: Path, part: Part, variant: str) -> bool:
    return any(f".{variant}." in path.name for path in files.weight_files(folder, part.weights, variant))


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
