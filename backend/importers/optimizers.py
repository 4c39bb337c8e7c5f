"""Reads the optimizer with its arguments and its schedule, where names are those of other classes.

sd-scripts ``library/train_util.py`` and musubi-tuner ``training/trainer_base.py`` say which class a name is; what it
takes where nothing is said is its constructor's (lion_pytorch, prodigyopt, schedulefree, bitsandbytes, torch).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from backend.config.file_kinds import names
from backend.config.schema import by_path
from backend.config.sections.optimizer import OPTIMIZERS
from backend.importers.arguments import arguments
from backend.importers.notes import Note
from backend.importers.values import Left, is_off, number
from backend.importers.work import Work

_NAME, _RATE, _ARGS = "optimizer.optimizer", "optimizer.learning_rate", "optimizer.optimizer_args"
_SCHEDULE, _WARMUP = "optimizer.lr_scheduler", "optimizer.lr_warmup"
_FLOOR, _CYCLES = "optimizer.lr_scheduler_min_lr_ratio", "optimizer.lr_scheduler_num_cycles"
_OWN = {"weight_decay": "optimizer.weight_decay", "betas": "optimizer.betas", "eps": "optimizer.eps"}

# Arguments of the class there -> of the class here; None for one without a counterpart.
_RENAMED: dict[str, dict[str, str | None]] = {
    "prodigy": {"decouple": "weight_decouple", "use_bias_correction": "bias_correction", "fsdp_in_use": None,
                "slice_p": None, "log_every": None},
    "lion": {"use_triton": None, "decoupled_weight_decay": None},
}  # fmt: skip
_ADAMW = ("adamw", "adamw8bit", "paged_adamw", "paged_adamw8bit", "bitsandbytes.optim.PagedAdamW32bit")
_LIONS = ("lion", "lion8bit", "paged_lion8bit")
_HUGGING = "transformers.optimization.Adafactor"


def read_optimizer(work: Work) -> None:
    """Take over the arguments, and bring name, rate and schedule to what they amount to there."""
    name = _known(str(work.ours.get(_NAME, by_path()[_NAME].default)))
    options, line = _arguments_of(work), work.source.lines.get("optimizer_args")
    if name == "adafactor":
        options = _adafactor(work, options)
    for key, ours in _RENAMED.get(name, {}).items():
        if key in options:
            value = options.pop(key)
            if ours is not None:
                options[ours] = value
            elif not is_off(value):
                why = f"the {name} that Monotile uses has no such argument"
                work.notes.append(Note(f"optimizer_args {key}", "not offered", why, line))
    optimizer = str(work.values.get(work.origin.get(_NAME, ""), "")).strip().lower()
    if optimizer.startswith("sgdnesterov"):
        options = {"momentum": 0.9, "nesterov": True} | options
    for key, path in _OWN.items():
        if key in options:
            work.take(path, options.pop(key), "optimizer_args")
    _unsaid(work, name)
    if options:
        work.take(_ARGS, options, "optimizer_args")
    _schedule(work, free=optimizer.endswith("schedulefree"))


def _known(name: str) -> str:
    """Our spelling of a name, which is taken in any; a class path as it is."""
    letters = re.sub(r"[\s_-]", "", name).lower()
    return next((ours for ours in OPTIMIZERS if ours.replace("_", "") == letters), name)


def _arguments_of(work: Work) -> dict[str, Any]:
    if "optimizer_args" not in work.values:
        return {}
    try:
        options = _of_type(work, arguments(work.values["optimizer_args"]))
    except Left as left:
        work.note("optimizer_args", "not offered", str(left))
        return {}
    work.note("optimizer_args", "taken" if options else "off", "", _ARGS if options else None)
    return options


def _of_type(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments whose values have the type that every class takes there; a word for each other one."""
    kept = {}
    for key, value in options.items():
        words, fits = next((row[1:] for row in _TYPES if key in row[0]), ("", None))
        if fits is None or value is None or fits(value):
            kept[key] = value
            continue
        why = f"it takes {words}, not {value!r}"
        work.notes.append(Note(f"optimizer_args {key}", "not offered", why, work.source.lines.get("optimizer_args")))
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


_TYPES: tuple[tuple[frozenset[str], str, Callable[[Any], bool]], ...] = (
    (
        names(
            "decouple weight_decouple use_bias_correction bias_correction safeguard_warmup amsgrad nesterov "
            "relative_step scale_parameter warmup_init fixed_decay maximize foreach fused capturable differentiable"
        ),
        "true or false",
        lambda value: isinstance(value, bool),
    ),
    (names(
        "weight_decay d_coef d0 growth_rate momentum dampening clip_threshold decay_rate"
    ), "a number",
     _is_number),
    (frozenset(("betas",)), "a list of numbers", _is_list),
)  # fmt: skip
"""Arguments that classes of several makers have alike."""


def _unsaid(work: Work, name: str) -> None:
    """Weight decay and betas of the class where the file leaves them out; AdamW's are those of the settings."""
    if _NAME not in work.ours or name in _ADAMW or ("." in name and name != _HUGGING):
        return
    unsaid = {"optimizer.weight_decay": 0.0} | ({"optimizer.betas": [0.9, 0.99]} if name in _LIONS else {})
    optimizer = work.values.get(work.origin[_NAME], name)
    for path, value in unsaid.items():
        if path not in work.ours:
            work.change(path, value, path.rpartition(".")[2], f"not in the file: {value} is what {optimizer} uses")


def _adafactor(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """Hugging Face's class where it has a rate; torch's does as it where the rate follows the step alone."""
    if options.get("relative_step") is False and not options.get("warmup_init"):
        work.change(_NAME, _HUGGING, "optimizer_type", "the class that the other program uses", "taken")
        return options
    why = (
        "relative_step: the rate is 0.01, later 1 / √step, of the size of the weights, whatever rate the file "
        "gives; torch's Adafactor does so at 0.01"
    )
    work.change(_NAME, "adafactor", "optimizer_type", why)
    for path in (_RATE, "optimizer.text_encoder_lr", _SCHEDULE, _WARMUP):
        if path in work.ours:
            work.drop(path, "not needed", "it has no effect in the other program under relative_step")
    work.take(_RATE, 0.01, "optimizer_type")
    work.take(_SCHEDULE, "constant", "optimizer_type")
    work.take(_WARMUP, 0.0, "optimizer_type")
    return {key: value for key, value in options.items() if key in _OWN}


def _schedule(work: Work, free: bool) -> None:
    if free:
        for path, value in ((_SCHEDULE, "constant"), (_WARMUP, 0.0)):
            if path in work.ours and work.ours[path] != value:
                work.drop(path, "not needed", "it has no effect in the other program: the optimizer has no schedule")
            work.take(path, value, "optimizer_type")
    scheduler = str(work.values.get("lr_scheduler") or "").strip().lower()
    if not is_off(work.ours.get(_FLOOR)) and scheduler not in ("cosine_with_min_lr", "warmup_stable_decay", "rex"):
        work.drop(_FLOOR, "not needed", f"it has no effect in the other program on {scheduler or 'this schedule'}")
    if scheduler == "rex" and _FLOOR not in work.ours:
        work.change(_FLOOR, 0.01, "lr_scheduler_min_lr_ratio", "not in the file: 0.01 is what rex takes")
    restarts = work.kind == "kohya_ss" and scheduler == "cosine_with_restarts"
    if restarts and _CYCLES not in work.ours and not is_off(work.values.get("epoch")):
        # its window takes the epochs where the field is empty
        work.take(_CYCLES, number(work.values["epoch"]), "lr_scheduler_num_cycles")
