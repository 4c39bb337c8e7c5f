"""Sets what torch and others read from the environment once, when they load: before torch is imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from backend.base.errors import Refused
from backend.config.schema import Config
from backend.memory.allocators import lower_mmap_threshold, use_expandable_segments
from backend.plan.memory.machine import installed_gpus
from backend.runs.start_lock import AMD_DRIVER

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def set_environment(cfg: Config) -> None:
    """Set the variables, and how the process takes memory."""
    lower_mmap_threshold()
    os.environ["HF_HUB_OFFLINE"] = "1"
    use_expandable_segments(os.environ)
    if cfg.training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # What `accelerate config` once stored for this machine must not change a run behind its settings' back.
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]


def set_gpu(environment: MutableMapping[str, str], cfg: Config, gpus: str | None, rank: int) -> None:
    """Let one of the processes that train together see its own GPU alone, where there is more than one process.

    gpus: CUDA_VISIBLE_DEVICES as the run was started with. Refused where there are too few GPUs.
    """
    if cfg.training.num_processes > 1:
        own = _own_gpu(cfg.training.num_processes, gpus, rank)
        if own is not None:
            environment[_VISIBLE] = own


def visible_gpus() -> str | None:
    """CUDA_VISIBLE_DEVICES of this process."""
    return os.environ.get(_VISIBLE)


def _own_gpu(processes: int, gpus: str | None, rank: int) -> str | None:
    """The GPU of a process, as CUDA_VISIBLE_DEVICES takes it; None where all train on the CPU."""
    if gpus is None:
        installed = len(installed_gpus())
        names = [str(number) for number in range(installed)]
    else:
        names = [name.strip() for name in gpus.split(",") if name.strip() not in ("", "-1")]
    if not names:
        # what AMD's driver lists is not asked for
        return str(rank) if gpus is None and AMD_DRIVER.exists() else None
    if len(names) < processes:
        text = f"num_processes is {processes}, and this run sees {len(names)} GPU{'s' if len(names) > 1 else ''}"
        where = f" ({_VISIBLE} is {gpus})" if gpus is not None else ""
        remedy = f"Set num_processes to {len(names)}, or let the run see more GPUs with {_VISIBLE}."
        raise Refused(f"{text}{where}", remedy, "training.num_processes")
    return names[rank]
