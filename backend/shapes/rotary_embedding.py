"""Computes rotary embedding with positions a sample, in both of the pairings that models use. Traced into blocks."""

from __future__ import annotations

import torch
from torch import Tensor

Rope = tuple[Tensor, Tensor]
"""cos and sin, float32, (B, S, D), or (S, D) for all rows alike."""


def rotate_neighbours(x: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding of x (B, S, H, D), whose pairs are neighbours (0, 1), (2, 3), ...; float32 inside."""
    cos, sin = (table.unsqueeze(-2) for table in rope)
    real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(-2)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


def rotate_halves(x: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding of x (B, S, H, D), whose pairs are (0, D/2), (1, D/2 + 1), ...; float32 inside."""
    cos, sin = (table.unsqueeze(-2) for table in rope)
    real, imaginary = x.chunk(2, dim=-1)
    turned = torch.cat([-imaginary, real], dim=-1)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)
