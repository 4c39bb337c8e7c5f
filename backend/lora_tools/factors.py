"""Finds the two small factors of a layer's change: B A, of a fixed rank or of the rank that keeps a share of its norm.

A's rows are the projections of the change onto orthogonal columns of B, so that B A is exact within them: at the full
rank nothing but rounding is lost, whatever the precision of the singular values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_OVERSAMPLED, _ROUNDS = 16, 6
"""Columns beyond the rank, and passes, of the randomised search (Halko et al., arXiv 0909.4061)."""
_SMALL = 8
"""The randomised search is used for a rank of which the smaller side is this many times as large."""
_DUST = 1e-14
"""Share of the square of a norm that is rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankChoice:
    """How large a factor may be: `rank` at most, and no more than keeps the share `keep` of the norm."""

    rank: int | None = None
    keep: float | None = None

    def of(self, norms: Tensor, whole: float) -> int:
        """The rank for singular values `norms`, descending, of a matrix of norm `whole`; at least 1."""
        most = len(norms) if self.rank is None else min(self.rank, len(norms))
        if self.keep is None:
            return max(1, most)
        squares = norms.double().square()
        # what is lost with each rank, summed from the small end, where it would be lost in a sum from the large one
        lost = squares.flip(0).cumsum(0).flip(0) - squares
        enough = int((lost > max(1 - self.keep**2, _DUST) * whole**2).sum()) + 1
        return max(1, min(enough, most))


@dataclass(frozen=True, slots=True)
class Factors:
    """a: (rank, in). b: (out, rank). Both float32. norm: of the whole change. kept: share of it."""

    a: Tensor
    b: Tensor
    norm: float
    kept: float

    @property
    def rank(self) -> int:
        """Rows of A."""
        return self.a.shape[0]


@torch.no_grad()
def factors_of(change: Tensor, choice: RankChoice) -> Factors:
    """Factors of a change (out, in), float32. The smallest error of their rank, or near it where that is far smaller.

    "Near": a low rank is searched for by `torch.svd_lowrank`, from a start that is always the same.
    """
    whole = float(change.double().norm())
    smaller = min(change.shape)
    if choice.keep is None and choice.rank is not None and choice.rank * _SMALL <= smaller:
        with torch.random.fork_rng(devices=[change.device] if change.is_cuda else []):
            torch.manual_seed(0)
            left, _, _ = torch.svd_lowrank(change, q=min(choice.rank + _OVERSAMPLED, smaller), niter=_ROUNDS)
        columns, rows = left, left.T @ change
        return _narrowed(columns, rows, whole, choice)
    if change.shape[0] <= change.shape[1]:
        columns = _directions(_gram(change))
        return _narrowed(columns, columns.T @ change, whole, choice)
    transposed = _directions(_gram(change.T))
    return _narrowed_rows(change @ transposed, transposed.T, whole, choice)


@torch.no_grad()
def factors_of_product(a: Tensor, b: Tensor, choice: RankChoice) -> Factors:
    """Factors of b a, which is never made. a: (r, in). b: (out, r). Both float32."""
    left, upper = torch.linalg.qr(b.double())
    right, lower = torch.linalg.qr(a.double().T)
    inner = upper @ lower.T
    u, sizes, v = torch.linalg.svd(inner, full_matrices=False)
    whole = float(sizes.norm())
    rank = choice.of(sizes, whole)
    root = sizes[:rank].sqrt()
    kept = float(sizes[:rank].norm()) / whole if whole else 1.0
    return Factors(
        ((v[:rank] * root[:, None]) @ right.T).float().contiguous(),
        ((left @ u[:, :rank]) * root).float().contiguous(),
        whole,
        kept,
    )


def product_norm(a: Tensor, b: Tensor) -> float:
    """Norm of b a, which is never made."""
    a, b = a.double(), b.double()
    return math.sqrt(max(0.0, float(((a @ a.T) * (b.T @ b)).sum())))


def _gram(change: Tensor) -> Tensor:
    """change change^T in float64, of which eigenvectors are as exact as singular vectors in float32."""
    doubled = change.double()
    return doubled @ doubled.T


def _directions(gram: Tensor) -> Tensor:
    """Orthogonal columns, the ones that most of the norm lies along first; float32."""
    return torch.linalg.eigh(gram)[1].flip(1).float()


def _narrowed(columns: Tensor, rows: Tensor, whole: float, choice: RankChoice) -> Factors:
    """The first columns and rows, by what the rows' norms say; both sides get the root of them."""
    norms = rows.double().norm(dim=1)
    order = norms.argsort(descending=True)
    rank = choice.of(norms[order], whole)
    best = order[:rank]
    root = norms[best].sqrt().clamp_min(1e-30).float()
    kept = min(1.0, float(norms[best].norm()) / whole) if whole else 1.0
    return Factors((rows[best] / root[:, None]).contiguous(), (columns[:, best] * root).contiguous(), whole, kept)


def _narrowed_rows(columns: Tensor, rows: Tensor, whole: float, choice: RankChoice) -> Factors:
    """As `_narrowed`, where the rows are orthogonal and the columns hold the norms."""
    other = _narrowed(rows.T, columns.T, whole, choice)
    return Factors(other.b.T.contiguous(), other.a.T.contiguous(), other.norm, other.kept)
