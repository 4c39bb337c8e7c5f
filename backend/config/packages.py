"""Checks whether an optional package is installed and loads. Torch-free."""

from __future__ import annotations

import importlib
import importlib.util
import re
from importlib import metadata
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
_ABSENT = "is not installed"
_BROKEN = "is installed but does not load"


def is_installed(module: str) -> bool:
    """Whether `module` (``package`` or ``package.part``) lies here. Imports nothing: a broken package counts.

    So does one that pip has installed and whose folder another package hides, as flash-attn may hide flash-attn-4's.
    """
    return _has_files(module) or _has_distribution(module)


def _has_distribution(module: str) -> bool:
    """Whether pip has installed the package that `module` comes with under a name of its own."""
    parts = module.split(".")
    names = (PIP_NAMES.get(".".join(parts[:count])) for count in range(len(parts), 1, -1))
    name = next(filter(None, names), None)
    if name is None:
        return False
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _has_files(module: str) -> bool:
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
        return _ABSENT
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a binary package that does not fit this torch fails in its own way
        line = next(iter(str(error).splitlines()), "")
        return f"is installed but does not load ({type(error).__name__}: {line})"
    return None


def about_package(title: str, problem: str) -> str:
    """`problem`, as `load_problem` gave it, as a sentence about the package that is called `title`."""
    if problem == _ABSENT:
        return f"{title} is not installed"
    return f"{title} is installed but does not load {problem.removeprefix(_BROKEN).strip()}"


def pip_command(module: str, problem: str = _ABSENT) -> str:
    """The command that ends `problem`, as `load_problem` gave it: a first install, what it needs, or another build."""
    parts = module.split(".")
    names = (PIP_NAMES.get(".".join(parts[:count])) for count in range(len(parts), 0, -1))
    name = next(filter(None, names), parts[0])
    again = "" if problem.endswith(_ABSENT) or _lacks_another(module, problem) else "--force-reinstall "
    return f"pip install {again}{'--no-deps ' if again else ''}{name}"


def install_remedy(module: str, problem: str = _ABSENT) -> str:
    """What to do about `problem`, in words without a full stop."""
    command = pip_command(module, problem)
    if problem.endswith(_ABSENT):
        return f"Install it: {command}"
    if _lacks_another(module, problem):
        return f"Install what it needs: {command}"
    return f"Install a build of it that fits this torch: {command}"


def _lacks_another(module: str, problem: str) -> bool:
    """Whether `module` does not load since a package that it imports is missing: pip installs what it names."""
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", problem)
    return missing is not None and missing[1] != module.partition(".")[0]
