"""Names the commands that install what Python and torch.compile need on this system. Imports nothing of ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# what the set-up may miss -> its package; {v} is the running Python, as in 3.12
_PACKAGES: dict[str, tuple[str, dict[str, str]]] = {
    "debian": ("apt install", {"venv": "python{v}-venv", "compiler": "g++", "headers": "python{v}-dev"}),
    "fedora": ("dnf install", {"venv": "python3", "compiler": "gcc-c++", "headers": "python3-devel"}),
    "suse": ("zypper install", {"venv": "python{s}", "compiler": "gcc-c++", "headers": "python{s}-devel"}),
    "arch": ("pacman -S --needed", {"venv": "python", "compiler": "gcc", "headers": "python"}),
}
_KIN = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse", "sles": "suse"}
_WINDOWS_COMPILER = (
    "Run: winget install Microsoft.VisualStudio.2022.BuildTools (then choose 'Desktop development with C++' "
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
    """Which row of package names fits a distribution: its own id first, then those it is like."""
    for name in [release.get("ID", ""), *release.get("ID_LIKE", "").split()]:
        name = name.split("-")[0]  # opensuse-leap, opensuse-tumbleweed
        if _KIN.get(name, name) in _PACKAGES:
            return _KIN.get(name, name)
    return None


def remedy(
    needs: list[str], release: Mapping[str, str] | None = None, python: tuple[int, ...] = sys.version_info[:2]
) -> str:
    """The command that installs `needs` (of venv, compiler, headers) here, or a sentence where it is unknown."""
    if os.name == "nt":
        return _WINDOWS_COMPILER if "compiler" in needs else "Install Python again from python.org."
    if sys.platform == "darwin":
        return "Run: xcode-select --install"
    kind = family(os_release() if release is None else release)
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
