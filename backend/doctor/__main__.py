"""Checks whether this machine can compile and train, and says how to fix what it can't.

    python -m backend.doctor [--json]

Torch-free itself: torch runs in a subprocess, which also proves that compiling works by doing it. With
`--json` one check per line, as soon as it is done: {"name", "state": "ok"|"warn"|"fail", "text", "remedy"}.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backend.base import compile_cache
from backend.base.files import human_bytes
from backend.config.packages import about_package, install_remedy
from backend.config.wandb_login import has_login, server
from backend.doctor.checks import Check, State, attention, quantised
from backend.setup import toolchain

PYTHON_FLOOR = (3, 11)
PACKAGES = ("diffusers", "transformers", "peft", "accelerate", "safetensors", "pydantic", "gradio")
_LOW_DISK, _NO_DISK = 10e9, 1e9
_PROOF_SECONDS = 300
# A compiler's output in another code page must not stop the doctor.
_WORDS: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info[:2] < PYTHON_FLOOR:
        floor = ".".join(map(str, PYTHON_FLOOR))
        return Check("Python", "fail", f"{version} is older than {floor}", f"Install Python {floor} or newer.")
    return Check("Python", "ok", version)


def _packages() -> Check:
    installed, lacking = [], []
    for name in PACKAGES:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lacking.append(name)
    if lacking:
        return Check("Packages", "fail", f"not installed: {', '.join(lacking)}", "Run: python3 launcher.py --reinstall")
    return Check("Packages", "ok", ", ".join(installed))


@dataclass(frozen=True)
class _Answer:
    """The answer of the probe's process."""

    facts: dict[str, Any] | None
    """None when it crashed or hung."""
    error: str = ""
    """The error that ended it, on one line."""
    log: str = ""
    """Its whole error output."""


