"""Reads values as OneTrainer, ai-toolkit, SimpleTuner and diffusion-pipe write them: formats, kernels, schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from backend.importers.common_reasons import WEIGHT_FORMAT
from backend.importers.value_tables import SCHEDULERS
from backend.importers.values import Left, Taken, is_off, number


def _plain(value: Any) -> str:
    return re.sub(r"[\s_-]", "", str(value)).lower()


def _format(value: Any) -> str:
    """One of fp32, fp16, bf16, fp8, int8, nf4; the name there in small letters where it is none of these."""
    plain = _plain(value).removeprefix("torch.").removeprefix("q")
    for names, ours in (
        (("float32", "fp32", "tfloat32", "tf32", "float"), "fp32"),
        (("bfloat16", "bf16"), "bf16"),
        (("float16", "fp16", "half"), "fp16"),
    ):
        if plain in names:
            return ours
    for sign, ours in (("float8", "fp8"), ("fp8", "fp8"), ("int8", "int8"), ("nfloat4", "nf4"), ("nf4", "nf4")):
        if sign in plain:
            return ours
    return "nf4" if re.search(r"(int|float|fp)[2-7]", plain) else plain


def _saved(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken(_format(value))


def _amp(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    ours = _format(value)
    return Taken("no" if ours in ("fp32", "no") else ours)


def _quantization(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    ours = _format(value)
    if ours in ("fp32", "bf16", "fp16", "none", "nochange", ""):
        raise Left(WEIGHT_FORMAT, needed=False)
    if ours not in ("fp8", "int8", "nf4"):
        raise Left(f"weights in {value} are not supported")
    small = re.search(r"(?:int|float|fp)([2-7])", _plain(value).replace("nfloat4", "").replace("nf4", ""))
    return Taken(ours, f"Monotile uses nf4 for weights with {small[1]} bits" if small else "")


def _text_quantization(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    taken = _quantization(key, value, all_)
    if taken.value == "fp8":
        return Taken("int8", "Monotile uses int8 for text encoders: as small as fp8, and more exact")
    return taken


def _resolutions(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    """Several sizes to train at, of which each is a side or a pair."""
    parts = re.split(r"[,;]", value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    sides = [_side(part) for part in parts if str(part).strip()]
    if not sides:
        raise Left(f"{value!r} is not a size")
    near = (
        f"Monotile has one resolution for all images; the largest of {', '.join(map(str, sides))} is used"
        if len(sides) > 1
        else ""
    )
    return Taken(max(sides), near)


def _side(part: Any) -> int:
    sides = re.split(r"[x*]", part) if isinstance(part, str) else part if isinstance(part, list) else [part]
    numbers = [number(side) for side in sides]
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int | float) or n <= 0 for n in numbers):
        raise Left(f"{part!r} is not a size; write 1024 or 1024x1024")
    # SimpleTuner counts in megapixels where a number is small
    side = (numbers[0] * numbers[-1]) ** 0.5 if len(numbers) > 1 else numbers[0]
    return round((side * 1024 * 1024) ** 0.5 if side < 16 else side)


def _base(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    path = str(value).strip()
    on_the_net = re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not path.startswith(".") and "safetensors" not in path
    return Taken(
        path,
        "a model on the internet; Monotile downloads nothing, so set the folder of the model" if on_the_net else "",
    )


def _schedule(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    name = str(value).strip().lower()
    name = {"cosine_with_hard_restarts": "cosine_with_restarts", "sine": "cosine_with_restarts"}.get(name, name)
    if name == "custom":
        raise Left("set a scheduler of your own by its class path")
    return Taken(*SCHEDULERS.get(name, (name, "")))


def _limit(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    """A share of the noise, from 0 to 1, as a timestep."""
    share = number(value)
    return Taken(share * 1000 if isinstance(share, int | float) and not isinstance(share, bool) else share)


_KERNELS = {
    "sdp": "sdpa", "diffusers": "sdpa", "nativemath": "sdpa", "nativeefficient": "sdpa", "nativeflash": "sdpa",
    "cudnn": "sdpa", "flash": "flash2", "flashattn": "flash2", "flashattn2": "flash2", "flashattn3": "fa3",
    "flashattn3varlen": "fa3", "flex": "flex",
}  # fmt: skip


def _kernel(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    name = _plain(value)
    if name in ("default", "auto"):
        raise Left("the default", needed=False)
    if name == "xformers":
        return Taken("auto", "Monotile does not use xformers; auto uses the fastest kernel, with the same result")
    if name not in _KERNELS:
        raise Left(f"{value} is not supported; the attention setting does not change")
    return Taken(_KERNELS[name])


def _file_name(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    name = str(value).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return Taken(re.sub(r"\.(safetensors|ckpt|pt)$", "", name))


def _switched(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    if isinstance(value, str):
        return Taken(value.strip().lower() not in ("off", "false", "none", "no", "0"))
    return Taken(bool(value) if isinstance(value, int) else value)


def _dotted(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    text = str(value).strip().lstrip(".")
    return Taken(f".{text}")


def _no_limit(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    return Taken(0.0 if is_off(value) else number(value))


def _parts_of_names(key: str, value: Any, all_: Mapping[str, Any]) -> Taken:
    """Parts of layers' names, as patterns of whole names."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts:
        raise Left("it is empty", needed=False)
    bare = (str(part).removeprefix("transformer.").removeprefix("unet.") for part in parts)
    return Taken([f".*{re.escape(part)}.*" for part in bare])


PROGRAM_READERS: dict[str, Callable[[str, Any, Mapping[str, Any]], Taken]] = {
    "saved": _saved, "amp": _amp, "quantization": _quantization, "text_quantization": _text_quantization,
    "resolutions": _resolutions, "schedule": _schedule, "limit": _limit, "kernel": _kernel, "file_name": _file_name,
    "switched": _switched, "base": _base, "dotted": _dotted, "no_limit": _no_limit, "parts_of_names": _parts_of_names,
}  # fmt: skip
