"""What the machine brings: an NVIDIA card, a C++ compiler, Python's headers, and how this system installs them."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# what the set-up may miss -> its package; {v} is the running Python, as in 3.12
_PACKAGES: dict[str, tuple[str, dict[str, str]]] = {
    "debian": ("apt install", {"venv": "python{v}-venv", "compiler": "g++", "headers": "python{v}-dev"}),
    "fedora": ("dnf install", {"venv": "python3", "compiler": "gcc-c++", "headers": "python3-devel"}),
    "suse": ("zypper install", {"venv": "python{s}", "compiler": "gcc-c++", "headers": "python{s}-devel"}),
    "arch": ("pacman -S --needed", {"venv": "python", "compiler": "gcc", "headers": "python"}),
    "alpine": ("apk add", {"venv": "python3", "compiler": "g++", "headers": "python3-dev"}),
}
_KIN = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse", "sles": "suse"}
_WINDOWS_COMPILER = (
    "winget install Microsoft.VisualStudio.2022.BuildTools (then choose 'Desktop development with C++' "
    "in its installer)"
)


def os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """The system's own description of itself; empty where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def family(release: Mapping[str, str]) -> str | None:
    """Which row of package names fits a distribution: its own id first, then those it says it is like."""
    for name in [release.get("ID", ""), *release.get("ID_LIKE", "").split()]:
        name = name.split("-")[0]  # opensuse-leap, opensuse-tumbleweed
        if _KIN.get(name, name) in _PACKAGES:
            return _KIN.get(name, name)
    return None


def remedy(needs: list[str], release: Mapping[str, str], python: tuple[int, ...] = sys.version_info[:2]) -> str:
    """The command that brings `needs` (of venv, compiler, headers) on this system, or words where it is unknown."""
    if os.name == "nt":
        return f"Run: {_WINDOWS_COMPILER}" if "compiler" in needs else "Install Python again from python.org."
    if sys.platform == "darwin":
        return "Run: xcode-select --install"
    kind = family(release)
    if kind is None:
        words = {
            "venv": "Python's venv module",
            "compiler": "a C++ compiler",
            "headers": "Python's development headers",
        }
        return f"Install {' and '.join(words[need] for need in needs)} with your system's package manager."
    command, names = _PACKAGES[kind]
    packages = [names[need].format(v=f"{python[0]}.{python[1]}", s=f"{python[0]}{python[1]}") for need in needs]
    return f"Run: {'' if os.geteuid() == 0 else 'sudo '}{command} {' '.join(dict.fromkeys(packages))}"


def venv_complaint() -> str | None:
    """What is missing when this Python can't make an environment (Debian ships it apart), or None."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        return (
            f"This Python ({sys.executable}) can't make an environment: its module '{error.name}' is missing. "
            f"{remedy(['venv'], os_release())}"
        )
    return None


def compile_complaint(headers: bool) -> str | None:
    """What torch.compile would miss on this machine, with the mend, or None. `headers`: Python.h is there."""
    missing = [] if _compiler() else ["compiler"]
    if not headers and os.name != "nt":
        missing.append("headers")
    if not missing:
        return None
    words = {"compiler": "a C++ compiler", "headers": "Python's headers (Python.h)"}
    return (
        f"Not found: {' and '.join(words[need] for need in missing)}. torch.compile needs "
        f"{'them' if len(missing) > 1 else 'it'}; without, training runs, but not compiled. "
        f"{remedy(missing, os_release())}"
    )


def _compiler() -> str | None:
    if os.name == "nt":
        # Visual Studio keeps cl off PATH; its finder is there when any edition of its tools is.
        finder = Path(os.environ.get("PROGRAMFILES(X86)", ""), "Microsoft Visual Studio/Installer/vswhere.exe")
        return shutil.which("cl") or (str(finder) if finder.exists() else None)
    named = os.environ.get("CXX", "").split()
    return next((found for found in map(shutil.which, [*named[:1], "g++", "clang++", "c++"]) if found), None)


def has_card() -> bool:
    """Whether an NVIDIA card is there, asked of the driver's own files first, since they answer at once."""
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
