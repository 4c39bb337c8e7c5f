"""Finds what inductor needs from the machine, without torch: C compiler, Python headers, Triton, MSVC.

Quick look-ups only; that it all works together is proven by `doctor`, which compiles and runs something.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from backend.setup.system import remedy

# Compiled training is tested from this torch on; below it, checkpointed LoRA blocks broke their graphs.
TORCH_FLOOR = (2, 11)

_CPP = ("g++", "clang++", "c++")
_C = ("gcc", "clang", "cc")
_ERROR_LINE = re.compile(r"\b(?:error|ld): ")


def is_windows() -> bool:
    return sys.platform == "win32"


def compiler(kind: str = "cpp") -> str | None:
    """Path of the C ("c") or C++ ("cpp") compiler that torch would take; None when there is none."""
    setting = os.environ.get("CXX" if kind == "cpp" else "CC")
    if setting:
        return shutil.which(setting.split()[0])
    if is_windows():
        return shutil.which("cl") or msvc()
    for name in _CPP if kind == "cpp" else _C:
        path = shutil.which(name)
        if path:
            return path
    return None


@functools.cache
def msvc() -> str | None:
    """Installation folder of Visual Studio's C++ tools, from its own locator; None when there are none."""
    base = os.environ.get("PROGRAMFILES(X86)", r"C:\Program Files (x86)")
    locator = Path(base) / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
    if not locator.is_file():
        return None
    needs = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
    command = [str(locator), "-utf8", "-latest", "-products", "*", "-requires", needs, "-property", "installationPath"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def python_header() -> Path | None:
    """Python.h of this interpreter; None when the headers are not installed."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return header if header.is_file() else None


def odd_path(path: Path) -> str | None:
    """What in the name of `path` compilers can't handle, as text; None when nothing is."""
    text = str(path)
    if any(character.isspace() for character in text):
        return f"{text} has a space in it"
    return None if text.isascii() else f"{text} has letters beyond ASCII"


def torch_folder() -> Path | None:
    """Where torch is installed, whose headers and libraries every compile names; None when it is not."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def compiler_remedy() -> str:
    """How to get a compiler on this system."""
    return remedy(["compiler"])


def header_remedy() -> str:
    """How to get Python's headers on this system."""
    return remedy(["headers"])


def triton_remedy() -> str:
    """How to get Triton on this system."""
    package = "triton-windows" if is_windows() else "triton"
    return f"Run: python -m pip install {package}"


def folder_remedy() -> str:
    """How to get a cache folder that compilers can use."""
    return "Set compile_cache_dir to a short folder without spaces and with ASCII characters only, or leave it empty."


def install_remedy() -> str:
    """How to get a torch that compilers can use."""
    return "Install Monotile again in a folder whose path has no spaces and only ASCII characters."


def _disk_remedy() -> str:
    return "Free some space on the disk of the compile cache, or set compile_cache_dir to a folder on another disk."


def _folder_remedy() -> str:
    return "Set compile_cache_dir to a folder that you can write."


def _missing_triton() -> str | None:
    return None if has_triton() else triton_remedy()


def _compiler_fix() -> str:
    """A compiler that is installed mostly fails because of a path of ours."""
    cached, torch = os.environ.get("TORCHINDUCTOR_CACHE_DIR"), torch_folder()
    if cached and odd_path(Path(cached)):
        return folder_remedy()
    return install_remedy() if torch is not None and odd_path(torch) else compiler_remedy()


# Words in the error of a compiler or its cache, and the fix.
_CAUSES: tuple[tuple[re.Pattern[str], Callable[[], str | None]], ...] = (
    (re.compile("No space left|Disk quota exceeded", re.IGNORECASE), _disk_remedy),
    (re.compile("Read-only file system|Permission denied", re.IGNORECASE), _folder_remedy),
    (re.compile(r"Python\.h", re.IGNORECASE), header_remedy),
    (re.compile("triton", re.IGNORECASE), _missing_triton),
    (re.compile("compiler|compile error|CppCompileError", re.IGNORECASE), _compiler_fix),
)


def remedy_of(output: str) -> str | None:
    """The fix of a failed compile, from all or part of its error output; None where it is not known."""
    fixes = (fix() for words, fix in _CAUSES if words.search(output))
    return next((text for text in fixes if text is not None), None)


def error_line(output: str) -> str | None:
    """The first line in which a compiler or linker reports an error; None where none does."""
    return next((line.strip() for line in output.splitlines() if _ERROR_LINE.search(line)), None)


def missing_for_inductor(device: str) -> str | None:
    """What inductor lacks on this machine for the device type, as text with the fix; None when nothing is known."""
    if device == "cuda":
        if not has_triton():
            return f"Triton is not installed. {triton_remedy()}"
        # triton-windows has a compiler of its own.
        if not is_windows() and compiler("c") is None:
            return f"no C compiler was found, and Triton needs one. {compiler_remedy()}"
    elif compiler("cpp") is None:
        return f"no C++ compiler was found. {compiler_remedy()}"
    if python_header() is None:
        # Triton's launchers include it, and so does each kernel that inductor writes for the CPU.
        return f"the headers of Python (Python.h) are missing, and compiling needs them. {header_remedy()}"
    return None
