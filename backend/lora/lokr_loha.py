"""Adds LoKr and LoHa: a layer's change as a product of small factors, by LyCORIS (Yeh et al., arXiv 2309.14859).

LoKr: W + scale * kron(w1, w2), w2 whole or w2_a w2_b. LoHa: W + scale * (w1_a w1_b) * (w2_a w2_b), element by element.
The factors' names and shapes are those that LyCORIS writes and ComfyUI reads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from backend.config.layer_patterns import Kind, factor_shapes
from backend.lora.dropout import acts, kept


class FactoredLayer(nn.Module):
    """A frozen layer and the trained factors of its change; the change is 0 at the start.

    scale: alpha / rank, and 1 where every factor is whole, as other programs take it.
    """

    def __init__(self, base: nn.Module, kind: Kind, rank: int, alpha: float, factor: int | None) -> None:
        # Not at the top: a run that trains a LoRA need not wait for LyCORIS.
        from backend.lora.lokr_loha_products import CHANGES

        super().__init__()
        self.base_layer, self.change = base, CHANGES[kind]
        self.kind, self.rank, self.alpha = kind, rank, alpha
        conv = isinstance(base, nn.Conv2d)
        inner, outer = (base.in_channels, base.out_channels) if conv else (base.in_features, base.out_features)
        shapes = factor_shapes(kind, inner, outer, rank, factor)
        self.factors = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})
        self.scale = 1.0 if "lokr_w2" in shapes else alpha / rank
        self.dropout: nn.Module = nn.Identity()
        self.module_dropout = 0.0
        self.cast = True
        self.conv = conv

    @torch.no_grad()
    def start(self, source: torch.Generator) -> None:
        """Set the factors to LyCORIS' start values, drawn on the CPU."""
        for name, value in self.factors.items():
            if name in ("hada_w2_a", "lokr_w2", "lokr_w2_b"):
                value.zero_()
            elif name.startswith("hada"):
                value.copy_(torch.randn(value.shape, generator=source) * (0.1 if name == "hada_w1_a" else 1.0))
            else:
                bound = 1 / math.sqrt(value.shape[1])
                value.copy_(torch.empty(value.shape).uniform_(-bound, bound, generator=source))

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The frozen layer's output for `x` (..., in features; of a convolution N C H W), and the change's."""
        result = self.base_layer(x, *args, **kwargs)
        first = self.factors["lokr_w1" if self.kind == "lokr" else "hada_w1_a"]
        inputs = self.dropout(x.to(first.dtype) if self.cast else x)
        if self.conv:
            inputs = inputs.movedim(1, -1)
        added = self.change(inputs, self.factors)
        if self.conv:
            added = added.movedim(-1, 1)
        stays = kept(added, self.module_dropout) if self.module_dropout and acts(self) else 1.0
        return (result + added * (self.scale * stays)).to(result.dtype)
