"""Checks what the machine has: an NVIDIA GPU, a C++ compiler, Python's headers, a Python that can make environments."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

from backend.setup.system import remedy
from backend.setup.toolchain import compiler


def venv_complaint() -> str | None:
    """What is missing when this Python can't make an environment (a package of its own on Debian), or None."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        return (
            f"This Python ({sys.executable}) can't make an environment: its module '{error.name}' is missing. "
            f"{remedy(['venv'])}"
        )
    return None


def compile_complaint(headers: bool) -> str | None:
    """What torch.compile lacks on this machine, with the fix, or None. `headers`: Python.h is there."""
    missing = [] if compiler() else ["compiler"]
    if not headers and os.name != "nt":
        missing.append("headers")
    if not missing:
        return None
    words = {"compiler": "a C++ compiler", "headers": "Python's headers (Python.h)"}
    return (
        f"Not found: {' and '.join(words[need] for need in missing)}. torch.compile needs "
        f"{'them' if len(missing) > 1 else 'it'}. Without, training works, but slower: it is not compiled. "
        f"{remedy(missing)}"
    )


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU; the driver's own files are checked first, since they answer at once."""
    if glob.glob("/proc/driver/nvidia/gpus/*") or os.path.exists("/usr/lib/wsl/lib/libcuda.so.1"):
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return listed.returncode == 0 and listed.stdout.startswith("GPU ")
