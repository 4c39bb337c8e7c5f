"""Reports on torch for the doctor, in its own process: a crash or a hang there is a result, not the doctor's end.

`python -m backend.doctor.probe facts` prints what torch, the GPU and the attention routes are, `compile` compiles a
small function forward and backward and compares it with the eager one. Each prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from backend.base.library_imports import library_imports

OPTIONAL = (
    "triton",
    "bitsandbytes",
    "pytorch_optimizer",
    "tensorboard",
    "wandb",
    "pynvml",
    "flash_attn",
    "flash_attn.cute",
    "flash_attn_interface",
)
"""Packages that a run does not need."""


def facts() -> dict[str, Any]:
    """Torch build, GPU and attention routes; {"error": ...} when torch does not import."""
    try:
        with library_imports():
            import torch
    except Exception as error:
        # Whatever a broken binary raises is the result.
        return {"error": f"{type(error).__name__}: {error}"}
    from backend.config.packages import load_problem
    from backend.memory.quantization_support import support_by_format
    from backend.shapes.attention_routes import route_report

    answer: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        answer["gpu"] = {
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "bytes": properties.total_memory,
            "bf16": torch.cuda.is_bf16_supported(),
        }
        everyone = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        answer["gpus"] = [{"name": each.name, "bytes": each.total_memory} for each in everyone]
        answer["routes"] = route_report(torch.device("cuda", 0), torch.bfloat16)
    else:
        answer["routes"] = route_report(torch.device("cpu"), torch.float32)
    answer["packages"] = {name: load_problem(name) for name in OPTIONAL}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    answer["quantised"] = support_by_format(device)
    return answer


def prove() -> dict[str, Any]:
    """Compile and run a small function with its backward pass; raises what differs."""
    with library_imports():
        import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def work(x: Any, weight: Any) -> Any:
        return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x @ weight, (16,))).square().sum()

    torch.manual_seed(0)
    inputs = [torch.randn(8, 16, device=device), torch.randn(16, 16, device=device)]
    results = []
    began = time.perf_counter()
    for function in (torch.compile(work, fullgraph=True), work):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        value = function(*leaves)
        value.backward()
        results.append([value.detach(), *(leaf.grad for leaf in leaves)])
        if len(results) == 1:
            seconds = time.perf_counter() - began
    for compiled, eager in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3)
    return {"device": device, "seconds": seconds}


def main(argv: list[str]) -> int:
    answer = prove() if argv == ["compile"] else facts()
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
