"""Defines how a part of a base model is loaded: number format, device, quantisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from backend.models.common.tensor_sources import LazyTensor

Merge = Callable[[str, "Mapping[str, LazyTensor]", torch.device], "Mapping[str, LazyTensor]"]


@dataclass(frozen=True)
class LoadOptions:
    """What `backend.models.common.weight_loading.load_part` makes of a part's weights.

    dtype: of all weights that are not quantised (the model's own float32 exceptions aside). device: where they go.
    variant: of the weight files, as diffusers names it ("fp16"). quantize: "fp8", "int8" or "nf4" for the linear layers
    of the blocks, None for none. compute: what quantised layers multiply in, "bf16" (dequantised to `dtype`), "int8" or
    "fp8". products: what those keep, as `backend.memory.product_ways` names it. host: tells by a module's path whether
    its weights stay in memory of the host, for block swap. merge: brings LoRA files into a part's tensors, given its
    name, the tensors and the device to work on.
    """

    dtype: torch.dtype
    device: torch.device
    variant: str | None = None
    quantize: str | None = None
    compute: str = "bf16"
    products: str = "small"
    host: Callable[[str], bool] | None = None
    merge: Merge | None = None

    def on_host(self, path: str) -> bool:
        """Whether the weights of the module at `path` stay in memory of the host."""
        return self.host is not None and self.host(path)

    def plain(self) -> LoadOptions:
        """The same for a part that is neither quantised nor swapped, such as the VAE."""
        return replace(self, quantize=None, compute="bf16", products="small", host=None, merge=None)
