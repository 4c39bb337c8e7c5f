"""Reads a value as ours: each reader takes what stands in the file, and gives a word where it is not the same.

`Left` says that it has no counterpart.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from backend.config.sections.values import CLASS_PATH
from backend.importers.value_tables import OPTIMIZERS, SAMPLINGS, SCHEDULERS

_LARGEST = 10**15


class Taken(NamedTuple):
    """A value of ours. near: how it differs from what the other program does; empty where it doesn't."""

    value: Any
    near: str = ""


class Left(Exception):
    """The value has no counterpart; the text says why. needed: False where nothing is lost by it."""

    def __init__(self, why: str, needed: bool = True) -> None:
        super().__init__(why)
        self.needed = needed


def number(value: Any) -> Any:
    """A number as a number, also where it stands in quotes; anything else as it is, to be refused by its setting.

    One that is no size of anything, such as infinity or one of hundreds of digits, is given as text.
    """
    parsed = value
    if isinstance(value, str):
        try:
            parsed = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value
    if isinstance(parsed, bool) or not isinstance(parsed, int | float):
        return value
    if not -_LARGEST <= parsed <= _LARGEST:
        return str(value)
    return int(parsed) if isinstance(parsed, float) and parsed.is_integer() else parsed


def is_off(value: Any) -> bool:
    """Whether a value says no more than that nothing was chosen."""
    if isinstance(value, str):
        return value.strip().lower() in ("", "none", "no", "false", "0", "0.0")
    return value is None or value is False or value == 0 or value in ([], {})


