"""Averages several states of one LoRA: the mean of what they change in the model, again at the LoRA's own rank.

The change of a layer is B A, so that the mean of A's times the mean of B's is not the mean of the changes. The mean of
the products has up to N times the rank; of all matrices of the LoRA's rank, the one from its singular values is the
nearest (Eckart and Young, 1936), so none made of averaged factors is nearer. The products are never made: a QR
decomposition of the stacked factors leaves a matrix of N times the rank on each side.

Factors of LoKr and LoHa, whose products have no such shortcut, and row lengths of a DoRA are averaged themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backend.lora.lokr_loha import FactoredLayer

if TYPE_CHECKING:
    from backend.lora.inject import Lora  # with peft, which takes half of the start of a tool that only reads files

_A, _B = "lora_A.weight", "lora_B.weight"

STEPS = "ss_averaged_steps"
"""Name in a file's metadata of the steps that it is the mean of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Average:
    """tensors: as `Lora.restore` takes them, float32 on the CPU. error: in `backend.runs.events.AverageEvent`."""

    tensors: dict[str, Tensor]
    error: float | None


@torch.no_grad()
def average(lora: Lora, states: Sequence[dict[str, Tensor]]) -> Average:
    """The mean of `states`, each as `Lora.tensors` gives it, on the CPU.

    error: length of the part of the mean change that its rank can't hold, divided by the length of the mean change
    (both over all layers, alpha included); None where there is no product of A and B.
    """
    tensors = {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in lora.tensors()}
    lost = whole = 0.0
    products = False
    for path, layer in lora.layers.items():
        if isinstance(layer, FactoredLayer):
            continue
        products = True
        a, b = f"{path}.{_A}", f"{path}.{_B}"
        device = lora.pair(path)[0].device
        pair = mean_product([s[a].to(device) for s in states], [s[b].to(device) for s in states])
        tensors[a], tensors[b] = pair.a.cpu(), pair.b.cpu()
        lost += pair.lost * lora.scale_of(path) ** 2
        whole += pair.whole * lora.scale_of(path) ** 2
    return Average(tensors=tensors, error=(lost / whole) ** 0.5 if products and whole else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanProduct:
    """a, b: of the shapes that were given. lost, whole: squared length of what is left out, and of the mean product."""

    a: Tensor
    b: Tensor
    lost: float
    whole: float


def mean_product(a_s: Sequence[Tensor], b_s: Sequence[Tensor]) -> MeanProduct:
    """The nearest to the mean of the products B A, of the rank that each A and B have.

    a_s: (rank, in), of convolutions with two dimensions more; b_s: (out, rank), likewise. float32.
    """
    rank = a_s[0].shape[0]
    rows = torch.cat([a.flatten(1) for a in a_s])
    columns = torch.cat([b.flatten(1) for b in b_s], dim=1) / len(b_s)
    left, left_core = torch.linalg.qr(columns)
    right, right_core = torch.linalg.qr(rows.T)
    u, values, v = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
    kept = values[:rank]
    root = kept.sqrt()
    a, b = torch.zeros_like(rows[:rank]), torch.zeros_like(columns[:, :rank])
    # shared between both, so that neither is rounded more than the other in a file of 16 bits
    a[: len(kept)] = root[:, None] * (v[: len(kept)] @ right.T)
    b[:, : len(kept)] = (left @ u[:, : len(kept)]) * root
    squares = values.double().square()
    return MeanProduct(
        a=a.reshape(a_s[0].shape),
        b=b.reshape(b_s[0].shape),
        lost=float(squares[rank:].sum()),
        whole=float(squares.sum()),
    )
