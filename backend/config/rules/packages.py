"""Lists rules about optional packages: a run that needs one that is not installed does not start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.config.packages import install_remedy, is_installed
from backend.config.rules.rule import Rule, no_effect
from backend.config.sections.optimizer import OPTIMIZER_CLASSES
from backend.config.wandb_login import needs_login


def _needs(path: str, module: str, needed: Callable[[Any], bool], otherwise: str) -> Rule:
    """An error for a start when the value needs a package that is not installed. otherwise: what else to set."""
    name = path.rsplit(".", 1)[1]
    return Rule(
        (path,),
        lambda value: needed(value) and not is_installed(module),
        f"{name} {{{name}}} needs the package {module}, which is not installed",
        f"{install_remedy(module)}; or {otherwise}",
        when="start",
    )


def _of(module: str) -> Callable[[str], bool]:
    """Whether an optimizer, by name or class path, is of `module`."""
    return lambda name: OPTIMIZER_CLASSES.get(name, name).partition(".")[0] == module


_KERNELS = {"flash2": "flash_attn.flash_attn_interface", "fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}
"""Route -> its module. flash-attn and flash-attn-4 share a folder, so that flash_attn alone tells neither."""

PACKAGE_RULES: tuple[Rule, ...] = (
    *(
        _needs(f"memory.{name}", "bitsandbytes", lambda kind: kind == "nf4", f"set {name} to int8")
        for name in ("base_quantization", "text_encoder_quantization")
    ),
    *(
        _needs("optimizer.optimizer", module, _of(module), "set optimizer to adamw")
        for module in ("bitsandbytes", "pytorch_optimizer")
    ),
    *(
        _needs("compile.attention", module, lambda value, route=route: value == route, "set attention to auto")
        for route, module in _KERNELS.items()
    ),
    Rule(
        ("logging.tensorboard",),
        lambda on: on and not is_installed("tensorboard"),
        "tensorboard needs the package tensorboard, which is not installed",
        f"{install_remedy('tensorboard')}; or set logging.tensorboard to false",
        when="start",
    ),
    Rule(
        ("logging.wandb",),
        lambda on: on and not is_installed("wandb"),
        "wandb needs the package wandb, which is not installed",
        f"{install_remedy('wandb')}; or set logging.wandb to false",
        when="start",
    ),
    Rule(
        ("logging.wandb", "logging.wandb_mode"),
        needs_login,
        "Weights & Biases has no login on this machine",
        "Run  wandb login  in a terminal, or set the environment variable WANDB_API_KEY before Monotile is started; "
        "or set logging.wandb_mode to offline",
        when="start",
    ),
    *(
        no_effect(f"logging.{name}", "logging.wandb", (True,), "Weights & Biases is off")
        for name in ("wandb_project", "wandb_run_name", "wandb_entity", "wandb_mode")
    ),
)
