"""A small copy of the project whose requirements are tiny wheels made here, so that a whole set-up takes seconds."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What the copy runs in the place of the page: tells how it was started.
ECHO = """
import json, os, sys
print(json.dumps({"prefix": sys.prefix, "arguments": sys.argv[1:], "folder": os.getcwd(), "file": __file__}))
sys.exit(7 if "--fail" in sys.argv else 0)
"""


def make_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel with one module and nothing else, as pip accepts it."""
    folder.mkdir(parents=True, exist_ok=True)
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": f"__version__ = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_hash(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_inside, text in files.items():
            archive.writestr(name_inside, text)
    return path


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make_source(folder: Path, name: str, version: str, build: str) -> Path:
    """A source archive whose build backend runs the Python text `build` and then fails."""
    backend = (
        f"{build}\ndef build_wheel(*arguments, **more):\n    raise RuntimeError('this package can not be built')\n"
    )
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "pyproject.toml": project,
        "backend.py": backend,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inside, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{inside}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


class Clone:
    """A copy of the launcher and its set-up, with wheels beside it, started as a person would start it."""

    def __init__(self, root: Path) -> None:
        self.root, self.wheels = root, root / "wheels"

    @classmethod
    def new(cls, root: Path) -> Clone:
        clone = cls(root)
        root.mkdir(parents=True)
        shutil.copy(ROOT / "launcher.py", root)
        shutil.copytree(ROOT / "backend" / "setup", root / "backend" / "setup", ignore=shutil.ignore_patterns("*.pyc"))
        shutil.copy(ROOT / "backend" / "__init__.py", root / "backend")
        (root / "gui").mkdir()
        (root / "gui" / "__init__.py").touch()
        (root / "gui" / "__main__.py").write_text(ECHO)
        clone.require("monotile-tiny==1.0")
        clone.require(name="requirements-test.txt")
        clone.require(name="requirements-gpu.txt")
        make_wheel(clone.wheels, "monotile-tiny", "1.0")
        return clone

    def require(self, *lines: str, name: str = "requirements.txt") -> None:
        (self.root / name).write_text("".join(f"{line}  # a reason\n" for line in lines))

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def environment(self, **more: str) -> dict[str, str]:
        """This process's environment without what belongs to its own Python and pip."""
        mine = ("PIP_", "VIRTUAL_ENV", "CONDA_", "PYTHON", "PYTEST_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(mine)}
        return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", **more}

    def line(self, *arguments: str) -> list[str]:
        return [base_python(), str(self.root / "launcher.py"), *arguments]

    def start(self, *arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(*arguments), env=self.environment(**more), cwd=cwd, capture_output=True, text=True, timeout=240
        )

    def offline(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A start that takes its packages from the copy's own wheels."""
        return self.start("--wheels", str(self.wheels), *arguments, **more)

    def installed(self, prefix: Path | None = None) -> dict[str, str]:
        """Distributions in an environment, name -> version."""
        folders = list((prefix or self.venv).glob("lib/python*/site-packages/*.dist-info"))
        pairs = (folder.name.removesuffix(".dist-info").rsplit("-", 1) for folder in folders)
        return {name.replace("_", "-"): version for name, version in pairs}

    def pip_calls(self) -> list[str]:
        """What the last set-up asked pip for."""
        text = (self.venv / "monotile-setup.log").read_text()
        return [line for line in text.splitlines() if line.startswith("$ pip install")]


def lose_pip_and_pins(venv: Path) -> None:
    """Damage an environment: its Python runs, but pip and our packages are gone."""
    for folder in venv.glob("lib/python*/site-packages/*"):
        if folder.name.startswith(("pip", "monotile")):
            shutil.rmtree(folder)


def base_python() -> str:
    """The interpreter below the environment that the tests run in: for the launcher, nothing is activated."""
    return getattr(sys, "_base_executable", sys.executable)
