"""DoRA: the layer, held against peft's own in output and gradients, at every strength, and in the estimate."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from backend.config.schema import Config
from backend.families.flux.facts import FACTS
from backend.lora.fused_layers import fuse
from backend.lora.inject import ADAPTER, Lora, find_targets, inject
from backend.lora.row_lengths import changed_lengths, row_lengths
from backend.memory.quantized_formats import dequantize
from backend.memory.quantized_linear import quantize_layer
from backend.plan.memory.estimate import _lora_shapes, _ranks
from backend.plan.memory.parts import denoiser_of
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora_values import moved
from tests.tiny.shapes import assert_equal_runs, make_batch, run

CONV = {"kernel_size": 3, "stride": 2, "padding": 1}


def base(kind: str, bias: bool) -> tuple[nn.Module, Tensor]:
    """A model of one frozen layer and inputs for it."""
    torch.manual_seed(3)
    if kind == "linear":
        return nn.Sequential(nn.Linear(12, 20, bias=bias)), torch.randn(3, 5, 12)
    way = CONV if kind == "conv" else {"kernel_size": 1}
    return nn.Sequential(nn.Conv2d(12, 20, bias=bias, **way)), torch.randn(3, 12, 6, 7)


def pefts(model: nn.Module, lora: Lora, path: str, rank: int, alpha: float) -> nn.Module:
    """`model` with peft's DoRA at `path`, of the values of `lora`."""
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=[path], use_dora=True), model)
    layer = model.get_submodule(path)
    held = layer.lora_magnitude_vector["default"].weight
    with torch.no_grad():
        for mine, theirs in zip(lora.pair(path), (layer.lora_A, layer.lora_B), strict=True):
            theirs["default"].weight.copy_(mine)
        held.copy_(lora.magnitude(path).weight.reshape(held.shape))
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["linear", "conv", "conv of one pixel"])
def test_output_and_gradients_are_pefts(kind: str, bias: bool) -> None:
    plain, x = base(kind, bias)
    model = copy.deepcopy(plain)
    lora = inject(model, ["0"], rank=3, alpha=5.0, dropout=0.0, seed=1, kind="dora")
    assert torch.equal(model(x), plain(x))
    torch.testing.assert_close(lora.magnitude("0").weight.flatten(), plain[0].weight.flatten(1).norm(dim=1))
    moved(lora)
    theirs = pefts(copy.deepcopy(plain), lora, "0", 3, 5.0)
    seen = []
    for each in (model, theirs):
        inputs = x.clone().requires_grad_()
        out = each(inputs)
        (out * torch.linspace(-1, 2, out.numel()).reshape(out.shape)).sum().backward()
        layer = each[0]
        vector = layer.lora_magnitude_vector["default"].weight
        trained = (layer.lora_A["default"].weight, layer.lora_B["default"].weight, vector)
        seen.append([out.detach(), inputs.grad, *(part.grad.flatten() for part in trained)])
    for mine, other in zip(*seen, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-5, atol=2e-5 * float(other.abs().max()))
    assert (seen[0][0] - plain(x)).abs().max() > 0.1


def test_a_row_of_zeros_gives_no_nan() -> None:
    plain, x = base("linear", True)
    with torch.no_grad():
        plain[0].weight[4] = 0
    lora = inject(plain, ["0"], rank=2, alpha=2.0, dropout=0.0, seed=1, kind="dora")
    plain(x).square().sum().backward()
    assert all(torch.isfinite(part.grad).all() for part in lora.parameters())


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0])
def test_strength_is_comfyuis(strength: float) -> None:
    """Of W + t (W' - W) (comfy/weight_adapter/base.py, weight_decompose); 0 is the base exactly, and 1 comes back."""
    plain, x = base("linear", True)
    model = copy.deepcopy(plain)
    lora = inject(model, ["0"], rank=3, alpha=5.0, dropout=0.0, seed=1, kind="dora")
    moved(lora)
    with torch.no_grad():
        a, b = lora.pair("0")
        weight = plain[0].weight
        changed = weight + 5 / 3 * (b @ a)
        changed = lora.magnitude("0").weight * changed / changed.norm(dim=1, keepdim=True)
        before = model(x)
        with lora.scaled(strength):
            half = model(x)
        wanted = nn.functional.linear(x, weight + strength * (changed - weight), plain[0].bias)
        torch.testing.assert_close(half, wanted, rtol=1e-5, atol=1e-5)
        assert strength > 0 or torch.equal(half, plain(x))
        assert torch.equal(model(x), before)


@pytest.mark.parametrize("kind", ["int8", "fp8", "nf4"])
def test_a_quantised_base_has_the_lengths_of_its_dequantised_weight(kind: str) -> None:
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(128, 64))
    model = copy.deepcopy(plain)
    quantize_layer(model, "0", plain[0].weight.detach(), kind)
    with torch.no_grad():
        plain[0].weight.copy_(model(torch.eye(128)).t() - plain[0].bias[:, None])
    torch.testing.assert_close(row_lengths(model[0]), plain[0].weight.norm(dim=1), rtol=1e-5, atol=1e-5)
    lora = inject(model, ["0"], rank=3, alpha=5.0, dropout=0.0, seed=1, kind="dora")
    moved(lora)
    theirs, x = pefts(plain, lora, "0", 3, 5.0), torch.randn(4, 128)
    torch.testing.assert_close(model(x), theirs(x), rtol=1e-4, atol=1e-4)


