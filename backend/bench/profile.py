"""Profiles training steps: where each millisecond goes, by groups of kernels, and what compiling spent its time on.

On a GPU the times are those of its kernels, which a profiler does not change; what is left of a step measured without
it is idle. On a CPU they are the operators' own times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

STEPS = 3
"""Profiled, after the timed ones."""

GROUPS = (
    "attention",
    "base products",
    "LoRA products",
    "norm, modulation, rotary, activation",
    "copies",
    "optimizer and gradients",
    "other kernels",
    "idle",
)

PARTS = ("tracing", "autograd", "inductor", "code", "kernels")
"""Of a compile: dynamo; the backward graph; inductor's own passes; the code it writes; waiting for kernels of it."""

_BY_NAME = (
    # the compiler's own kernels are named after all that is in them
    ("norm, modulation, rotary, activation", r"^triton_(poi|per|red|for)_"),
    ("attention", r"flash|fmha|attention|flex|sdpa"),
    ("optimizer and gradients", r"multi_tensor|adam|optimizer|_foreach|lpnorm"),
    ("copies", r"memcpy|memset|^aten::(copy_|_to_copy|to|clone|contiguous|fill_|zero_)$"),
    (
        "products",
        r"gemm|nvjet|cutlass|cublas|splitk|mm_kernel|triton_tem\w*mm|_(scaled|described)_kernel$|::scaled_product$"
        r"|^aten::(mm|addmm|bmm|linear|matmul|_scaled_mm|_int_mm)$",
    ),
    ("norm, modulation, rotary, activation", r"^triton_|^aten::"),
)
_PRODUCTS = frozenset(
    {f"aten::{name}" for name in ("mm", "addmm", "bmm", "_scaled_mm", "_int_mm", "addmv")}
    | {"monotile::scaled_product"}
)


def group_of(kernel: str) -> str:
    """The group of a kernel or operator by its name; `products` for those of which only shapes tell whose they are."""
    name = kernel.lower()
    return next((group for group, pattern in _BY_NAME if re.search(pattern, name)), "other kernels")


def is_lora_product(shapes: Sequence[Sequence[int]], rank: int) -> bool:
    """Whether a product's smallest size is a LoRA's rank, or that of up to four joined ones."""
    sizes = [size for shape in shapes for size in shape if isinstance(size, int) and size > 1]
    return bool(sizes) and min(sizes) in {rank * count for count in range(1, 5)}


def profiled(step: Callable[[Any], Any], batches: Sequence[Any], rank: int, cuda: bool) -> dict[str, float]:
    """Milliseconds a step by group, idle left out, of a step on each of `batches`."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, record_shapes=True) as profiler:
        for batch in batches:
            step(batch)
        if cuda:
            import torch

            torch.cuda.synchronize()
    events = profiler.events()
    milliseconds = _of_kernels(events, rank) if cuda else _of_operators(events, rank)
    return {group: each / len(batches) for group, each in milliseconds.items()}


def with_idle(milliseconds: Mapping[str, float], step_ms: float) -> dict[str, float]:
    """All groups in order, idle being what a step of `step_ms`, measured without a profiler, has beside them."""
    idle = max(0.0, step_ms - sum(milliseconds.values()))
    return {group: idle if group == "idle" else milliseconds.get(group, 0.0) for group in GROUPS}


def _of_kernels(events: Iterable[Any], rank: int) -> dict[str, float]:
    """Of the GPU's kernels; products are told apart by the operators that launched them."""
    from torch.autograd import DeviceType

    totals: dict[str, float] = {}
    lora = base = 0.0
    for event in events:
        if event.device_type != DeviceType.CPU:
            # Annotations of a range are no kernels, and cover those that they hold.
            if not getattr(event, "is_user_annotation", False):
                _add(totals, group_of(event.name), event.time_range.elapsed_us())
        elif event.name in _PRODUCTS:
            took = sum(kernel.duration for kernel in event.kernels)
            if is_lora_product(event.input_shapes or (), rank):
                lora += took
            else:
                base += took
    products = totals.pop("products", 0.0)
    share = lora / (lora + base) if lora + base else 0.0
    totals |= {"base products": products * (1 - share), "LoRA products": products * share}
    return {group: each / 1000 for group, each in totals.items()}


def _of_operators(events: Iterable[Any], rank: int) -> dict[str, float]:
    """Of operators on a CPU, without those that they call."""
    totals: dict[str, float] = {}
    for event in events:
        group = group_of(event.name)
        if group == "products":
            group = "LoRA products" if is_lora_product(event.input_shapes or (), rank) else "base products"
        _add(totals, group, event.self_cpu_time_total)
    return {group: each / 1000 for group, each in totals.items()}


def written(values: Mapping[str, float], digits: int = 2) -> str:
    """Numbers by name as a column of the record holds them; `read` reads them again."""
    return "; ".join(f"{name}={value:.{digits}f}" for name, value in values.items())


def read(text: str) -> dict[str, float]:
    """Numbers by name of what `written` gave."""
    return {name: float(value) for name, _, value in (part.partition("=") for part in text.split("; ") if part)}


def _add(totals: dict[str, float], group: str, microseconds: float) -> None:
    totals[group] = totals.get(group, 0.0) + microseconds


def compile_parts() -> dict[str, float]:
    """Seconds of all compiles of this process by what they went to, from torch's own records; {} where it has none."""
    from torch._dynamo import utils

    def seconds(name: str) -> float:
        return sum(getattr(row, name, None) or 0 for row in utils.get_compilation_metrics()) / 1e6

    dynamo, forward = seconds("dynamo_cumulative_compile_time_us"), seconds("aot_autograd_cumulative_compile_time_us")
    backward, inductor = seconds("backward_cumulative_compile_time_us"), seconds("inductor_cumulative_compile_time_us")
    code, kernels = seconds("inductor_code_gen_cumulative_compile_time_us"), seconds("triton_compile_time_us")
    if not dynamo + backward:
        return {}
    parts = (dynamo - forward, forward + backward - inductor, inductor - code, max(0.0, code - kernels), kernels)
    return dict(zip(PARTS, parts, strict=True))
