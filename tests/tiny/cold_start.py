"""A quantised stack that is compiled by inductor into a cache folder: here, or as a program of its own.

As a program it pickles its answer, and torch's settings of a process that has done nothing else, to standard output.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import ExitStack
from typing import Any

from backend.compile import cache_key


def start(root: str, settings: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """One pass with gradients; what was compiled, and what the cache had.

    settings: torch's, of the program; this process has those that other tests have set.
    """
    folder = cache_key.use_cache_folder(root)
    import torch
    import torch._functorch.config
    import torch._inductor.config

    from backend.compile.model_compiler import compile_model
    from backend.compile.telemetry import Telemetry
    from backend.memory.quantized_linear import quantize_layer
    from tests.tiny.blocks import Stack, lists

    with ExitStack() as stack:
        for module, values in zip((torch._functorch.config, torch._inductor.config), settings, strict=bool(settings)):
            stack.enter_context(module.patch(values))
        model = Stack()
        for number, block in enumerate(model.firsts):
            quantize_layer(model, f"firsts.{number}.linear", block.linear.weight, "int8", "bf16")
        compile_model(model, lists(model), dynamic="false")
        telemetry = Telemetry(folder).start()
        model(torch.randn(2, 5, 8).requires_grad_()).sum().backward()
        stats = telemetry.poll()
        telemetry.stop()
        cached = [event.cached for event in telemetry.new_events() if event.kind == "compile"]
    kept = tuple(each.save_config_portable() for each in (torch._functorch.config, torch._inductor.config))
    return {
        "folder": str(folder), "graphs": stats.graphs, "hits": stats.cache_hits, "misses": stats.cache_misses,
        "cached": cached, "settings": kept,
    }  # fmt: skip


if __name__ == "__main__":
    answer = pickle.dumps(start(sys.argv[1]))
    sys.stdout.buffer.write(answer)
