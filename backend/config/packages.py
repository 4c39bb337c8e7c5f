"""Checks whether an optional package is installed and loads. Torch-free."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

PIP_NAMES = {
    "pytorch_optimizer": "pytorch-optimizer",
    "prodigyplus": "prodigy-plus-schedule-free",
    "came_pytorch": "came-pytorch",
    "lion_pytorch": "lion-pytorch",
    "flash_attn": "flash-attn",
    "flash_attn.cute": "flash-attn-4",
    "pynvml": "nvidia-ml-py",
}
"""What pip calls a package whose module has another name."""


def is_installed(module: str) -> bool:
    """Whether `module` (``package`` or ``package.part``) lies here. Imports nothing: a broken package counts."""
    root, _, inner = module.partition(".")
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    path = inner.replace(".", "/")
    places = [Path(place) / path for place in spec.submodule_search_locations or ()]
    return not inner or any(place.is_dir() or any(place.parent.glob(f"{place.name}.*")) for place in places)


def load_problem(module: str) -> str | None:
    """Why `module` can't be used, in words after its name; None when it loads. Imports it."""
    if not is_installed(module):
        return "is not installed"
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a binary package that does not fit this torch fails in its own way
        line = next(iter(str(error).splitlines()), "")
        return f"is installed but does not load ({type(error).__name__}: {line})"
    return None


def pip_command(module: str, problem: str = "is not installed") -> str:
    """The command that ends `problem`, as `load_problem` gave it: a first install, or another build."""
    root = module.partition(".")[0]
    name = PIP_NAMES.get(module) or PIP_NAMES.get(root, root)
    again = "" if problem.endswith("is not installed") else "--force-reinstall --no-deps "
    return f"pip install {again}{name}"


def install_remedy(module: str, problem: str = "is not installed") -> str:
    """What to do about `problem`, in words without a full stop."""
    first = "Install it" if problem.endswith("is not installed") else "Install a build of it that fits this torch"
    return f"{first}: {pip_command(module, problem)}"
