"""What Anima's blocks keep for the backward pass, held against what autograd keeps at full size on the meta device."""

from __future__ import annotations

import pytest
import torch
from diffusers import CosmosTransformer3DModel
from torch import Tensor

from backend.families.anima.facts import FACTS
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.lora.inject import find_targets, inject
from backend.models.family_classes import load_family
from backend.plan.memory.activations import Format, Way, Work, training_bytes
from backend.plan.memory.parts import denoiser_of, place_of, trained_layers
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.kept import CudaAutocast, Flash

predict = load_family("anima").predict


def full_size(layers: int) -> torch.nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            config = BaseModelFiles(None).config(FACTS.part("transformer"))
            return CosmosTransformer3DModel.from_config({**config, "num_layers": layers}).train()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("side", "batch", "targets"),
    [(64, 1, FACTS.default_targets), (32, 2, FACTS.default_targets), (64, 1, ("attn1.to_q", "attn2.to_out.0"))],
)
def test_what_is_kept_is_what_autograd_keeps(side: int, batch: int, targets: tuple[str, ...]) -> None:
    model = full_size(2)
    denoiser = denoiser_of({name: tuple(p.shape) for name, p in model.named_parameters()}, FACTS)
    inject(model, find_targets(model, targets), rank=16, alpha=16, dropout=0.0, seed=0, cast=False)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in weights:
            seen.setdefault(place, tensor)
        return tensor

    latents = [torch.empty(16, 2 * side, 2 * side, device="meta") for _ in range(batch)]
    words = {"prompt_embeds": torch.empty(512, 1024, device="meta", dtype=torch.bfloat16)}
    shapes = ShapeRuntime("off", None, None, 512, Flash())
    with CudaAutocast(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        predict(model, latents, torch.empty(batch, device="meta"), [words] * batch, None, shapes)
    paths: dict[str, set[str]] = {}
    for name in trained_layers(denoiser, targets, ()):
        place = place_of(name, FACTS)
        assert place is not None
        paths.setdefault(place[0], set()).add(place[3])
    memory = family("anima").memory
    said = training_bytes(denoiser, memory, Work(batch, side**2, 512), 16, paths, Way(False, "off"), Format()).kept
    assert said == pytest.approx(sum(tensor.untyped_storage().nbytes() for tensor in seen.values()), rel=0.05)
