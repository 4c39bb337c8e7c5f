"""Tells which quantised formats this machine can't use, with the package or the GPU that is missing."""

from __future__ import annotations

import torch

from backend.base.problems import Problem
from backend.compile.model_compiler import torch_version
from backend.config.packages import install_remedy, load_problem
from backend.config.schema import Config
from backend.config.sections.memory import MemorySection
from backend.plan.memory.machine import PRODUCT_CAPABILITY
from backend.plan.memory.weight_bytes import stored_as

_NEEDED_WORDS = {"int8": "an Ampere GPU or newer", "fp8": "an Ada or Hopper GPU or newer"}

# Triton has no fp8 of this kind before Ada; from this torch on, inductor reads its bytes by itself there.
_FP8_AS_BYTES = (2, 13)


def quantization_problem(kind: str | None, compute: str, device: torch.device) -> str:
    """Why `device` can't hold weights of format `kind` and multiply in `compute`, in words; "" when it can.

    Every device dequantises fp8 and int8. 8-bit products need a GPU that has them; on a CPU they run, slowly.
    """
    if kind == "nf4" and (problem := load_problem("bitsandbytes")):
        return f"nf4 needs the package bitsandbytes, which {problem}"
    if compute == "bf16" or device.type != "cuda":
        return ""
    needed, words = PRODUCT_CAPABILITY[compute], _NEEDED_WORDS[compute]
    capability = torch.cuda.get_device_capability(device)
    if capability >= needed:
        return ""
    has, wants = (".".join(map(str, version)) for version in (capability, needed))
    name = torch.cuda.get_device_name(device)
    return f"{compute} matrix products need {words} (compute capability {wants}); {name} has {has}"


def support_by_format(device: torch.device) -> dict[str, str]:
    """Every format and 8-bit product -> why `device` or this installation can't do it, "" where it can."""
    return {"nf4": quantization_problem("nf4", "bf16", device)} | {
        name: quantization_problem(None, name, device) for name in PRODUCT_CAPABILITY
    }


def problems(memory: MemorySection, device: torch.device) -> list[Problem]:
    """An error for each of the quantisation settings that `device` or this installation can't do."""
    kind = stored_as(memory.base_quantization, memory.base_compute)
    asked = (
        ("memory.base_quantization", quantization_problem(kind, "bf16", device), _other_format),
        (
            "memory.base_compute",
            quantization_problem(None, memory.base_compute, device),
            lambda: "Set base_compute to bf16.",
        ),
        (
            "memory.text_encoder_quantization",
            quantization_problem(stored_as(memory.text_encoder_quantization), "bf16", device),
            _other_format,
        ),
    )
    return [Problem(path, None, lacking, remedy()) for path, lacking, remedy in asked if lacking]


def _other_format() -> str:
    """What to do where bitsandbytes can't be used."""
    problem = load_problem("bitsandbytes")
    return f"{install_remedy('bitsandbytes', problem)}; or choose int8." if problem else "Choose int8."


def fp8_compile_warnings(cfg: Config, device: torch.device) -> list[Problem]:
    """A warning where fp8 weights keep blocks from being compiled, which `quantization_problem` has nothing against."""
    kind = stored_as(cfg.memory.base_quantization, cfg.memory.base_compute)
    compiles = cfg.compile.compile and cfg.compile.compile_backend == "inductor"
    if kind != "fp8" or not compiles or device.type != "cuda" or torch_version() >= _FP8_AS_BYTES:
        return []
    if torch.cuda.get_device_capability(device) >= PRODUCT_CAPABILITY["fp8"]:
        return []
    name, torch_is = torch.cuda.get_device_name(device), ".".join(map(str, torch_version()))
    text = f"torch {torch_is} can't compile fp8 weights for {name}: their blocks will run eagerly, slower"
    remedy = "Set base_quantization to int8, which takes as much memory and is the more exact, or install torch 2.13."
    return [Problem("memory.base_quantization", None, text, remedy, "warning")]