def _number(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken(number(value))


def _off_at_0(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken(None if is_off(value) else number(value))


def _text(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken(value.strip() if isinstance(value, str) else value)


def _flag(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return Taken(value.strip().lower() == "true")
    return Taken(value)


def _jitter(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    near = "the other program changes hue or gamma a little; here brightness, contrast and saturation change by 5 %"
    return Taken(0.0) if is_off(value) else Taken(0.05, near)


def _extension(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    text = str(value).strip()
    return Taken(text if text.startswith(".") else f".{text}")


def _resolution(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    parts = re.split(r"[,x]", value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    sides = [number(part) for part in parts]
    if not sides or len(sides) > 2 or any(isinstance(s, bool) or not isinstance(s, int | float) for s in sides):
        raise Left(f"{value!r} is not a size; write 1024 or 1024,1024")
    if sides[0] == sides[-1]:
        return Taken(sides[0])
    side = round(math.sqrt(abs(sides[0] * sides[-1])))
    return Taken(
        side, f"{sides[0]} x {sides[-1]} is the area of a square of {side} px; sizes depend on each image's shape"
    )


def _bucket_step(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    step = number(value)
    if isinstance(step, int) and step > 0 and step % 16:
        rounded = math.ceil(step / 16) * 16
        return Taken(rounded, f"sides are multiples of 16 px, so {step} becomes {rounded}")
    return Taken(step)


def _full_bf16(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken("bf16" if _flag(key, value, all_).value is True else "fp32")


def _rate(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    rate = number(value[0] if isinstance(value, list) and value else value)
    if is_off(rate):
        raise Left("0 or empty: it uses learning_rate, or it is not trained", needed=False)
    different = isinstance(value, list) and len(set(map(str, value))) > 1
    return Taken(rate, "Monotile has one rate for all text encoders; the first is used" if different else "")


def _optimizer(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    name = str(value).strip()
    if name.lower().startswith("dadapt"):
        return Taken("prodigy", "D-Adaptation is not supported; Prodigy, which finds the rate itself too, is used")
    return Taken(next((ours for theirs, ours in OPTIMIZERS.items() if theirs.lower() == name.lower()), name))


def _scheduler(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    name = str(value).strip().lower()
    return Taken(*SCHEDULERS.get(name, (name, "")))


def _class_path(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left("it is empty", needed=False)
    path = str(value).strip()
    path = path if "." in path else f"torch.optim.lr_scheduler.{path}"
    if not CLASS_PATH.fullmatch(path):
        raise Left("a scheduler class needs its whole path, such as package.Class")
    return Taken(path)


def _warmup(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value) and not is_off(all_.get("lr_warmup")):
        raise Left("0: the share in lr_warmup has priority", needed=False)
    return Taken(number(value))


def _percent(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if not is_off(all_.get("lr_warmup_steps")):
        raise Left("the steps in lr_warmup_steps have priority", needed=False)
    share = number(value)
    return Taken(share / 100 if isinstance(share, int | float) and not isinstance(share, bool) else share)


def _alpha(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if not is_off(value):
        return Taken(number(value))
    rank = number(all_.get("network_dim"))
    return Taken(4 if is_off(rank) else rank, "in the other program 0 means an alpha equal to the rank")


def _seed(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    seed = number(value)
    if value in (None, "", 0, "0") or (isinstance(seed, int) and seed < 0):
        raise Left(
            "the other program uses a new seed for each run; Monotile always the same, so that runs can be compared",
            False,
        )
    return Taken(seed)


def _seed_or_0(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken(0) if not isinstance(value, bool) and number(value) == 0 else _seed(key, value, all_)


def _sampling(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    name = str(value).strip()
    return Taken(*SAMPLINGS.get(name, (name, "")))  # those without one here are read by `timesteps`


def _weighting(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    name = str(value).strip()
    if name in ("logit_normal", "uniform", "mode"):
        return Taken("none")  # there it only changes how levels are drawn
    return Taken("none" if is_off(name) else name)


def _buckets(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value) or number(value) == 1:
        raise Left("it is off", needed=False)
    if str(all_.get("timestep_sampling", "sigma")).strip() == "sigma":
        raise Left("it has no effect with sigma", needed=False)
    return Taken(
        True, f"the other program has {number(value)} buckets of levels; Monotile as many as a step has rows, or 8"
    )


def _discount(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value) and is_off(all_.get("multires_noise_iterations")):
        raise Left("it is not used, because multires_noise_iterations is 0", needed=False)
    return Taken(number(value))


def _v_prediction(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken("auto" if is_off(value) else "v_prediction")


def _compile(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left(
            "off in the other program; compile does not change here, and can be turned off on the Compile tab", False
        )
    return Taken(True)


def _backend(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left(
            "off in the other program; compile does not change here, and can be turned off on the Compile tab", False
        )
    return Taken(str(value).strip().lower())


def _dynamic(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    text = str(value).strip().lower()
    return Taken(text if text in ("auto", "true", "false") else "auto")


_KERNELS = {
    "sdpa": "sdpa",
    "torch": "sdpa",
    "flash_attn": "flash2",
    "use_flash_attn": "flash2",
    "flash": "flash2",
    "flash3": "fa3",
    "fa3": "fa3",
}
_SAME = {"xformers": "auto", "mem_eff_attn": "auto"}


def _attention(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    # kohya_ss keeps the kernel's name under "xformers"; the others have a flag for each kernel.
    name = value.strip().lower() if isinstance(value, str) and value.strip().lower() not in ("true", "false") else key
    if is_off(value):
        raise Left("it is off", needed=False)
    if name in _KERNELS:
        return Taken(_KERNELS[name])
    if name in _SAME:
        return Taken(_SAME[name], f"Monotile does not use {name}; auto uses the fastest kernel, with the same result")
    raise Left(f"{name} is not supported; the attention setting does not change")


def _fp8(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left("it is off", needed=False)
    scaled = key == "fp8_scaled" or not is_off(all_.get("fp8_scaled"))
    return Taken(
        "fp8", "" if scaled else "Monotile's fp8 weights have a scale, as with fp8_scaled: more exact, as small"
    )


def _int8_text(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left("it is off", needed=False)
    return Taken("int8", "Monotile uses int8 for text encoders: as small as fp8, and more exact")


def _tiling(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left("it is off", needed=False)
    return Taken("on")


def _factor(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    factor = number(value)
    if isinstance(factor, int) and factor < 1:
        raise Left("-1: both factors of a LoKr are as square as possible", needed=False)
    return Taken(factor)


def _old_optimizer(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left("it is off", needed=False)
    return Taken({"use_8bit_adam": "adamw8bit", "use_lion_optimizer": "lion"}[key])


def _offload(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if is_off(value):
        raise Left("it is off", needed=False)
    return Taken("offload")


def _keep_last(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    kept = number(value)
    if is_off(value):
        raise Left("it is off", needed=False)
    if key == "save_last_n_epochs":
        return Taken(kept)  # a number of files, though its name says epochs
    every = number(all_.get("save_every_n_steps"))
    if not isinstance(every, int) or not isinstance(kept, int) or every < 1:
        raise Left("it is used only together with save_every_n_steps", needed=False)
    files = kept // every + 1
    return Taken(files, f"the other program keeps the files of the last {kept} steps, which are {files}")


def _precision(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    names = {"float": "fp32", "fp32": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    text = str(value).strip().lower()
    return Taken(names.get(text, text))


def _dropout(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    share = number(value)
    return Taken(
        share, "" if is_off(share) else "the other program drops outputs of the first matrix, Monotile its inputs"
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if is_off(value) else [value]


def _paths(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    paths = [str(each).strip() for each in _listed(value)]
    if not paths:
        raise Left("it is empty", needed=False)
    return Taken(paths)


def _multipliers(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    """One for each file: those that are left out are 1 there, and those without a file don't count."""
    count = len(_listed(all_.get("base_weights")))
    numbers = [number(each) for each in (value if isinstance(value, list | tuple) else [value])][:count]
    if not numbers:
        raise Left("no LoRA is merged", needed=False)
    return Taken(numbers + [1.0] * (count - len(numbers)))


READERS: dict[str, Callable[[str, Any, Mapping[str, Any]], Taken]] = {
    "number": _number, "off_at_0": _off_at_0, "text": _text, "path": _text, "flag": _flag, "jitter": _jitter,
    "extension": _extension,
    "resolution": _resolution, "bucket_step": _bucket_step, "full_bf16": _full_bf16, "rate": _rate,
    "optimizer": _optimizer, "scheduler": _scheduler, "class_path": _class_path, "warmup": _warmup,
    "percent": _percent, "seed": _seed, "sampling": _sampling, "weighting": _weighting, "v_prediction": _v_prediction,
    "compile": _compile, "backend": _backend, "dynamic": _dynamic, "attention": _attention, "fp8": _fp8,
    "int8_text": _int8_text, "offload": _offload, "keep_last": _keep_last, "precision": _precision,
    "alpha": _alpha, "seed_or_0": _seed_or_0,
    "tiling": _tiling, "factor": _factor, "old_optimizer": _old_optimizer,
    "paths": _paths, "multipliers": _multipliers, "discount": _discount, "buckets": _buckets, "dropout": _dropout,
}  # fmt: skip
