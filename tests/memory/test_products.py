"""8-bit products: each way held against float64, its gradients, what is chosen for which GPU, and kernels on a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from backend.memory import product_operators, product_probe, product_ways
from backend.memory.product_operators import rotated_rows, scaled_product, turned_back
from backend.memory.product_ways import WAYS, ProductWay, way_of
from backend.memory.quantized_formats import dequantize, quantize_rows
from backend.memory.quantized_linear import QuantizedLinear, products_words, quantize_layer
from backend.memory.rotation import rotated, rotation
from backend.plan.memory.weight_bytes import multiplied_in_8_bits, tensor_bytes

ALL = [(kind, name) for kind, ways in WAYS.items() for name in ways]


def error(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm() / other.norm())


def inputs(rows: int = 64, columns: int = 256, seed: int = 0) -> Tensor:
    """Activations with columns that are far out, as those of real models."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    x[:, 5] *= 30
    return x


def layer_of(kind: str, name: str, real: nn.Linear) -> QuantizedLinear:
    return QuantizedLinear(real.weight.detach(), kind, way_of(kind, name, torch.device("cpu")), real.bias)


@pytest.fixture(scope="module")
def real() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(256, 192).requires_grad_(False)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_each_way_is_the_product_of_the_rounded_numbers(kind: str, name: str, real: nn.Linear) -> None:
    """Held against float64 on the very numbers that were quantised: nothing is lost but by rounding of the result."""
    layer, x = layer_of(kind, name, real), inputs().bfloat16().requires_grad_()
    upstream = torch.randn(64, 192).bfloat16()
    out = layer(x)
    (grad,) = torch.autograd.grad(out, x, upstream)
    weight = dequantize(layer.weight, layer.scale, kind, torch.float64)
    rounded_input = x.detach() if layer.turn is None else rotated(x.detach().float(), layer.turn)
    numbers, rows = quantize_rows(rounded_input, kind)
    wanted = (numbers.double() * rows.double()) @ weight.T
    assert error(out - real.bias.bfloat16(), wanted) < 0.006
    if layer.way.backward == "dequantised":
        back = upstream.double() @ weight
    else:
        numbers, rows = quantize_rows(upstream.float() * layer.scale, kind)
        back = (numbers.double() * rows.double()) @ layer.weight.double()
    back = back if layer.turn is None else rotated(back, layer.turn)
    assert error(grad, back) < 0.006


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_gradients_point_where_the_real_layers_do(kind: str, name: str, real: nn.Linear) -> None:
    layer, x = layer_of(kind, name, real), inputs(seed=2).requires_grad_()
    upstream = torch.randn(64, 192) * torch.logspace(-3, 0, 64)[:, None]
    (ours,), (theirs,) = (torch.autograd.grad(run(x), x, upstream) for run in (layer, real))
    assert torch.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.9985


def test_rotating_makes_int8_several_times_as_exact_where_columns_are_far_out(real: nn.Linear) -> None:
    x = inputs(seed=3)
    turned, plain = (error(layer_of("int8", name, real)(x), real(x)) for name in ("small", "small-unrotated"))
    assert turned < plain / 2.5
    turn = rotation(256, x.device).float()
    assert torch.equal(turn @ turn.T, torch.eye(64)) and rotation(24, x.device) is None


def test_the_operator_gives_exact_sums_of_int8_and_takes_a_weight_along_either_axis() -> None:
    torch.manual_seed(4)
    a, w = (torch.randint(-127, 128, shape, dtype=torch.int8) for shape in ((20, 48), (32, 48)))
    rows, columns = torch.rand(20, 1), torch.rand(32)
    wanted = (a.double() @ w.double().T) * rows.double() * columns.double()
    for right in (w.t(), w.t().contiguous()):
        assert error(scaled_product(a, right, rows, columns, torch.float32), wanted) < 1e-6
    half = scaled_product(a, w.t(), rows, None, torch.bfloat16)
    assert half.dtype == torch.bfloat16 and error(half, wanted / columns) < 0.004


def test_the_kernels_are_for_nvidia_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_operators, "_has_triton", lambda: True)
    on_gpu = SimpleNamespace(is_cuda=True)
    assert product_operators._has_kernels(on_gpu) and not product_operators._has_kernels(torch.ones(1))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not product_operators._has_kernels(on_gpu)


