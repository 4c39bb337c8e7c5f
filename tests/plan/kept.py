"""Bytes that autograd really keeps for a backward pass of FLUX, counted at full size on torch's meta device.

On the meta device tensors have shapes and no contents, so that 12 GB are counted in a second on any machine. A mode
casts as CUDA's autocast does, which the meta device does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from backend.lora.inject import find_targets, inject
from backend.models.table import family
from backend.shapes.attention import Route
from backend.shapes.runtime import ShapeRuntime

FLUX = family("flux")


class CudaAutocast(TorchFunctionMode):
    """What autocast does on CUDA in bf16: matrix products in bf16, norms in float32; trained weights cast once."""

    LOW = (F.linear, torch.matmul, torch.bmm)
    HIGH = (F.layer_norm, F.rms_norm)

    def __init__(self) -> None:
        super().__init__()
        self.cast_once: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        dtype = torch.bfloat16 if func in self.LOW else torch.float32 if func in self.HIGH else None
        if dtype is not None:
            args = tuple(self._cast(value, dtype) for value in args)
            kwargs = {name: self._cast(value, dtype) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if isinstance(value, nn.Parameter) and value.requires_grad:
            return self.cast_once.setdefault(id(value), value.to(dtype))
        return value.to(dtype)


class Flash(Route):
    """Flash attention, which keeps queries, keys, values and its result; on the meta device it only has shapes."""

    name, detail = "sdpa", "flash"

    def prepare(self, runs: Any, device: torch.device) -> None:
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        parts = (x.transpose(1, 2) for x in (q, k, v))
        return torch.ops.aten._scaled_dot_product_flash_attention(*parts)[0].transpose(1, 2)


def empty_flux(double: int, single: int) -> nn.Module:
    """FLUX.1-dev's transformer at full width with fewer blocks, in bf16 on the meta device."""
    from diffusers import FluxTransformer2DModel

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            return FluxTransformer2DModel(
                in_channels=64, num_layers=double, num_single_layers=single, guidance_embeds=True
            )
    finally:
        torch.set_default_dtype(before)


def kept_bytes(
    double: int, single: int, *, side: int, text: int, batch: int, rank: int, targets: Sequence[str], autocast: bool
) -> int:
    """Bytes kept by a forward of this FLUX with a LoRA in `targets`, on pictures of `side` tokens a side."""
    model = empty_flux(double, single)
    inject(model, find_targets(model, targets), rank=rank, alpha=rank, dropout=0.0, seed=0, cast=not autocast)
    model.train()
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    # the tensors are held, so that no storage is counted under another's name
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in weights:
            seen.setdefault(place, tensor)
        return tensor

    latents = [torch.empty(16, 2 * side, 2 * side, device="meta") for _ in range(batch)]
    words = {
        "prompt_embeds": torch.empty(text, 4096, device="meta", dtype=torch.bfloat16),
        "pooled": torch.empty(768, device="meta", dtype=torch.bfloat16),
    }
    shapes = ShapeRuntime("off", None, None, text, Flash())
    with CudaAutocast() if autocast else nullcontext(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        FLUX.load_denoise().predict(model, latents, torch.empty(batch, device="meta"), [words] * batch, 1.0, shapes)
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
