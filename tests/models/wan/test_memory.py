"""What Wan's blocks keep for the backward pass, held against what autograd keeps at full size on the meta device."""

from __future__ import annotations

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from backend.families.files.base_model import BaseModelFiles
from backend.families.wan.facts import FACTS, WanFacts
from backend.families.wan.i2v_facts import I2V
from backend.lora.inject import find_targets, inject
from backend.models.family_classes import load_family
from backend.plan.memory.activations import Format, Way, Work, training_bytes
from backend.plan.memory.parts import denoiser_of, place_of, trained_layers
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.kept import CudaAutocast, Flash

predict = load_family("wan").predict


def full_size(layers: int, facts: WanFacts, **changes: object) -> torch.nn.Module:
    """Wan 2.1 14B with fewer blocks in bf16 on the meta device; what stays float32 is float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            config = BaseModelFiles(None).config(facts.denoiser)
            model = WanTransformer3DModel.from_config({**config, "num_layers": layers, **changes}).train()
    finally:
        torch.set_default_dtype(before)
    kept = set(model._keep_in_fp32_modules)
    for name, parameter in model.named_parameters():
        if kept & set(name.split(".")):
            parameter.data = parameter.data.float()
    for name, buffer in model.rope.named_buffers():
        model.rope.register_buffer(name, buffer.float(), persistent=False)
    return model


@pytest.mark.parametrize(
    ("facts", "clip", "batch", "targets"),
    [
        (FACTS, (1, 64, 64), 1, FACTS.default_targets),
        (FACTS, (5, 32, 32), 2, FACTS.default_targets),
        (FACTS, (3, 64, 64), 1, ("attn1.to_q", "attn2.to_out.0")),
        (I2V, (3, 64, 64), 1, I2V.default_targets),
    ],
)
def test_what_is_kept_is_what_autograd_keeps(
    facts: WanFacts, clip: tuple[int, int, int], batch: int, targets: tuple[str, ...]
) -> None:
    model = full_size(2, facts)
    denoiser = denoiser_of({name: tuple(p.shape) for name, p in model.named_parameters()}, facts)
    inject(model, find_targets(model, targets), rank=16, alpha=16, dropout=0.0, seed=0, cast=False)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in weights:
            seen.setdefault(place, tensor)
        return tensor

    frames, rows, columns = clip
    latents = [torch.empty(16, frames, 2 * rows, 2 * columns, device="meta") for _ in range(batch)]
    words = {"prompt_embeds": torch.empty(512, 4096, device="meta", dtype=torch.bfloat16)}
    if facts.video.starts:
        words["start"] = torch.empty(20, frames, 2 * rows, 2 * columns, device="meta")
        words["image_embeds"] = torch.empty(257, 1280, device="meta")
    shapes = ShapeRuntime("off", None, None, 512, Flash())
    with CudaAutocast(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        predict(model, latents, torch.empty(batch, device="meta"), [words] * batch, None, shapes)
    paths: dict[str, set[str]] = {}
    for name in trained_layers(denoiser, targets, ()):
        place = place_of(name, facts)
        assert place is not None
        paths.setdefault(place[0], set()).add(place[3])
    work = Work(batch, frames * rows * columns, 512)
    said = training_bytes(denoiser, facts.memory, work, 16, paths, Way(False, "off"), Format()).kept
    assert said == pytest.approx(sum(tensor.untyped_storage().nbytes() for tensor in seen.values()), rel=0.05)
