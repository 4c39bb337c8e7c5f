"""Quantiser, swap and checkpointing at once: compiled, in the planned graphs, as the eager unswapped run trains."""

from __future__ import annotations

import pytest
import torch

from backend.memory.quantized_linear import QuantizedLinear, quantize_layer, quantized_layers
from tests.tiny.swapping import Training, sparse_lora


def model(kind: str, compute: str, products: str) -> torch.nn.Module:
    """The tiny FLUX with a sparse LoRA, its frozen linear layers quantised."""
    lora_model = sparse_lora()
    if kind != "none":
        paths = quantized_layers(lora_model)
        assert len(paths) > 20
        for path in paths:
            quantize_layer(lora_model, path, lora_model.get_submodule(path).weight.detach(), kind, compute, products)
    return lora_model


@pytest.mark.parametrize(
    ("kind", "compute", "products", "count", "checkpointing", "compiled", "turns"),
    [
        ("fp8", "fp8", "fast", 4, "block", ["single"], True),
        ("int8", "int8", "small", 4, "off", ["double"], False),
        ("nf4", "bf16", "small", 4, "auto", ["single"], False),
        ("int8", "int8", "small", 0, "auto", ["single"], True),
    ],
)
def test_no_break_and_no_recompile(
    kind: str, compute: str, products: str, count: int, checkpointing: str, compiled: list[str], turns: bool
) -> None:
    """Each case leaves one block class eager, which halves what is traced; test_swap.py compiles both.

    turns: offload by turns, with blocks swapped and without: the frozen weights are away between two steps.
    """
    eager = Training(0, model=model(kind, compute, products), kind=checkpointing).run(3, validate_every=2)
    # the partitioner that inductor has, which recomputes within the graphs
    backends = {"auto": "aot_eager_decomp_partition", "block": "aot_eager", "off": "eager"}
    base = model(kind, compute, products)
    training = Training(
        count, model=base, kind=checkpointing, backend=backends[checkpointing], compiled=compiled, turns=turns
    )
    blocks = [block for name in compiled for block in training.lists[name]]
    assert all(block.forward.recomputes == (checkpointing == "auto") for block in blocks)
    assert training.run(3, validate_every=2) == pytest.approx(eager, rel=1e-5)
    kept = [module.weight.dtype for module in training.model.modules() if isinstance(module, QuantizedLinear)]
    assert len(kept) > 20 and all(dtype.itemsize == 1 for dtype in kept)
    # streamed with the weights of swapped blocks
    copies = [m.copy is not None for m in training.model.modules() if isinstance(m, QuantizedLinear)]
    assert all(copies) if products == "fast" else not any(copies)
    assert (training.stats.graphs, training.stats.recompiles, training.stats.breaks) == (2 * len(compiled), 0, 0)
