"""Makes the compile cache's key and points torch and Triton at its folder, so that a second start has only hits.

The key holds torch, GPU and Python: what must never be mixed. Code version and shapes are part of torch's own key of
each graph, so that runs of other sizes share what they can; `signature` names them all in the run's log. The folder
itself is `backend.base.compile_cache`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backend.base.compile_cache import KEY_FILE, cache_root
from backend.base.files import write_atomic


def machine_facts(device: Any = None) -> dict[str, str]:
    """What kernels depend on: torch, CUDA, Triton, GPU, Python, machine. Imports torch."""
    import importlib.metadata

    import torch

    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    gpu = "cpu"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(device)
        gpu = f"{properties.name} {properties.major}.{properties.minor}"
    return {
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": triton,
        "gpu": gpu,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _hash(data: Any, length: int) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def code_version() -> str:
    """Hash of the sources that shape a graph: the families' forwards, shapes and the compile helper."""
    base = Path(__file__).parents[1]
    sources = sorted(p for folder in ("models", "shapes", "compile") for p in (base / folder).rglob("*.py"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.relative_to(base).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def signature(facts_: dict[str, str], shapes: Iterable[Any]) -> str:
    """Name of what a run compiles: torch and GPU, code version, and the shapes of the plan (any sortable reprs).

    Runs of one signature need the same graphs: the later one finds them all in the cache.
    """
    return _hash([facts_, code_version(), sorted(map(repr, shapes))], 12)


def use_cache_folder(setting: str | os.PathLike[str] | None = None, device: Any = None) -> Path:
    """Make the folder of this torch and GPU and point torch and Triton at it; call before anything is compiled.

    setting: compile_cache_dir, None for our own place. Returns the folder. OSError when none can be written.
    """
    facts = machine_facts(device)
    folder = cache_root(setting) / _hash(facts, 8)
    for name, variable in (("inductor", "TORCHINDUCTOR_CACHE_DIR"), ("triton", "TRITON_CACHE_DIR")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(folder / name)
    if not (folder / KEY_FILE).is_file():
        write_atomic(folder / KEY_FILE, json.dumps(facts, indent=1))
    return folder