def _probe(what: str, seconds: float, folder: Path | None = None) -> _Answer:
    environment = dict(os.environ)
    if folder is not None:
        # A fresh folder: a hit in the cache would prove nothing about the compiler.
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "i"), "TRITON_CACHE_DIR": str(folder / "t")}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "backend.doctor.probe", what]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=seconds, cwd=root, env=environment, check=False, **_WORDS
        )
    except subprocess.TimeoutExpired:
        return _Answer(None, f"no answer within {seconds:.0f} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return _Answer(json.loads(lines[-1]))
    errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = next((line for line in reversed(errors) if "Error" in line or "error" in line), errors[-1] if errors else "")
    error = toolchain.error_line(done.stderr) or last
    return _Answer(None, error or f"it ended with exit code {done.returncode}", done.stderr)


def _torch(facts: dict[str, Any] | None, error: str) -> Check:
    error = error if facts is None else facts.get("error", "")
    if error or facts is None:
        return Check("torch", "fail", f"torch does not load: {error}", "Run: python3 launcher.py --reinstall")
    version = facts["torch"]
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < toolchain.TORCH_FLOOR:
        floor = ".".join(map(str, toolchain.TORCH_FLOOR))
        return Check(
            "torch",
            "warn",
            f"{version} is older than {floor}: training works, but compiling is skipped",
            f"Install torch {floor} or newer.",
        )
    return Check("torch", "ok", version)


def _driver() -> str | None:
    """NVIDIA driver version from nvidia-smi; None without a driver."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    command = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False, **_WORDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def _gpu(facts: dict[str, Any], driver: str | None) -> list[Check]:
    gpu = facts.get("gpu")
    if gpu:
        capability = ".".join(map(str, gpu["capability"]))
        size = f"{gpu['bytes'] / 2**30:.0f}"
        checks = [Check("GPU", "ok", f"{gpu['name']}, {size} GiB, compute capability {capability}")]
        if not gpu["bf16"]:
            text = f"{gpu['name']}, {size} GiB, compute capability {capability}: no bf16"
            checks[0] = Check("GPU", "warn", text, "Train with mixed_precision fp16.")
        return [*checks, *_gpus(facts), Check("Driver", "ok", f"NVIDIA {driver}" if driver else "it was found")]
    if driver and not facts.get("cuda_build"):
        return [
            Check(
                "GPU",
                "fail",
                f"there is an NVIDIA GPU (driver {driver}), but this torch is a build without CUDA",
                "Run: python3 launcher.py --reinstall --torch-index URL (for CUDA, from PyTorch's install page).",
            )
        ]
    if driver:
        return [
            Check(
                "Driver",
                "fail",
                f"the driver {driver} does not work with this torch (CUDA {facts['cuda_build']})",
                "Install a newer NVIDIA driver, or a torch built for an older CUDA.",
            )
        ]
    if "+xpu" in str(facts.get("torch", "")):
        text = "this torch is built for Intel GPUs, which Monotile can't use: everything runs on the CPU"
        return [Check("GPU", "warn", text, "Train on an NVIDIA or AMD GPU. The CPU is fine for the demo.")]
    return [
        Check("GPU", "warn", "no NVIDIA GPU was found: everything runs on the CPU", "The CPU is fine for the demo.")
    ]


def _optional(problems: dict[str, str | None]) -> Iterator[Check]:
    """Optional packages: which load, which are not installed, and a warning for each that does not load."""
    loading = [name for name, problem in problems.items() if problem is None]
    lacking = [name for name, problem in problems.items() if problem == "is not installed"]
    if loading and lacking:
        text = f"installed: {', '.join(loading)}; not installed: {', '.join(lacking)}"
        yield Check("Optional", "ok", text)
    elif loading:
        yield Check("Optional", "ok", f"installed packages: {', '.join(loading)}")
    elif lacking:
        yield Check("Optional", "ok", f"not installed: {', '.join(lacking)}")
    for name, problem in problems.items():
        if problem is not None and name not in lacking and name != "triton":
            yield Check("Optional", "warn", about_package(name, problem), f"{install_remedy(name, problem)}.")


def _gpus(facts: dict[str, Any]) -> Iterator[Check]:
    """All GPUs of the machine, where there are several."""
    gpus = facts.get("gpus", [])
    if len(gpus) < 2:
        return
    listed = "; ".join(f"{number}: {gpu['name']}, {gpu['bytes'] / 2**30:.0f} GiB" for number, gpu in enumerate(gpus))
    yield Check("GPUs", "ok", f"{len(gpus)}, of which a run uses as many as training.num_processes says ({listed})")


def _wandb(problem: str | None) -> Iterator[Check]:
    """Whether runs can be sent to Weights & Biases. problem: why the package does not load; None where it does."""
    if problem is None and has_login():
        yield Check("Weights & Biases", "ok", f"there is a login for {server()}")
    elif problem is None:
        yield Check("Weights & Biases", "ok", "no login: runs can be logged offline. Run  wandb login  to send them")


def _toolchain(on_gpu: bool, triton: str | None = None) -> Iterator[Check]:
    """What compiling needs. triton: why it does not load; None where it does or is not known."""
    if on_gpu:
        if triton is not None and toolchain.has_triton():
            text = f"{triton}, and compiling for the GPU needs it"
            yield Check("Triton", "fail", text, f"{toolchain.triton_remedy()} --force-reinstall --no-deps")
        elif toolchain.has_triton():
            name = "triton-windows" if toolchain.is_windows() else "triton"
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                version = "it was found"
            yield Check("Triton", "ok", version)
        else:
            yield Check(
                "Triton", "fail", "not installed, and compiling for the GPU needs it", toolchain.triton_remedy()
            )
    else:
        yield Check("Triton", "ok", "not needed on the CPU")
    kind = "c" if on_gpu else "cpp"
    path = toolchain.compiler(kind)
    language = "C compiler" if on_gpu else "C++ compiler"
    # triton-windows brings a compiler of its own for GPU kernels.
    needed = not (on_gpu and toolchain.is_windows())
    if path:
        yield Check(language, "ok", path)
    else:
        yield Check(language, "fail" if needed else "warn", "none was found", toolchain.compiler_remedy())
    if toolchain.is_windows():
        folder = toolchain.msvc()
        text = folder or "Visual Studio's C++ tools were not found"
        yield Check("MSVC", "ok" if folder else "warn", text, "" if folder else toolchain.compiler_remedy())
    if toolchain.python_header():
        yield Check("Python headers", "ok", "they were found")
    else:
        state: State = "fail" if on_gpu else "warn"
        yield Check("Python headers", state, "Python.h is missing", toolchain.header_remedy())


def _install() -> Iterator[Check]:
    """A warning for a torch in a path that compilers can't handle."""
    folder = toolchain.torch_folder()
    odd = toolchain.odd_path(folder) if folder is not None else None
    if odd is not None:
        text = f"C compilers can't handle the path of torch: {odd}"
        yield Check("Install path", "warn", text, toolchain.install_remedy())


def _disk(cache_dir: str | None) -> tuple[list[Check], Path | None]:
    """Checks of the cache folder and the disk it is on, and the folder."""
    try:
        folder = compile_cache.cache_root(cache_dir)
    except OSError as error:
        return [
            Check("Compile cache", "fail", str(error), "Set compile_cache_dir to a folder that you can write.")
        ], None
    used = compile_cache.size(folder)
    text = f"{folder} contains {human_bytes(used.bytes)} in {used.files:,} files"
    odd = compile_cache.path_problem(folder)
    if odd:
        checks = [Check("Compile cache", "warn", f"compilers can't handle its path: {odd}", toolchain.folder_remedy())]
    else:
        checks = [Check("Compile cache", "ok", text)]
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.0f} GB free on the disk of the compile cache"
    if free < _LOW_DISK:
        state: State = "fail" if free < _NO_DISK else "warn"
        checks.append(
            Check("Disk", state, text, "Free some space: compiled kernels, caches and saved files need a few GB.")
        )
    else:
        checks.append(Check("Disk", "ok", text))
    return checks, folder


