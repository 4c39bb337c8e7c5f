"""Limits what a LoRA changes in each layer: sd-scripts' scale_weight_norms (apply_max_norm_regularization)."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.lora.inject import Lora


class NormLimit:
    """Holds the norm (Frobenius) of every layer's change, alpha / rank * B A, to at most `limit`.

    figures: of the last step, shape () each and on the device: ``layers_scaled``, how many were above the limit, and
    the mean and the largest norm that is left, ``norm_mean`` and ``norm_max``. Empty before the first step.
    """

    def __init__(self, lora: Lora, limit: float) -> None:
        self.limit = limit
        self.figures: dict[str, Tensor] = {}
        self._pairs = [lora.pair(path) for path in lora.layers]
        self._scales = torch.tensor([lora.scale_of(path) for path in lora.layers], device=self._pairs[0][0].device)

    @torch.no_grad()
    def apply(self) -> None:
        """Called after a step of the optimizer: scale A and B of a layer back alike. Nothing waits for the device."""
        norms = torch.stack([product_norm(a, b) for a, b in self._pairs]) * self._scales
        roots = (self.limit / norms).clamp(max=1).sqrt()
        for (a, b), root in zip(self._pairs, roots.unbind(), strict=True):
            a.mul_(root)
            b.mul_(root)
        left = norms.clamp(max=self.limit)
        scaled = (norms > self.limit).sum()
        self.figures = {"layers_scaled": scaled, "norm_mean": left.mean(), "norm_max": left.max()}


def product_norm(a: Tensor, b: Tensor) -> Tensor:
    """The norm of B A, shape (), of A (rank, in, ...) and B (out, rank, ...), which is never made itself.

    Its square is the trace of (B^T B) (A A^T), two matrices of the rank's size.
    """
    a, b = a.flatten(1), b.flatten(1)
    return ((b.T @ b) * (a @ a.T)).sum().clamp(min=0).sqrt()
