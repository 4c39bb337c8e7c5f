"""Quantised linear layers: how far from the real ones, what they keep for the backward, LoRA on them, compiled."""

from __future__ import annotations

from itertools import product as pairs

import pytest
import torch
from torch import Tensor, nn

from backend.lora.inject import inject
from backend.memory.product_ways import Way, way_of
from backend.memory.quantized_formats import dequantize, quantize
from backend.memory.quantized_linear import QuantizedLinear, quantize_layer, quantized_layers
from backend.memory.quantized_matmul import MIN_ROWS
from backend.plan.memory import weight_bytes as sizes

# format, and base_products with the format's own 8-bit products; bf16 for none
WAYS = [("fp8", "bf16"), ("fp8", "small"), ("fp8", "fast"), ("int8", "bf16"), ("int8", "small"), ("nf4", "bf16")]
# Relative error of a product of random numbers: 3 bits of mantissa, 8 bits of a row's range, 16 levels.
ERROR = {("fp8", "bf16"): 0.03, ("fp8", "small"): 0.045, ("fp8", "fast"): 0.045, ("int8", "bf16"): 0.01}
ERROR |= {("int8", "small"): 0.014, ("nf4", "bf16"): 0.11}


def linear(rows: int = 96, columns: int = 64, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(columns, rows)
    with torch.no_grad():
        layer.weight[3] *= 50  # one row far out, as real weights have them
        layer.weight[5] = 0
    return layer.requires_grad_(False)


def way(kind: str, products: str) -> Way:
    return way_of("bf16" if products == "bf16" else kind, products, torch.device("cpu"))


def quantized(layer: nn.Linear, kind: str, products: str) -> QuantizedLinear:
    return QuantizedLinear(layer.weight, kind, way(kind, products), layer.bias)


def error(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(("kind", "products"), WAYS)
def test_output_and_gradient_are_near_the_real_layers(kind: str, products: str) -> None:
    real = linear()
    layer = quantized(real, kind, products)
    x = torch.randn(2, 40, 64, requires_grad=True)
    out, wanted = layer(x), real(x)
    upstream = torch.randn_like(out)
    (grad,), (wanted_grad,) = torch.autograd.grad(out, x, upstream), torch.autograd.grad(wanted, x, upstream)
    assert out.shape == wanted.shape and out.dtype == x.dtype
    assert error(out, wanted) < ERROR[kind, products]
    # int8's steps are as wide as the far row asks, whose scale lies along the gradient's summed axis
    assert error(grad, wanted_grad) < ERROR[kind, products] * (2 if kind == "int8" else 1)
    # the far row costs the others nothing, but in NF4 whose blocks may span rows of so small a layer
    others = torch.arange(96) != 3
    assert error(out[..., others] - real.bias[others], wanted[..., others] - real.bias[others]) < ERROR[kind, products]
    assert torch.equal(out[..., 5], real.bias[5].expand(2, 40).to(out.dtype))
    assert not layer.weight.requires_grad and layer.weight.itemsize == 1


def test_8_bit_products_are_those_of_the_dequantised_numbers() -> None:
    """Nothing but the rounding of the activations is lost: int32 sums are exact."""
    layer = quantized(linear(), "int8", "small-unrotated")
    x = torch.randint(-127, 128, (40, 64)).float()
    x[:, 0] = 127  # a scale of exactly one
    weight = dequantize(layer.weight, layer.scale, layer.kind, torch.float64)
    assert error(layer(x) - layer.bias, x.double() @ weight.T) < 1e-6


@pytest.mark.parametrize(("kind", "products"), [("fp8", "fast"), ("int8", "small")])
def test_a_row_is_the_same_whatever_lies_beside_it(kind: str, products: str) -> None:
    layer = quantized(linear(), kind, products)
    x = torch.randn(40, 64)
    spoiled = torch.cat([x[:20], torch.full((20, 64), 3e4)])
    assert torch.equal(layer(x)[:20], layer(spoiled)[:20])
    few = layer(x[: MIN_ROWS - 1])
    assert error(few, layer(x)[: MIN_ROWS - 1]) < 0.05, "too few rows for 8 bits go the other way"


def test_under_autocast_the_layer_computes_in_its_format() -> None:
    layer = quantized(linear(), "int8", "bf16")
    x = torch.randn(4, 64)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16 and error(out, layer(x)) < 0.01


@pytest.mark.parametrize("kind", sizes.FORMATS)
def test_bytes_are_as_the_arithmetic_says(kind: str) -> None:
    numbers, scale = quantize(torch.randn(96, 64).bfloat16(), kind)
    held = numbers.numel() * numbers.itemsize + scale.numel() * scale.itemsize
    assert held == sizes.tensor_bytes("blocks.0.a.weight", (96, 64), kind, 2)
    assert sizes.tensor_bytes("embed.weight", (96, 64), kind, 2) == 96 * 64 * 2


def test_a_large_layer_is_quantised_in_pieces_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(80, 48)
    whole = {kind: quantize(weight, kind) for kind in sizes.FORMATS}
    monkeypatch.setattr("backend.memory.quantized_formats._AT_ONCE", 1600)
    for kind, (numbers, scale) in whole.items():
        pieces = quantize(weight, kind)
        assert torch.equal(numbers.view(torch.int8), pieces[0].view(torch.int8)) and torch.equal(scale, pieces[1])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = linear(96, 64, 1), linear(64, 96, 2)
        self.odd = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.silu(self.up(x)))


def model(kind: str, products: str) -> nn.Module:
    stack = nn.Sequential(linear(64, 64, 7), nn.ModuleList([Block()]))
    whole = nn.ModuleDict({"embed": stack[0], "blocks": stack[1]})
    assert quantized_layers(whole) == ["blocks.0.up", "blocks.0.down"], "embedders and odd sizes are left out"
    for path in quantized_layers(whole):
        ways = ("bf16",) if products == "bf16" else (kind, products)
        quantize_layer(whole, path, whole.get_submodule(path).weight, kind, *ways)
    return whole


@pytest.mark.parametrize(("kind", "products"), WAYS)
def test_peft_puts_a_float32_lora_on_it_that_learns(kind: str, products: str) -> None:
    whole = model(kind, products)
    lora = inject(whole, ["blocks.0.up", "blocks.0.down"], rank=4, alpha=4, dropout=0.0, seed=1)
    assert all(p.dtype == torch.float32 for p in lora.parameters())
    x = torch.randn(40, 64)
    before = whole["blocks"][0](x)
    optimizer = torch.optim.AdamW(lora.parameters(), lr=0.02)
    losses = []
    for _ in range(12):
        loss = (whole["blocks"][0](x) - before.detach() * 0.5).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert {n for n, p in whole.named_parameters() if p.requires_grad} == {
        f"blocks.0.{layer}.lora_{side}.default.weight" for layer, side in pairs(("up", "down"), "AB")
    }


@pytest.mark.parametrize(("kind", "products"), WAYS)
def test_compiled_nothing_dequantised_is_kept_for_the_backward(kind: str, products: str) -> None:
    """The partitioner of torch.compile would keep the weights of every layer in bf16 if it could."""
    torch._dynamo.reset()
    layer = quantized(linear(), kind, products)
    # the partitioner that inductor uses, without generating code
    run = torch.compile(layer.forward, backend="aot_eager_decomp_partition", fullgraph=True)
    x = torch.randn(40, 64, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        out = run(x)
    own = layer.weight.nbytes + layer.scale.nbytes
    # the matrix of the rotation, which all layers share, and a scale of one
    shared = layer.turn.numel() * 4 if layer.way.rotates else 4
    assert own <= sum(t.nbytes for t in kept) <= own + shared, [(t.shape, t.dtype) for t in kept]
    out.sum().backward()
    eager = x.grad.clone()
    x.grad = None
    layer(x).sum().backward()
    assert error(eager, x.grad) < 1e-5
