"""Chooses the Python environment that Monotile runs in: the activated one, else its own `.venv`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.setup.errors import SetupError
from backend.setup.requirements import older_than

OLDEST_TORCH = (2, 11)
"""The oldest torch that is kept when an activated environment already holds one."""

# Runs inside the environment that is checked. Isolated (-I): it sees what is installed there and nothing else.
_PROBE = """
import json, os, sys, sysconfig
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({
    "python": list(sys.version_info[:3]),
    "bits64": sys.maxsize > 2**32,
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "packages": {name: version(name) for name in sys.argv[1:]},
}))
"""


@dataclass(frozen=True)
class Environment:
    """A Python environment. `own` is Monotile's `.venv`, the only one that is ever made or removed."""

    prefix: Path
    own: bool

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return interpreter(self.prefix)

    @property
    def stamp(self) -> Path:
        """The file in which the set-up records what it has done."""
        return self.prefix / "monotile-setup.json"

    @property
    def library(self) -> Path:
        """The folder in which its packages are, where it is a venv."""
        return self.prefix / ("Lib" if os.name == "nt" else "lib")

    @property
    def log(self) -> Path:
        """pip's whole output of the last set-up."""
        return self.prefix / "monotile-setup.log"

    @property
    def lock(self) -> Path:
        """Beside `.venv`, since that one may be removed while the lock is held."""
        return self.prefix.parent / ".venv.lock" if self.own else self.prefix / "monotile-setup.lock"


@dataclass(frozen=True)
class Facts:
    """What an environment's interpreter reports. `packages`: name -> version, None where absent."""

    python: tuple[int, ...]
    bits64: bool
    headers: bool
    packages: dict[str, str | None]


def interpreter(prefix: Path) -> Path:
    """The interpreter of a venv or conda environment; the first place that exists, else where a venv has it."""
    if os.name == "nt":
        places = [prefix / "Scripts" / "python.exe", prefix / "python.exe"]
    else:
        places = [prefix / "bin" / "python", prefix / "bin" / "python3"]
    return next((place for place in places if place.exists()), places[0])


def probe(python: Path, names: list[str]) -> Facts | None:
    """Ask an interpreter for its version and those of the packages `names`; None if it does not run."""
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", _PROBE, *names], capture_output=True, text=True, timeout=120, check=True
        )
        data: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Facts(tuple(data["python"]), data["bits64"], data["headers"], data["packages"])


def choose(root: Path) -> Environment:
    """The environment to use: an activated venv, an activated conda environment, else `root`/.venv.

    conda's `base` is activated for many people without their asking. It counts only where it holds a fitting torch;
    else Monotile's packages stay out of it.
    """
    own = Environment(root / ".venv", own=True)
    active = _active_venv()
    if active is not None:
        return own if _same(active, own.prefix) else Environment(active, own=False)
    conda = os.environ.get("CONDA_PREFIX")
    if conda and interpreter(Path(conda)).exists():
        environment = Environment(Path(conda), own=False)
        if os.environ.get("CONDA_DEFAULT_ENV") != "base" or _holds_torch(environment):
            return environment
    return own


def _active_venv() -> Path | None:
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix)
    named = os.environ.get("VIRTUAL_ENV")
    return Path(named) if named and interpreter(Path(named)).exists() else None


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _holds_torch(environment: Environment) -> bool:
    facts = probe(environment.python, ["torch"])
    return facts is not None and keeps(facts.packages["torch"])


def keeps(torch: str | None) -> bool:
    """Whether a torch found in an activated environment stays as it is."""
    return torch is not None and not older_than(torch, OLDEST_TORCH)


def pip_runs(python: Path) -> bool:
    """Whether pip starts there. An interrupted `python -m venv` can leave half of it behind."""
    try:
        return (
            subprocess.run([str(python), "-I", "-m", "pip", "--version"], capture_output=True, timeout=120).returncode
            == 0
        )
    except (OSError, subprocess.SubprocessError):
        return False


def base_python() -> str:
    """The interpreter that `.venv` is made with: the running one, or the one below it when that is `.venv`'s own."""
    return sys.executable if sys.prefix == sys.base_prefix else getattr(sys, "_base_executable", sys.executable)


def remove(environment: Environment) -> None:
    """Remove a broken `.venv`. A link goes, never what it points to. Raises SetupError where it can't."""
    assert environment.own, "only Monotile's own environment is ever removed"
    try:
        if environment.prefix.is_symlink() or environment.prefix.is_file():
            environment.prefix.unlink()
        else:
            shutil.rmtree(environment.prefix)
    except OSError as error:
        raise SetupError(
            f"{environment.prefix} is broken and can't be removed ({error.strerror}). Close programs that "
            "use it, leave it with 'deactivate', and start again; or delete that folder yourself."
        ) from None


def make(environment: Environment) -> None:
    """Make `.venv`. Raises SetupError with Python's own error."""
    line = [base_python(), "-m", "venv", str(environment.prefix)]
    done = subprocess.run(line, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        cause = lines[-1] if lines else "it gave no reason"
        raise SetupError(
            f"Python could not make {environment.prefix}: {cause}. Fix that, or activate an environment of your own, "
            "and start again."
        )
