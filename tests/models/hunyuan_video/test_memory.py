"""What HunyuanVideo's blocks keep for the backward pass, against what autograd keeps at full size on meta."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backend.families.files.base_model import BaseModelFiles
from backend.families.hunyuan_video.facts import FACTS
from backend.lora.inject import find_targets, inject
from backend.models.family_classes import load_family
from backend.plan.memory.activations import Format, Way, Work, training_bytes
from backend.plan.memory.parts import denoiser_of, trained_layers
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.kept import CudaAutocast, Flash

CODE = load_family("hunyuan_video")


def full_size(double: int, single: int) -> torch.nn.Module:
    """The transformer at full width with fewer blocks, in bf16 on the meta device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            config: dict[str, Any] = BaseModelFiles(None).config(FACTS.part("transformer"))
            return CODE.model.from_config(config | {"num_layers": double, "num_single_layers": single}).train()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("double", "single", "clip", "batch", "targets"),
    [
        (2, 1, (5, 30, 52), 1, FACTS.default_targets),
        (1, 3, (1, 32, 32), 2, FACTS.default_targets),
        (2, 2, (3, 30, 52), 1, (r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v)",)),
    ],
)
def test_what_is_kept_is_what_autograd_keeps(
    double: int, single: int, clip: tuple[int, int, int], batch: int, targets: tuple[str, ...]
) -> None:
    model = full_size(double, single)
    denoiser = denoiser_of({name: tuple(v.shape) for name, v in model.state_dict().items()}, FACTS)
    inject(model, find_targets(model, targets), rank=16, alpha=16, dropout=0.0, seed=0, cast=False)
    weights = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers())}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in weights:
            seen.setdefault(place, tensor)
        return tensor

    frames, rows, columns = clip
    latents = [torch.empty(16, frames, 2 * rows, 2 * columns, device="meta") for _ in range(batch)]
    words = {
        "prompt_embeds": torch.empty(256, 4096, device="meta", dtype=torch.bfloat16),
        "pooled": torch.empty(768, device="meta", dtype=torch.bfloat16),
    }
    shapes = ShapeRuntime("off", None, None, None, Flash())
    with CudaAutocast(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        CODE.predict(model, latents, torch.empty(batch, device="meta"), [words] * batch, 1.0, shapes)
    paths: dict[str, set[str]] = {}
    for name in trained_layers(denoiser, targets, ()):
        kind, path = denoiser.places[name]
        paths.setdefault(kind, set()).add(path)
    work = Work(batch, frames * rows * columns, 256)
    said = training_bytes(denoiser, FACTS.memory, work, 16, paths, Way(False, "off"), Format()).kept
    found = sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
    assert said == pytest.approx(found, rel=0.05)
