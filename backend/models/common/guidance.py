"""Computes true guidance: what the denoiser predicts with the prompt, pushed away from what it predicts without."""

from __future__ import annotations

from torch import Tensor


def guided(toward: Tensor, away: Tensor, scale: float) -> Tensor:
    """True guidance (Ho and Salimans, arXiv 2207.12598) as most pipelines have it; both outputs (C, h, w)."""
    return away + scale * (toward - away)
