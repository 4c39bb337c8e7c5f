"""Gives LoRAs values that training could have come to, and computes what their files change."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.lora.inject import Lora


def moved(lora: Lora, seed: int = 4) -> None:
    """Values that training could have come to: B far from 0, lengths from half as long to half as long again."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path in lora.layers:
            a, b = lora.pair(path)
            a.copy_(torch.randn(a.shape, generator=source) / a[0].numel() ** 0.5)
            b.copy_(torch.randn(b.shape, generator=source))
            lengths = lora.magnitude(path).weight
            lengths.mul_(0.5 + torch.rand(lengths.shape, generator=source))
    lora.publish()


def change(tensors: dict[str, Tensor], stem: str) -> Tensor:
    """What ComfyUI and LyCORIS add to a weight: alpha / rank, or 1 where LoKr's factors are whole."""
    named = {key.removeprefix(stem + "."): value for key, value in tensors.items() if key.startswith(stem + ".")}
    if "hada_w1_a" in named:
        scale = named["alpha"] / named["hada_w1_b"].shape[0]
        return scale * (named["hada_w1_a"] @ named["hada_w1_b"]) * (named["hada_w2_a"] @ named["hada_w2_b"])
    if "lokr_w2" in named:
        return torch.kron(named["lokr_w1"], named["lokr_w2"])
    scale = named["alpha"] / named["lokr_w2_b"].shape[0]
    return scale * torch.kron(named["lokr_w1"], named["lokr_w2_a"] @ named["lokr_w2_b"])
