"""Defines the result of a check, and checks which attention kernels and quantised formats this machine can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from backend.config.packages import pip_command

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    text: str
    remedy: str = ""
    """What to do about it; empty where there is nothing to do."""


_ROUTE_PACKAGES = {"flash2": "flash_attn", "fa4": "flash_attn.cute"}


def _route_remedy(name: str, why: str) -> str:
    """What to do about an attention kernel that can't be used: install its package, or another build of it."""
    if name not in _ROUTE_PACKAGES or "installed" not in why:
        return "You don't need it."
    return f"Optional: {pip_command(_ROUTE_PACKAGES[name], why)}"


def attention(facts: dict[str, Any]) -> list[Check]:
    """The attention kernels that can be used, and why each other one can't. facts: the probe's."""
    routes: dict[str, str | None] = facts.get("routes", {})
    usable = [name for name, why in routes.items() if why is None]
    names = ", ".join(usable)
    text = f"usable here: {names}; auto chooses the fastest"
    if not facts.get("gpu"):
        # Most lack the GPU that the check "GPU" reports already: no warning for each of them.
        on_gpu = [name for name, why in routes.items() if why and "needs an NVIDIA GPU" in why]
        others = [why for name, why in routes.items() if why and name not in on_gpu]
        reasons, lacking = "; ".join(others), ", ".join(on_gpu)
        if on_gpu and others:
            text = f"usable here: {names}; auto chooses the fastest; {lacking} need an NVIDIA GPU; {reasons}"
        elif on_gpu:
            text = f"usable here: {names}; auto chooses the fastest; {lacking} need an NVIDIA GPU"
        elif others:
            text = f"usable here: {names}; auto chooses the fastest; {reasons}"
        return [Check("Attention", "ok", text)]
    checks = [Check("Attention", "ok", text)]
    for name, why in routes.items():
        if why is not None:
            remedy = _route_remedy(name, why)
            checks.append(Check(f"Attention {name}", "warn", why, remedy))
    return checks


_WITHOUT = {
    "int8": "Keep base_compute at bf16.",
    "fp8": "Keep base_compute at bf16.",
}


def quantised(facts: dict[str, Any]) -> list[Check]:
    """NF4 weights and 8-bit products; weights in int8 and fp8 work everywhere."""
    lacking = {name: why for name, why in facts.get("quantised", {}).items() if why}
    if not lacking:
        return [Check("Quantised base", "ok", _products(facts))]
    return [Check("Quantised base", "warn", why, _without(name, why)) for name, why in lacking.items()]


def _products(facts: dict[str, Any]) -> str:
    """What can be computed, and that int8 products are slow where Triton's kernels are missing on a GPU."""
    if not facts.get("gpu") or facts["packages"].get("triton") is None:
        return "fp8, int8 and nf4 weights, int8 and fp8 products"
    return (
        "fp8, int8 and nf4 weights, int8 and fp8 products; int8 without Triton's kernels, slower than bf16 on many GPUs"
    )


def _without(name: str, why: str) -> str:
    """What to do without a format or an 8-bit product."""
    if name in _WITHOUT:
        return _WITHOUT[name]
    return f"Optional: {pip_command('bitsandbytes', why)}"
