"""A quantised stack that inductor compiles into a cache folder, as a program of its own that prints what it took."""

from __future__ import annotations

import json
import sys
from typing import Any

from backend.compile import cache_key


def start(root: str) -> dict[str, Any]:
    """One pass with gradients; what was compiled, and what the cache had."""
    folder = cache_key.use_cache_folder(root)
    import torch

    from backend.compile.model_compiler import compile_model
    from backend.compile.telemetry import Telemetry
    from backend.memory.quantized_linear import quantize_layer
    from tests.tiny.blocks import Stack, lists

    model = Stack()
    for number, block in enumerate(model.firsts):
        quantize_layer(model, f"firsts.{number}.linear", block.linear.weight, "int8", "bf16")
    compile_model(model, lists(model), dynamic="false")
    telemetry = Telemetry(folder).start()
    model(torch.randn(2, 5, 8).requires_grad_()).sum().backward()
    stats = telemetry.poll()
    telemetry.stop()
    cached = [event.cached for event in telemetry.new_events() if event.kind == "compile"]
    return {
        "folder": str(folder), "graphs": stats.graphs, "hits": stats.cache_hits, "misses": stats.cache_misses,
        "cached": cached,
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(start(sys.argv[1])))
