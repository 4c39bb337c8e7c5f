"""Optimizers and learning-rate schedules by name or class path, with their arguments checked beforehand."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from backend.base.errors import Refused
from backend.config.packages import install_remedy, load_problem
from backend.config.sections.optimizer import OPTIMIZER_CLASSES

log = logging.getLogger(__name__)

OPTIMIZERS = OPTIMIZER_CLASSES
SCHEDULES = ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex")

_USUAL = {"weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
"""What the settings give when nobody chose; only another value deserves a word when it has no effect."""

_TYPES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "true or false"),
    ((int, float), "a number"),
    ((str,), "a text"),
    ((list, tuple), "a list"),
)
"""Types of an argument's default, the narrower first, and what they are called."""

_TOTAL_NAMES = ("num_training_steps", "total_steps", "total_iters", "T_max", "max_steps")
"""What the length of a run is called by the schedule classes of torch, transformers and others."""


def make_optimizer(
    name: str,
    parameters: Iterable[torch.nn.Parameter | dict[str, Any]],
    *,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    arguments: Mapping[str, Any] | None = None,
) -> Optimizer:
    """The optimizer called `name` (one of OPTIMIZERS, or ``package.Class``) over `parameters`, or groups of them.

    weight_decay, betas and eps are passed where the class takes them in that form; `arguments` come last and win.
    Refused for an unknown name, an argument the class does not take, and a value it rejects.
    """
    cls = _class(name, OPTIMIZERS, Optimizer, "optimizer.optimizer")
    accepted, takes_any = _accepted(cls)
    given = dict(arguments or {})
    # pytorch_optimizer's classes take any name and drop it; what those of the list heed is what they name
    _check_names(cls, given, accepted, takes_any and "." in name, "optimizer.optimizer_args")
    _check_types(cls, given, accepted)
    params = list(parameters)
    chosen: dict[str, Any] = {"lr": learning_rate}
    for key, value in (("weight_decay", weight_decay), ("betas", betas), ("eps", eps)):
        if key in accepted and _same_form(accepted[key].default, value):
            chosen[key] = value
        elif value != _USUAL[key] and key not in given:
            log.warning("%s = %s has no effect: %s does not take it in this form", key, value, cls.__name__)
    if "fused" in accepted and all(p.is_cuda and p.is_floating_point() for p in _flat(params)):
        chosen["fused"] = True
    chosen.update({key: tuple(v) if isinstance(v, list) else v for key, v in given.items()})
    try:
        made = cls(params, **chosen)
    except (TypeError, ValueError, RuntimeError) as error:
        text = f"{cls.__name__} does not take these arguments: {error}"
        raise Refused(text, "Correct or remove the arguments of the optimizer.", "optimizer.optimizer_args") from error
    if callable(getattr(made, "train", None)):
        # schedule-free classes know two points, and some refuse to step before they are told which one is trained
        made.train()
    return made


def _check_types(cls: type, given: Mapping[str, Any], accepted: Mapping[str, inspect.Parameter]) -> None:
    """Refused for an argument of another type than the class's default: a list in a flag's place counts as true."""
    for key, value in given.items():
        default = accepted[key].default if key in accepted else None
        wanted = next((words for kinds, words in _TYPES if isinstance(default, kinds)), "")
        fits = value is None or (
            isinstance(value, bool) == isinstance(default, bool)
            and any(isinstance(value, kinds) for kinds, words in _TYPES if words == wanted)
        )
        if wanted and not fits:
            text = f"{cls.__name__} takes {wanted} as {key}, not {value!r}"
            raise Refused(text, f"Write a value such as {default!r}, its default.", "optimizer.optimizer_args")


def _flat(parameters: Iterable[Any]) -> list[torch.nn.Parameter]:
    return [p for one in parameters for p in (one["params"] if isinstance(one, dict) else [one])]


