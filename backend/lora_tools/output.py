"""Checks where a tool writes to, before any work: never over another file unasked, never onto a disk without room."""

from __future__ import annotations

from pathlib import Path

from backend.base.errors import DiskFull, Refused
from backend.base.files import free_bytes, human_bytes
from backend.base.paths import resolve

HASHES = ("modelspec.hash_sha256", "sshs_model_hash", "sshs_legacy_hash")
"""Metadata that is true of one file alone."""


def output_path(text: str, overwrite: bool, inputs: tuple[Path, ...] = (), folder: bool = False) -> Path:
    """The path to write to. Refused where something is there that may not go, and where its folder is missing.

    A folder is never replaced.
    """
    path = resolve(text)
    if any(path == other or (path.exists() and other.exists() and path.samefile(other)) for other in inputs):
        raise Refused(f"{path} would replace what it is made of", "Choose another --out.")
    if folder and any(path.resolve().is_relative_to(other.resolve()) for other in inputs if other.is_dir()):
        raise Refused(f"{path} lies in the folder that is copied", "Choose another --out, beside it.")
    if path.exists() and (folder or path.is_dir()):
        raise Refused(f"{path} is there already", "Choose another --out; a folder is never replaced.")
    if path.exists() and not overwrite:
        raise Refused(f"{path} is there already", "Choose another --out, or add --overwrite.")
    if not folder and path.suffix != ".safetensors":
        raise Refused(f"{path.name} is no name of a .safetensors file", "Let --out end in .safetensors.")
    if not path.parent.is_dir():
        raise Refused(f"the folder {path.parent} does not exist", "Make it, or choose another --out.")
    return path


def check_room(path: Path, needed: int) -> None:
    """DiskFull where the disk that `path` lies on has less than `needed` bytes free."""
    free = free_bytes(path.parent)
    if free is not None and free < needed:
        text = f"No space left on the disk for {path}: it needs {human_bytes(needed)}, {human_bytes(free)} are free."
        raise DiskFull(text, "Free some space, or choose another folder, then try again.")
