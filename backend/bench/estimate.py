"""Estimates the memory of a bench's steps by the arithmetic of runs, to stand beside their peaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from backend.bench.clips import Clip
from backend.bench.sizes import SIZES
from backend.bench.variants import Spec, Variant
from backend.families.table import family
from backend.plan.memory.activations import Format, Way, Work, training_bytes
from backend.plan.memory.estimate import WORKSPACE
from backend.plan.memory.parts import denoiser_of, trained_layers
from backend.plan.memory.weight_bytes import stored_as, total_bytes

_WIDTHS = {"bf16": 2, "fp16": 2, "fp32": 4}
# A LoRA's weights, AdamW's two means and the gradients, each a float32 number.
_LORA_BYTES, _GRADIENT_BYTES = 12, 4


def step_bytes(spec: Spec, kind: Variant, shapes: Mapping[str, tuple[int, ...]]) -> dict[Clip, int]:
    """Bytes on the GPU at the worst moment of a step of each clip size; empty where the arithmetic does not apply.

    shapes: name -> shape of the frozen denoiser's tensors. Not for pictures, other forwards than ours, block swap and
    whole models that are trained.
    """
    size = SIZES[spec.size]
    if not spec.buckets or spec.swap or spec.full or kind.plain_forward:
        return {}
    facts, number = family(size.family), _WIDTHS[size.dtype]
    denoiser = denoiser_of(shapes, facts)
    layers = trained_layers(denoiser, facts.default_targets, ())
    trained: dict[str, set[str]] = defaultdict(set)
    for name in layers:
        if name in denoiser.places:
            block, path = denoiser.places[name]
            trained[block].add(path)
    count = sum(spec.rank * (inner + outer) for inner, outer in layers.values())
    copies = spec.base_compute != "bf16" and spec.base_products.startswith("fast")
    weights = total_bytes(shapes, stored_as(spec.base_quantization, spec.base_compute), number, copies)
    fixed = weights + count * (_LORA_BYTES + _GRADIENT_BYTES) + WORKSPACE
    way, format = _way(spec, kind), Format(number, 4)
    estimated = {}
    for clip in spec.buckets:
        work = Work(spec.batch, facts.default_geometry.image_tokens(*clip), size.text_tokens)
        held = training_bytes(denoiser, facts.memory, work, spec.rank, trained, way, format)
        estimated[clip] = fixed + held.beside(count * _GRADIENT_BYTES)
    return estimated


def _way(spec: Spec, kind: Variant) -> Way:
    """How the blocks are run."""
    compiled = kind.compile is not None
    checkpointing = (spec.checkpointing_kind or "block") if spec.checkpointing else "off"
    if checkpointing == "auto":
        checkpointing = "graph" if compiled else "block"
    budget = 1.0 if spec.memory_budget is None else spec.memory_budget
    return Way(compiled, checkpointing, 0.0 if compiled and spec.recomputes else budget)