def test_lengths_stay_float32_beside_16_bit_weights() -> None:
    plain, x = base("linear", True)
    model = copy.deepcopy(plain)
    lora = inject(model, ["0"], rank=3, alpha=5.0, dropout=0.0, seed=1, kind="dora", weight_dtype=torch.bfloat16)
    assert torch.equal(model(x), plain(x))
    layer = lora.layers["0"]
    assert layer.lora_A[ADAPTER].weight.dtype == torch.bfloat16
    assert [part.dtype for part in lora.parameters()] == [torch.float32] * 3
    moved(lora)
    for _ in range(2):
        model(x).square().sum().backward()
        lora.collect_gradients()
    assert all(part.grad is not None and part.grad.any() for part in lora.parameters())
    optimizer = torch.optim.SGD(lora.parameters(), 1e-3)
    before = model(x)
    optimizer.step()
    lora.publish()
    assert not torch.equal(model(x), before)
    kept = {name: value.clone() for name, value in lora.tensors().items()}
    assert kept.keys() == {"0.lora_A.weight", "0.lora_B.weight", "0.dora_scale"}
    after = model(x)
    optimizer.step()
    lora.restore(kept)
    assert torch.equal(model(x), after)


def test_layers_of_one_input_in_one_product_give_the_same() -> None:
    def flux() -> tuple[nn.Module, Lora]:
        model = make_tiny_denoiser(1, 1)
        lora = inject(
            model, find_targets(model, FACTS.default_targets), rank=4, alpha=8.0, dropout=0.0, seed=0, kind="dora"
        )
        moved(lora)
        return model.train(), lora

    (model, lora), (plain, _) = flux(), flux()
    fuse(lora)
    batch = make_batch([(6, 8), (8, 12)])
    assert_equal_runs(run(model, batch, ShapeRuntime()), run(plain, batch, ShapeRuntime()), 1e-5)


def test_dropout_leaves_the_frozen_part_alone() -> None:
    """As with a LoRA, what enters A is dropped; the length is that of the whole change."""
    plain, x = base("linear", True)
    model = copy.deepcopy(plain)
    lora = inject(model, ["0"], rank=3, alpha=3.0, dropout=0.5, seed=1, kind="dora")
    moved(lora)
    layer = lora.layers["0"]
    seen = []
    layer.lora_dropout[ADAPTER].register_forward_hook(lambda module, inputs, result: seen.append(result))
    out = model.train()(x)
    a, b = (part.detach() for part in lora.pair("0"))
    weight = plain[0].weight
    factor = lora.magnitude("0").weight.flatten() / (weight + b @ a).norm(dim=1)
    assert (seen[0] == 0).any()
    wanted = factor * (nn.functional.linear(x, weight) + seen[0] @ a.t() @ b.t()) + plain[0].bias
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


def test_the_estimate_counts_what_is_trained() -> None:
    model = make_tiny_denoiser()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    targets = find_targets(model, FACTS.default_targets)
    lora = inject(model, targets, rank=4, alpha=4.0, dropout=0.0, seed=1, kind="dora")
    denoiser = denoiser_of(shapes, FACTS)
    layers = {path: denoiser.layers[path] for path in targets}
    cfg = Config()
    cfg.network.network_type, cfg.network.network_dim = "dora", 4
    counted = _lora_shapes(layers, _ranks(layers, (), cfg), cfg)
    assert sorted(counted) == sorted(tuple(p.shape) for p in lora.parameters())


@pytest.mark.parametrize(
    ("kind", "backend"),
    [("none", "aot_eager"), ("int8", "aot_eager"), pytest.param("nf4", "inductor", marks=pytest.mark.slow)],
)
def test_one_graph_under_autocast(kind: str, backend: str) -> None:
    """Lengths are worked out in float32 there too, also where the frozen weight is dequantised in 16 bits."""
    torch.manual_seed(3)
    layers = [nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 128)]
    # each layer costs inductor several kernels, and the second is quantised nowhere
    model = nn.Sequential(*layers[: 1 if backend == "inductor" else None]).to(torch.bfloat16)
    if kind != "none":
        quantize_layer(model, "0", model[0].weight.detach(), kind)
    targets = find_targets(model, [r"\d"])
    lora = inject(model, targets, rank=4, alpha=8.0, dropout=0.0, seed=1, kind="dora", cast=False)
    moved(lora)
    x = torch.randn(2, 7, 128)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    seen = []
    for each in (model, compiled):
        lora.magnitude("0").weight.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            out = each(x)
            exact = changed_lengths(lora.layers["0"], ADAPTER)
        out.float().square().mean().backward()
        seen.append((out.detach().float(), lora.magnitude("0").weight.grad.clone()))
    for mine, other in zip(*seen, strict=True):
        torch.testing.assert_close(mine, other, rtol=0.03, atol=0.03 * float(other.abs().max()))
    a, b = (part.detach() for part in lora.pair("0"))
    frozen = model[0].get_base_layer()
    weight = frozen.weight.float()
    if kind != "none":
        weight = dequantize(frozen.weight, frozen.scale, kind, torch.float32)
    assert exact.dtype == torch.float32
    torch.testing.assert_close(exact, (weight + 2 * b @ a).norm(dim=1), rtol=2e-3, atol=0)