def test_a_copy_is_made_for_fast_alone_and_counted(real: nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.plan.memory.weight_bytes.SMALLEST", 256)
    for kind in ("fp8", "int8"):
        fast, small = layer_of(kind, "fast", real), layer_of(kind, "small", real)
        assert torch.equal(fast.copy.view(torch.int8), fast.weight.t().view(torch.int8)) and small.copy is None
        assert fast.state_dict().keys() == small.state_dict().keys(), "the copy is made again from the weight"
        held = sum(t.nbytes for t in (fast.weight, fast.scale, fast.copy))
        assert held == tensor_bytes("blocks.0.a.weight", (192, 256), kind, 2, copies=True)


def test_what_was_chosen_is_told(real: nn.Linear) -> None:
    model = nn.ModuleList([layer_of("fp8", "fast", real), QuantizedLinear(real.weight, "fp8")])
    words = products_words(model)
    assert "1 fp8 (forward scaled, backward scaled); dequantised: 1; transposed copies" in words
    assert "none; dequantised: 1" in products_words(model[1])


@pytest.mark.parametrize(("scaled", "rowwise", "kernel"), [
    (1.0, 0.9, "scaled"), (1.0, 0.5, "rowwise"), (None, 2.0, "rowwise"), (1.0, None, "scaled"), (None, None, "scaled"),
])  # fmt: skip
def test_the_probe_takes_the_other_kernel_where_it_is_clearly_faster_or_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, scaled: float | None, rowwise: float | None, kernel: str
) -> None:
    times = {"scaled": scaled, "rowwise": rowwise}
    monkeypatch.setattr(product_probe, "_seconds", lambda name, device: times[name])
    assert product_probe.fp8_kernel.__wrapped__(torch.device("cuda")) == kernel


@pytest.mark.parametrize(("name", "shape", "gains"), [
    ("transformer_blocks.0.attn.to_q.weight", (3072, 3072), True),
    ("transformer_blocks.0.ff.net.0.proj.weight", (12288, 3072), True),
    ("transformer_blocks.0.norm1.linear.weight", (18432, 3072), False),
    ("transformer_blocks.0.img_mod.1.weight", (18432, 3072), False),
    ("layers.0.adaLN_modulation.0.weight", (15360, 3072), False),
    ("down_blocks.1.attentions.0.proj_in.weight", (1280, 1280), False),
    ("proj_out.weight", (3072, 3072), False),
])  # fmt: skip
def test_modulation_and_small_layers_stay_in_bf16(name: str, shape: tuple[int, int], gains: bool) -> None:
    assert multiplied_in_8_bits(name, shape) is gains


