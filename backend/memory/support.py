"""What a machine can do with quantised weights: packages and cards, named where they don't suffice."""

from __future__ import annotations

import importlib.util

import torch

from backend.config.problems import Problem

_NEEDS = {"int8": ((8, 0), "an Ampere card or newer"), "fp8": ((8, 9), "an Ada or Hopper card or newer")}


def missing(kind: str | None, compute: str, device: torch.device) -> str:
    """Why `device` can't hold weights of format `kind` and multiply in `compute`, in words; "" when it can.

    Every device dequantises fp8 and int8. 8-bit products need a card that has them; on a CPU they run, slowly.
    """
    if kind == "nf4" and importlib.util.find_spec("bitsandbytes") is None:
        return "nf4 needs the package bitsandbytes, which is not installed"
    if compute == "bf16" or device.type != "cuda":
        return ""
    needed, words = _NEEDS[compute]
    found = torch.cuda.get_device_capability(device)
    if found >= needed:
        return ""
    has, wants = (".".join(map(str, version)) for version in (found, needed))
    name = torch.cuda.get_device_name(device)
    return f"{compute} matrix products need {words} (compute capability {wants}); {name} has {has}"


def problems(kind: str | None, compute: str, text: str | None, device: torch.device) -> list[Problem]:
    """An error for each of the quantisation settings that `device` or this installation can't do.

    kind, compute: of the denoiser. text: format of the text encoders' weights.
    """
    found = []
    lacking = missing(kind, "bf16", device)
    if lacking:
        found.append(Problem("memory.base_quantization", None, lacking, _INSTALL))
    lacking = missing(None, compute, device)
    if lacking:
        found.append(Problem("memory.base_compute", None, lacking, "Set base_compute to bf16."))
    lacking = missing(text, "bf16", device)
    if lacking:
        found.append(Problem("memory.text_encoder_quantization", None, lacking, _INSTALL))
    return found


_INSTALL = "Install it (pip install bitsandbytes), or choose int8."
