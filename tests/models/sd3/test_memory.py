"""What SD3's blocks keep for the backward pass, held against what autograd keeps at full size on meta."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor

from backend.families.files.base_model import BaseModelFiles
from backend.families.sd3.facts import CLIP_TOKENS, FACTS, block_classes
from backend.families.table import family
from backend.lora.inject import find_targets, inject
from backend.models.family_classes import load_family
from backend.plan.memory.activations import Format, Way, Work, training_bytes
from backend.plan.memory.parts import denoiser_of, trained_layers
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.kept import CudaAutocast, Flash

predict = load_family("sd3").predict

TEXT = CLIP_TOKENS + 256
# layers, those with a second attention, norms of queries and keys, heads
MEDIUM, LARGE, FIRST = (4, (0, 1), "rms_norm", 24), (3, (), "rms_norm", 38), (3, (), None, 24)


def full_size(layers: int, dual: tuple[int, ...], qk_norm: str | None, heads: int) -> torch.nn.Module:
    changed = {
        "num_layers": layers,
        "dual_attention_layers": dual,
        "qk_norm": qk_norm,
        "num_attention_heads": heads,
        "caption_projection_dim": 64 * heads,
        "pos_embed_max_size": 192,
    }
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            config = BaseModelFiles(None).config(FACTS.part("transformer"))
            return SD3Transformer2DModel.from_config(config | changed).train()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("build", "side", "batch", "targets"),
    [
        (MEDIUM, 64, 1, FACTS.default_targets),
        (LARGE, 32, 2, FACTS.default_targets),
        (FIRST, 64, 1, FACTS.default_targets),
        (MEDIUM, 64, 1, ("attn.to_q", "ff_context.net.2")),
    ],
    ids=["medium", "large", "first", "few"],
)
def test_what_is_kept_is_what_autograd_keeps(
    build: tuple[int, tuple[int, ...], str | None, int], side: int, batch: int, targets: tuple[str, ...]
) -> None:
    model = full_size(*build)
    facts = replace(FACTS, block_classes=block_classes(build[0], build[1]))
    denoiser = denoiser_of({name: tuple(v.shape) for name, v in model.state_dict().items()}, facts)
    inject(model, find_targets(model, targets), rank=16, alpha=16, dropout=0.0, seed=0, cast=False)
    weights = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers())}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in weights:
            seen.setdefault(place, tensor)
        return tensor

    latents = [torch.empty(16, 2 * side, 2 * side, device="meta") for _ in range(batch)]
    words = {
        "prompt_embeds": torch.empty(TEXT, 4096, device="meta", dtype=torch.bfloat16),
        "pooled": torch.empty(2048, device="meta", dtype=torch.bfloat16),
    }
    shapes = ShapeRuntime("off", None, None, None, Flash())
    with CudaAutocast(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        predict(model, latents, torch.empty(batch, device="meta"), [words] * batch, None, shapes)
    paths: dict[str, set[str]] = {}
    for name in trained_layers(denoiser, targets, ()):
        kind, path = denoiser.places[name]
        paths.setdefault(kind, set()).add(path)
    memory = family("sd3").memory
    said = training_bytes(denoiser, memory, Work(batch, side**2, TEXT), 16, paths, Way(False, "off"), Format()).kept
    found = sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
    assert said == pytest.approx(found, rel=0.05)
