"""Computes what LoKr and LoHa add to a layer's output, by LyCORIS' own functions.

Of its library only these functions are taken: they have no graph break, its modules replace the frozen layers' forward.
``backend="torch"`` keeps them the same in eager and compiled blocks; on a GPU they would else choose kernels of their
own, or compile each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lycoris.functional import loha, lokr
from torch import Tensor

Change = Callable[[Tensor, Mapping[str, Tensor]], Tensor]


def kronecker(x: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
    """x kron(w1, w2)^T of `x` (..., in features): the large matrix is never made."""
    whole = "lokr_w2" in factors
    w2, w2_a, w2_b = (factors[n] if (n == "lokr_w2") == whole else None for n in ("lokr_w2", "lokr_w2_a", "lokr_w2_b"))
    # they divide this by the rank of the factors that are in two; the layer scales its change itself
    alpha = 1.0 if whole else w2_b.shape[0]
    return lokr.bypass_forward_diff(
        x, None, factors["lokr_w1"], None, None, w2, w2_a, w2_b, None, gamma=alpha, backend="torch"
    )


def hadamard(x: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
    """x ((w1_a w1_b) * (w2_a w2_b))^T of `x` (..., in features); its backward pass makes both products again."""
    w1_a, w1_b, w2_a, w2_b = (factors[f"hada_{name}"] for name in ("w1_a", "w1_b", "w2_a", "w2_b"))
    return loha.bypass_forward_diff(x, None, w1_b, w1_a, w2_b, w2_a, None, None, gamma=x.new_ones(()), backend="torch")


CHANGES: dict[str, Change] = {"lokr": kronecker, "loha": hadamard}
