"""Readies torch's compiler while a model loads: its modules, the key of its cache, and the processes that make kernels.

All of it comes otherwise at the first compiled step, also of a warm start that only reads the cache.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from backend.compile.torch_config import set_for_all_threads

log = logging.getLogger(__name__)

_IDLE_SECONDS = 600
"""Torch ends idle workers after one minute, in which few models are loaded. They share most of their memory."""

_TRACED = (
    ("torch", "nn/functional.py"),
    ("torch", "nn/modules/activation.py"),
    ("diffusers", "models/normalization.py"),
    ("diffusers", "models/activations.py"),
)
"""Sources, by package, of what the blocks of most families call."""


class CompilerWarmUp:
    """Works in a thread from `start` on; `wait` before anything is compiled, so that two threads never import at once.

    Only a head start: what a version of torch does not have is left out, and nothing depends on it. seconds: what it
    took, once it has ended.
    """

    def __init__(self, device: str) -> None:
        self.seconds: float | None = None
        self._device = device
        # No daemon: a process that ends early ends after it, not in the middle of an import.
        self._thread = threading.Thread(target=self._work, name="compiler warm-up")

    def start(self) -> CompilerWarmUp:
        """Begin; returns itself."""
        self._thread.start()
        return self

    def wait(self) -> None:
        """Until all is ready."""
        began = time.perf_counter()
        self._thread.join()
        waited = time.perf_counter() - began
        log.info("the compiler was readied in %.1f s, %.1f s of them waited for", self.seconds or 0.0, waited)

    def _work(self) -> None:
        began = time.perf_counter()
        own = (_workers, _modules, _triton_key) if self._device == "cuda" else (_modules, _cpu)
        for part in (*own, _torch_key, _line_names):
            _try(part)
        self.seconds = time.perf_counter() - began


def _try(part: Callable[[], object]) -> None:
    try:
        part()
    except Exception as error:  # noqa: BLE001 - torch's own parts, some of which a later version may do without
        log.debug("the compiler's %s could not be readied", part.__name__, exc_info=error)


def _workers() -> None:
    """Start the processes that compile kernels, which import torch first; they end when they have nothing to do."""
    config = importlib.import_module("torch._inductor.config")
    with contextlib.suppress(AttributeError):  # an earlier torch never ends them
        set_for_all_threads(config, "quiesce_async_compile_time", _IDLE_SECONDS)
    compile_module = importlib.import_module("torch._inductor.async_compile")
    compile_module.AsyncCompile.warm_pool()
    compile_module.AsyncCompile.wakeup()


def _modules() -> None:
    """Import what the first compile imports."""
    importlib.import_module("torch._inductor.compile_fx")


def _torch_key() -> None:
    """Hash torch's sources, which are a part of each graph's key in the cache."""
    importlib.import_module("torch._inductor.codecache").torch_key()


def _triton_key() -> None:
    """The same of Triton's."""
    importlib.import_module("torch.utils._triton").triton_hash_with_backend()


def _cpu() -> None:
    """Try which vector instructions the processor has: some small programs are started for it."""
    importlib.import_module("torch._inductor.cpu_vec_isa").pick_vec_isa()


def _line_names() -> None:
    """Read which function each line of these sources is in: torch keeps it with each operation that it traces."""
    cache = importlib.import_module("torch._dynamo.funcname_cache")
    for package, name in _TRACED:
        package_spec = importlib.util.find_spec(package)
        if package_spec is not None and package_spec.origin:
            cache.get_funcname(str(Path(package_spec.origin).parent / name), 1)