def make_scheduler(
    name: str,
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup: float = 0.0,
    cycles: int = 1,
    power: float = 1.0,
    min_lr_ratio: float = 0.0,
) -> LRScheduler:
    """The schedule called `name` (one of SCHEDULES, or ``package.Class``), stepped once an optimizer step.

    total_steps: optimizer steps of the whole run. warmup: steps, or below 1 a share of them (`warmup_steps`).
    A class gets the run's length under the name it uses; one that needs more than this is refused.
    """
    if name in SCHEDULES:
        warm = warmup_steps(warmup, total_steps)
        return LambdaLR(optimizer, lambda step: lr_factor(name, step, total_steps, warm, cycles, power, min_lr_ratio))
    cls = _class(name, dict.fromkeys(SCHEDULES, ""), LRScheduler, "optimizer.lr_scheduler")
    accepted, _ = _accepted(cls)
    chosen = {key: total_steps for key in _TOTAL_NAMES if key in accepted}
    required = [k for k, p in accepted.items() if p.default is inspect.Parameter.empty and k not in chosen]
    if required:
        text = f"{cls.__name__} also needs {', '.join(required)}, which no setting gives"
        raise Refused(text, f"Choose one of {', '.join(SCHEDULES)}.", "optimizer.lr_scheduler")
    if warmup:
        log.warning("lr_warmup has no effect: %s has its own schedule", cls.__name__)
    try:
        return cls(optimizer, **chosen)
    except (TypeError, ValueError) as error:
        text = f"{cls.__name__} can't be made: {error}"
        raise Refused(text, f"Choose one of {', '.join(SCHEDULES)}.", "optimizer.lr_scheduler") from error


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Optimizer steps of warm-up: below 1 a share of the run (rounded), from 1 a number of steps."""
    return min(total_steps, round(warmup * total_steps) if warmup < 1 else int(warmup))


def lr_factor(
    name: str, step: int, total: int, warmup: int, cycles: int = 1, power: float = 1.0, min_ratio: float = 0.0
) -> float:
    """What the learning rate is multiplied by at optimizer step `step` (from 0); 1 at the end of the warm-up.

    linear, cosine, cosine_with_restarts and polynomial are those of diffusers' ``optimization.py`` at min_ratio 0;
    `cycles` counts restarts. rex: (1 - p) / (1 - p / 2), p the share done (Chen et al., REX, arXiv 2107.04197).
    min_ratio: the floor that the falling part ends at. ValueError for an unknown name.
    """
    if step < warmup:
        return step / max(1, warmup)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    if name == "constant":
        return 1.0
    if name == "linear":
        falling = 1 - done
    elif name == "cosine":
        falling = 0.5 * (1 + math.cos(math.pi * done))
    elif name == "cosine_with_restarts":
        falling = 0.0 if done >= 1 else 0.5 * (1 + math.cos(math.pi * ((cycles * done) % 1.0)))
    elif name == "polynomial":
        falling = (1 - done) ** power
    elif name == "rex":
        falling = (1 - done) / (1 - done / 2)
    else:
        raise ValueError(f"lr_scheduler {name!r} is unknown")
    return min_ratio + (1 - min_ratio) * falling


def _same_form(default: Any, value: Any) -> bool:
    """True when a parameter with this default takes a value like this; Adafactor's eps is a pair of another meaning."""
    if isinstance(value, tuple):
        return isinstance(default, tuple) and len(default) == len(value)
    return isinstance(default, int | float)


def _class(name: str, known: Mapping[str, str], base: type, setting: str) -> Callable[..., Any]:
    """The class behind a known name or a class path. Refused when there is none, with the nearest names."""
    path = known.get(name) or known.get(name.lower()) or (name if "." in name else "")
    if not path:
        near = difflib.get_close_matches(name.lower(), list(known), n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        remedy = f"Use one of {', '.join(known)}, or a class path such as package.Class."
        raise Refused(f"{name!r} is unknown.{hint}", remedy, setting)
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        root = module.partition(".")[0]
        problem = load_problem(root)
        first = "Check the name and the version" if problem is None else install_remedy(root, problem)
        text = f"{path} can't be imported: {error}" if problem is None else f"{path} needs {root}, which {problem}"
        raise Refused(text, f"{first}; or use one of {', '.join(known)}.", setting) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        remedy = f"Name a class of this kind, or use one of {', '.join(known)}."
        raise Refused(f"{path} is no {base.__name__}", remedy, setting)
    return found


def _accepted(cls: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Parameters that a class takes beside its first (the tensors or the optimizer); True when it takes any name."""
    parameters = list(inspect.signature(cls).parameters.values())
    named = {
        p.name: p
        for p in parameters[1:]
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return named, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _check_names(
    cls: Callable[..., Any],
    given: Mapping[str, Any],
    accepted: Mapping[str, inspect.Parameter],
    takes_any: bool,
    setting: str,
) -> None:
    unknown = [] if takes_any else [key for key in given if key not in accepted]
    if not unknown:
        return
    near = {key: difflib.get_close_matches(key, list(accepted), n=1) for key in unknown}
    said = ", ".join(f"{key} (did you mean {near[key][0]}?)" if near[key] else key for key in unknown)
    raise Refused(f"{cls.__name__} does not take {said}", f"It takes {', '.join(accepted)}.", setting)
