"""Makes optimizers by name (the table: `backend.config.sections.optimizer`) or class path, their arguments checked."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from backend.base.errors import Refused
from backend.config.sections.optimizer import OPTIMIZER_CLASSES
from backend.optimizers.adafactor import Adafactor
from backend.optimizers.class_names import accepted_arguments, class_named

log = logging.getLogger(__name__)

OPTIMIZERS = OPTIMIZER_CLASSES | {"adafactor": f"{Adafactor.__module__}.{Adafactor.__name__}"}

_USUAL = {"weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
"""What the settings give when nobody chose; only another value deserves a word when it has no effect."""

_TYPES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "true or false"),
    ((int, float), "a number"),
    ((str,), "a text"),
    ((list, tuple), "a list"),
)
"""Types of an argument's default, the narrower first, and what they are called."""


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
    cls = class_named(name, OPTIMIZERS, Optimizer, "optimizer.optimizer")
    accepted, takes_any = accepted_arguments(cls)
    own = dict(arguments or {})
    # pytorch_optimizer's classes take any name and drop it; those of the list use only what they name
    _check_names(cls, own, accepted, takes_any and "." in name, "optimizer.optimizer_args")
    _check_types(cls, own, accepted)
    params = list(parameters)
    options: dict[str, Any] = {"lr": learning_rate}
    for key, value in (("weight_decay", weight_decay), ("betas", betas), ("eps", eps)):
        if key in accepted and _same_form(accepted[key].default, value):
            options[key] = value
        elif value != _USUAL[key] and key not in own:
            log.warning("%s = %s has no effect: %s does not take it in this form", key, value, cls.__name__)
    if "fused" in accepted and all(p.is_cuda and p.is_floating_point() for p in _flat(params)):
        options["fused"] = True
    options.update({key: tuple(v) if isinstance(v, list) else v for key, v in own.items()})
    try:
        made = cls(params, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        text = f"{cls.__name__} does not take these arguments: {error}"
        raise Refused(text, "Correct or remove the arguments of the optimizer.", "optimizer.optimizer_args") from error
    if callable(getattr(made, "train", None)):
        # schedule-free classes know two points, and some refuse to step before one is set
        made.train()
    return made


def _check_types(cls: type, arguments: Mapping[str, Any], accepted: Mapping[str, inspect.Parameter]) -> None:
    """Refused for an argument of another type than the class's default: a list in a flag's place counts as true."""
    for key, value in arguments.items():
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


def _same_form(default: Any, value: Any) -> bool:
    """True when a parameter with this default takes a value like this; Adafactor's eps is a pair of another meaning."""
    if isinstance(value, tuple):
        return isinstance(default, tuple) and len(default) == len(value)
    return isinstance(default, int | float)


def _check_names(
    cls: Callable[..., Any],
    arguments: Mapping[str, Any],
    accepted: Mapping[str, inspect.Parameter],
    takes_any: bool,
    setting: str,
) -> None:
    unknown = [] if takes_any else [key for key in arguments if key not in accepted]
    if not unknown:
        return
    near = {key: difflib.get_close_matches(key, list(accepted), n=1) for key in unknown}
    names = ", ".join(f"{key} (did you mean {near[key][0]}?)" if near[key] else key for key in unknown)
    raise Refused(f"{cls.__name__} does not take {names}", f"It takes {', '.join(accepted)}.", setting)
