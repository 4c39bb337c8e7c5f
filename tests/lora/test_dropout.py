"""Ranks and whole layers left out of a LoRA: sd-scripts' formula, in training alone, gradients of the same draw."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from backend.lora.inject import Lora, inject

LAYERS = {
    "tokens": (lambda: nn.Linear(6, 5), (3, 7, 6)),
    "rows": (lambda: nn.Linear(6, 5), (3, 6)),
    "picture": (lambda: nn.Conv2d(6, 5, 3, padding=1), (3, 6, 4, 4)),
}


class One(nn.Module):
    """A layer by itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def model(form: str, kind: str = "lora", **dropouts: float) -> tuple[One, Lora, Tensor]:
    """A layer with a LoRA of rank 4 and scale 0.5, a batch of three rows for it."""
    torch.manual_seed(0)
    make, shape = LAYERS[form]
    whole = One(make()).train()
    lora = inject(whole, ["layer"], rank=4, alpha=2.0, dropout=0.0, seed=1, kind=kind, **dropouts)
    for value in lora.parameters():
        nn.init.normal_(value)
    return whole, lora, torch.randn(shape)


def left_out(whole: One, lora: Lora, x: Tensor, mask: Tensor) -> Tensor:
    """sd-scripts' LoRAModule.forward with a mask of rank dropout, ``mask`` (rows, rank), already scaled up."""
    a, b = lora.pair("layer")
    base = whole.layer.base_layer
    if isinstance(base, nn.Conv2d):
        low = nn.functional.conv2d(x, a, padding=1) * mask[:, :, None, None]
        return base(x) + nn.functional.conv2d(low, b) * 0.5
    low = x @ a.T * (mask[:, None] if x.ndim == 3 else mask)
    return base(x) + low @ b.T * 0.5


@pytest.mark.parametrize("form", LAYERS)
def test_ranks_are_left_out_by_row_and_the_rest_scaled_up(form: str) -> None:
    whole, lora, x = model(form, rank_dropout=0.4)
    torch.manual_seed(7)
    output = whole(x)
    torch.manual_seed(7)
    mask = (torch.rand(3, 4) > 0.4).float()
    assert 0 < mask.sum() < 12 and len(mask.unique(dim=0)) > 1
    torch.testing.assert_close(output, left_out(whole, lora, x, mask / 0.6))
    with torch.no_grad():
        torch.testing.assert_close(whole(x), left_out(whole, lora, x, torch.ones(3, 4)))
    torch.testing.assert_close(whole.eval()(x), left_out(whole, lora, x, torch.ones(3, 4)))


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        *((form, "lora") for form in LAYERS),
        ("tokens", "lokr"),
        ("rows", "loha"),
        ("tokens", "dora"),
        ("picture", "dora"),
    ],
)
def test_a_layer_goes_without_its_lora_or_has_it_as_it_is(form: str, kind: str) -> None:
    whole, _, x = model(form, kind, module_dropout=0.3)
    with torch.no_grad():
        full, base = whole(x), whole.layer.base_layer(x)
    assert (full - base).abs().max() > 0.1
    torch.manual_seed(3)
    without = 0
    for _ in range(200):
        output = whole(x).detach()
        gone = torch.equal(output, base)
        assert gone or torch.allclose(output, full, atol=1e-5)
        without += gone
    assert 40 < without < 80


def test_what_is_scaled_up_is_not_rounded_to_16_bits_first() -> None:
    """1 / (1 - p) in bf16 would be off by 4e-3 at worst."""
    whole, lora, x = model("tokens", rank_dropout=0.03)
    ones = torch.ones(64, 4, dtype=torch.bfloat16)
    drop = next(iter(whole.layer.lora_A["default"]._forward_hooks.values()))
    output = drop(whole.layer.lora_A["default"], (), ones).float()
    assert set(output.unique().tolist()) <= {0.0, torch.tensor(1 / 0.97).bfloat16().item()}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_same_draw(backend: str) -> None:
    """A LoRA's part is linear in B, so that its gradient times B is the part itself, if nothing was drawn anew."""
    whole, lora, x = model("tokens", rank_dropout=0.4, module_dropout=0.3)
    _, b = lora.pair("layer")
    base = whole.layer.base_layer(x).sum().detach()
    compiled = torch.compile(whole, backend=backend, fullgraph=True)
    seen = set()
    for seed in range(12):
        torch.manual_seed(seed)
        b.grad = None
        loss = compiled(x).sum()
        loss.backward()
        torch.testing.assert_close((b.grad * b).sum(), loss - base, atol=1e-4, rtol=1e-4)
        seen.add(round((loss - base).item(), 4))
    assert len(seen) > 4