@pytest.mark.parametrize(("capability", "compute", "products", "kernels"), [
    ((8, 0), "int8", "small", ("fused", "fused", False)), ((8, 6), "int8", "fast", ("fused", "fused", True)),
    ((9, 0), "int8", "small", ("fused", "dequantised", False)), ((12, 0), "int8", "small", ("fused", "fused", False)),
    ((9, 0), "fp8", "fast", ("scaled", "scaled", True)), ((10, 0), "fp8", "small", ("scaled", "dequantised", False)),
    ((9, 0), "bf16", "fast", ("dequantised", "dequantised", False)),
])  # fmt: skip
def test_the_way_is_chosen_by_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], compute: str, products: str, kernels: tuple
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(product_ways, "fp8_kernel", lambda device: "scaled")
    way = way_of(compute, products, torch.device("cuda"))
    assert (way.forward, way.backward, way.copies) == kernels and way.rotates == (compute == "int8")
    monkeypatch.setattr(product_ways, "fp8_kernel", lambda device: "rowwise")
    if compute == "fp8":
        assert way_of(compute, products, torch.device("cuda")).forward == "rowwise"


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [77, 4608])
@pytest.mark.parametrize(("kind", "name"), [*ALL, ("nf4", "bf16")])
def test_on_a_gpu_compiled_and_eager_agree_with_the_real_layer(kind: str, name: str, rows: int) -> None:
    from backend.memory.quantization_support import quantization_problem

    compute = "bf16" if name == "bf16" else kind
    if problem := quantization_problem(kind, compute, torch.device("cuda")):
        pytest.skip(problem)
    torch._dynamo.reset()
    torch.manual_seed(0)
    real = nn.Linear(1024, 3072).to("cuda", torch.bfloat16).requires_grad_(False)
    # the way itself, not what the GPU would choose
    way = ProductWay() if compute == "bf16" else WAYS[kind][name]
    layer = QuantizedLinear(real.weight, kind, way, real.bias)
    x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(rows, 3072, device="cuda", dtype=torch.bfloat16)
    wanted = real(x)
    (wanted_grad,) = torch.autograd.grad(wanted, x, upstream)
    limit = {"fp8": 0.055, "int8": 0.02, "nf4": 0.12}[kind]
    for run in (layer, torch.compile(layer.forward, fullgraph=True)):
        out = run(x)
        (grad,) = torch.autograd.grad(out, x, upstream)
        assert out.dtype == torch.bfloat16
        assert error(out, wanted) < limit and error(grad, wanted_grad) < limit


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(77, 1024, 3072), (4608, 3072, 3072), (4100, 320, 1296)])
def test_on_a_gpu_the_kernel_gives_what_the_cpu_gives(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    triton_product = pytest.importorskip("backend.memory.triton_product")
    if dtype != torch.int8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    torch.manual_seed(0)
    m, k, n = shape
    a, w = (torch.randint(-127, 128, size).to(torch.int8) for size in ((m, k), (n, k)))
    a, w = (a, w) if dtype == torch.int8 else ((a / 16).to(dtype), (w / 16).to(dtype))
    rows, columns = torch.rand(m, 1), torch.rand(n)
    for right in (w.t(), w.t().contiguous()):
        for scale in (columns, None):
            wanted = scaled_product(a, right, rows, scale, torch.bfloat16)
            on_gpu = [None if t is None else t.cuda() for t in (a, right, rows, scale)]
            out = scaled_product(*on_gpu, torch.bfloat16).cpu()
            # int8 sums are exact; fp8 ones are summed in another order and with fewer bits
            limit = 2e-3 if dtype == torch.int8 else 5e-3
            assert error(out, wanted) < limit
            described = torch.cuda.get_device_capability()[0] in (9, 10) and right.stride(0) == 1
            for kernel in ("pointers", "descriptors") if described else ("pointers",):
                out = torch.full_like(wanted, float("nan"), device="cuda")
                triton_product._KERNELS[kernel](*on_gpu[:2], out, *on_gpu[2:])
                assert error(out.cpu(), wanted) < limit, kernel


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [3072, 15360, 1040])
def test_on_a_gpu_rotations_give_what_the_cpu_gives(columns: int) -> None:
    x = inputs(rows=70, columns=columns).bfloat16()
    turn = rotation(columns, x.device)
    numbers, scale = rotated_rows(x, turn)
    on_gpu = [t.cpu() for t in rotated_rows(x.cuda(), turn.cuda())]
    assert (on_gpu[0].int() - numbers.int()).abs().max() <= 1 and error(on_gpu[1], scale) < 1e-5
    assert (on_gpu[0] != numbers).float().mean() < 0.01
    back = turned_back(numbers, scale.flatten(), turn, torch.bfloat16)
    assert error(back, x) < 0.02
    arguments = [t.cuda() for t in (numbers, scale.flatten(), turn)]
    assert error(turned_back(*arguments, torch.bfloat16).cpu(), back) < 1e-3


@pytest.mark.gpu
def test_on_a_gpu_small_layers_dequantise_and_large_ones_do_not() -> None:
    model = nn.ModuleDict(
        {"blocks": nn.ModuleList([nn.ModuleDict({"a": nn.Linear(2048, 2048), "b": nn.Linear(64, 64)})])}
    )
    for leaf in ("a", "b"):
        weight = model["blocks"][0][leaf].weight.detach().cuda()
        quantize_layer(model, f"blocks.0.{leaf}", weight, "int8", "int8", "fast")
    large, small = model["blocks"][0].values()
    assert large.copy is not None and small.copy is None and small.way == ProductWay()