def _proof(folder: Path | None) -> Check:
    """Compile something in a fresh folder inside of the cache's: proves compiler, path and disk together."""
    with tempfile.TemporaryDirectory(prefix="d", dir=folder, ignore_cleanup_errors=True) as fresh:
        answer = _probe("compile", _PROOF_SECONDS, Path(fresh))
    if answer.facts is not None:
        duration = f"{answer.facts['seconds']:.0f} s"
        text = f"a small function was compiled and ran forward and backward on {answer.facts['device']} in {duration}"
        return Check("Compile", "ok", text)
    if folder is not None and toolchain.odd_path(folder):
        remedy = toolchain.folder_remedy()
    else:
        remedy = toolchain.remedy_of(answer.log) or "Training still works, without compile."
    return Check("Compile", "fail", f"compiling failed: {answer.error}", remedy)


def run(cache_dir: str | None = None) -> Iterator[Check]:
    """All checks, each as soon as it is known. cache_dir: the setting compile_cache_dir."""
    yield _python()
    yield _packages()
    answer = _probe("facts", 120)
    facts = answer.facts
    torch = _torch(facts, answer.error)
    yield torch
    disk, folder = _disk(cache_dir)
    if facts is None or "error" in facts:
        yield from disk
        return
    yield from _gpu(facts, _driver())
    yield from _optional(facts.get("packages", {}))
    yield from _wandb(facts.get("packages", {}).get("wandb", "is not installed"))
    yield from _toolchain(bool(facts.get("gpu")), facts.get("packages", {}).get("triton"))
    yield from _install()
    yield from disk
    yield from attention(facts)
    yield from quantised(facts)
    if torch.state == "ok":
        yield _proof(folder)


def checks(cache_dir: str | None = None) -> list[Check]:
    """All checks at once; takes up to a minute, most of it the proof."""
    return list(run(cache_dir))


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] | None = None) -> int:
    """Run the checks and write them; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="launcher.py doctor", description="Check this machine.")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--cache-dir", help="the compile cache folder to check (setting compile_cache_dir)")
    options = parser.parse_args(argv)
    write = write or sys.stdout.write
    failed = False
    for check in run(options.cache_dir):
        failed |= check.state == "fail"
        if options.json:
            write(json.dumps(asdict(check)) + "\n")
        else:
            remedy = f"\n{'':22}{check.remedy}" if check.remedy else ""
            write(f"{check.state:5} {check.name:15} {check.text}{remedy}\n")
        if write is sys.stdout.write:
            sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
