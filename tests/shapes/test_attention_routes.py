"""Routes: what is refused and why, how the operators are wired, and that every mask form means the same thing."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from backend.shapes import attention_routes, flash_kernels, padding
from backend.shapes.padding import ValidSpans, joint_spans, pad_rows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
RUNS = ValidSpans(start=(3, 0, 5), end=(17, 20, 9), length=20)


def dense(q: Tensor, k: Tensor, v: Tensor, runs: ValidSpans) -> Tensor:
    """Each row's real part alone, through plain softmax attention; zeros elsewhere."""
    out = torch.zeros_like(q)
    for row, (start, end) in enumerate(zip(runs.start, runs.end, strict=True)):
        part = [t[row, start:end].transpose(0, 1) for t in (q, k, v)]
        scores = torch.softmax(part[0] @ part[1].transpose(1, 2) * q.shape[-1] ** -0.5, dim=-1)
        out[row, start:end] = (scores @ part[2]).transpose(0, 1)
    return out


class ByHand(flash_kernels.Kernel):
    """A varlen kernel in plain torch, in the packages' calling form: proves the operators' wiring on a CPU."""

    def _parts(self, q: Tensor, cu: Tensor | None) -> list[tuple[int, int]]:
        bounds = [0, q.shape[0]] if cu is None else cu.tolist()
        return list(zip(bounds[:-1], bounds[1:], strict=True))

    def forward(self, q, k, v, cu, longest):
        assert longest >= max(e - b for b, e in self._parts(q, cu))
        out, lse = torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0])
        for begin, end in self._parts(q, cu):
            scores = torch.einsum("qhd,khd->hqk", q[begin:end], k[begin:end]) * q.shape[-1] ** -0.5
            lse[:, begin:end] = scores.logsumexp(-1)
            out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[begin:end])
        return out, lse

    def backward(self, dout, q, k, v, out, lse, cu, longest):
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        scale = q.shape[-1] ** -0.5
        for b, e in self._parts(q, cu):
            p = torch.exp(torch.einsum("qhd,khd->hqk", q[b:e], k[b:e]) * scale - lse[:, b:e, None])
            dv[b:e] = torch.einsum("hqk,qhd->khd", p, dout[b:e])
            dp = torch.einsum("qhd,khd->hqk", dout[b:e], v[b:e])
            ds = p * (dp - (dout[b:e] * out[b:e]).sum(-1).transpose(0, 1)[..., None]) * scale
            dq[b:e] = torch.einsum("hqk,khd->qhd", ds, k[b:e])
            dk[b:e] = torch.einsum("hqk,qhd->khd", ds, q[b:e])
        return dq, dk, dv


BY_HAND = attention_routes.Segments("flash2", "by hand", flash_kernels.segment_operator("byhand", ByHand))


def leaves(seed: int = 0, heads: int = 2, width: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, RUNS.length, heads, width, generator=generator).requires_grad_() for _ in range(3)]


ROUTES = [attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "dense"), BY_HAND]


@pytest.mark.parametrize("route", ROUTES, ids=["mask", "sink", "segments"])
def test_each_route_is_attention_over_the_run(route: attention_routes.Route) -> None:
    """Outputs of real queries and gradients of q, k, v against plain softmax over the run; padding gets none."""
    weight = torch.randn(3, RUNS.length, 2, 16, generator=torch.Generator().manual_seed(9))
    real = padding.key_mask(RUNS, CPU).reshape(3, -1, 1, 1)
    wanted_in, own_inputs = leaves(), leaves()
    wanted = dense(*wanted_in, RUNS)
    output = route.attend(*own_inputs, route.prepare(RUNS, CPU))
    torch.testing.assert_close(torch.where(real, output, 0.0), wanted, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(output).all()
    (wanted * weight).sum().backward()
    (torch.where(real, output, 0.0) * weight).sum().backward()
    for got, want in zip(own_inputs, wanted_in, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("route", ROUTES, ids=["mask", "sink", "segments"])
def test_huge_padding_is_harmless(route: attention_routes.Route) -> None:
    real = padding.key_mask(RUNS, CPU).reshape(3, -1, 1, 1)
    clean = [x.detach() for x in leaves()]
    dirty = [torch.where(real, x, 1e4 * x).requires_grad_() for x in clean]
    mask = route.prepare(RUNS, CPU)
    out = route.attend(*dirty, mask)
    torch.testing.assert_close(torch.where(real, out, 0.0), dense(*clean, RUNS), rtol=1e-5, atol=1e-6)
    torch.where(real, out, 0.0).square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in dirty)
    assert all(torch.where(real, 0.0, x.grad).abs().max() == 0 for x in dirty)


def test_sink_swallows_infinite_padding() -> None:
    """Keys and values that overflowed in the padding are replaced, not multiplied: no NaN."""
    route = ROUTES[1]
    real = padding.key_mask(RUNS, CPU).reshape(3, -1, 1, 1)
    q, k, v = (x.detach() for x in leaves())
    out = route.attend(q, torch.where(real, k, torch.inf), torch.where(real, v, -torch.inf), route.prepare(RUNS, CPU))
    torch.testing.assert_close(torch.where(real, out, 0.0), dense(q, k, v, RUNS), rtol=1e-5, atol=1e-6)


def test_removing_zero_keys_is_bit_exact_without_padding() -> None:
    out, lse = torch.randn(2, 6, 2, 8).bfloat16(), torch.randn(2, 2, 6)
    same = flash_kernels.remove_zero_keys(out.clone(), lse, torch.zeros(2))
    assert torch.equal(same[0], out) and torch.equal(same[1], lse)


def test_naive_lse_correction_has_wrong_gradients() -> None:
    """The counter-proof for the sink style: correcting the output by an lse without gradient misses dq by far."""
    route = ROUTES[1]
    good, naive = leaves(), leaves()
    real, pads = route.prepare(RUNS, CPU)
    weight = torch.randn(3, RUNS.length, 2, 16, generator=torch.Generator().manual_seed(9))

    def loss(out: Tensor) -> Tensor:
        return (torch.where(real, out, 0.0) * weight).sum()

    loss(route.attend(*good, (real, pads))).backward()
    q, k, v = naive[0], torch.where(real, naive[1], 0.0), torch.where(real, naive[2], 0.0)
    raw = attention_routes.plain_attention(q, k, v)
    with torch.no_grad():
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        factor = torch.exp(-torch.log1p(-pads[:, None, None] * torch.exp(-scores.logsumexp(-1))))
    corrected = raw * factor.transpose(1, 2).unsqueeze(-1)
    loss(corrected).backward()
    error = (naive[0].grad - good[0].grad).abs().max() / good[0].grad.abs().max()
    assert error > 0.02


@pytest.mark.parametrize("style", ["sink", "segments"])
def test_operators_are_well_formed(style: str) -> None:
    """torch's own opcheck: schema, fake kernels, autograd registration."""
    q, k, v = leaves()
    if style == "sink":
        attention_routes.sink_route("sdpa", "aten", "dense")
        for pads in (torch.tensor([6.0, 0.0, 16.0]), None):
            torch.library.opcheck(torch.ops.monotile.aten_sink.default, (q, k, v, pads))
    else:
        cu = padding.cu_seqlens(RUNS, CPU)
        flat = [x.detach().reshape(-1, 2, 16).requires_grad_() for x in (q, k, v)]
        torch.library.opcheck(torch.ops.monotile.byhand_segments.default, (*flat, cu, RUNS.length))


@pytest.mark.parametrize("style", ["sink", "segments"])
def test_operators_cost_what_attention_costs(style: str) -> None:
    """The partitioner weighs what to compute twice by these: torch's own attention is the measure."""
    attention_routes.sink_route("sdpa", "aten", "dense")
    q, k, v = (torch.empty(1, 20, 2, 16, dtype=torch.bfloat16, device="meta") for _ in range(3))
    with FlopCounterMode(display=False) as plain:
        F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    with FlopCounterMode(display=False) as ours:
        if style == "sink":
            torch.ops.monotile.aten_sink(q, k, v, None)
        else:
            torch.ops.monotile.byhand_segments(q[0], k[0], v[0], torch.empty(2, device="meta"), 20)
    assert ours.get_total_flops() == plain.get_total_flops() > 0


def test_package_entries_are_called_by_name() -> None:
    """Entries that gained, lost or renamed parameters between releases still get the right values."""

    def old(q, k_new, softmax_scale, causal):
        return q, k_new, softmax_scale, causal

    def new(q, *, is_causal=False, window_size_left=None, extra=7):
        return q, is_causal, window_size_left, extra

    options = flash_kernels._options(torch.zeros(1, 1, 16))
    assert flash_kernels.call_by_name(old, q=1, **options) == (1, None, 0.25, False)
    assert flash_kernels.call_by_name(new, q=2, **options) == (2, False, -1, 7)


def test_flex_block_mask_equals_the_dense_mask() -> None:
    """The block mask written from bounds marks the same keys as `create_block_mask` on the predicate."""
    from torch.nn.attention.flex_attention import create_block_mask

    runs = ValidSpans((100, 0, 128, 7), (700, 640, 512, 130), 700)
    made = padding.block_mask(runs, CPU)
    start, end = torch.tensor(runs.start), torch.tensor(runs.end)

    def inside(b, h, q, kv):
        return (kv >= start[b]) & (kv < end[b])

    wanted = create_block_mask(inside, 4, None, 700, 700, device="cpu", BLOCK_SIZE=128)
    assert torch.equal(made.to_dense().bool(), wanted.to_dense().bool())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(made, name), getattr(wanted, name)), name
    assert made.full_kv_num_blocks.max() > 0 and made.kv_num_blocks.max() > 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_forward_on_cpu_equals_the_mask() -> None:
    q, k, v = (x.detach() for x in leaves())
    real = padding.key_mask(RUNS, CPU).reshape(3, -1, 1, 1)
    route = attention_routes.Flex()
    out = route.attend(q, k, v, route.prepare(RUNS, CPU))
    torch.testing.assert_close(torch.where(real, out, 0.0), dense(q, k, v, RUNS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("route", "device", "dtype", "words"),
    [
        ("varlen", CPU, torch.bfloat16, "varlen attention needs an NVIDIA GPU, and this run is on cpu"),
        ("varlen", CUDA, torch.float32, "bf16 or fp16, and this run is in float32"),
        ("flash2", CUDA, torch.float32, "flash2 attention computes in bf16 or fp16"),
        ("fa3", CPU, torch.bfloat16, "fa3 attention needs an NVIDIA GPU"),
        ("fa4", CPU, torch.bfloat16, "fa4 attention needs an NVIDIA GPU"),
        ("flex", CPU, torch.float32, "no backward pass on the CPU"),
    ],
)
def test_route_without_a_kernel_is_refused_by_name(route: str, device, dtype, words: str) -> None:
    with pytest.raises(ValueError, match=f"attention = {route} cannot be used: .*") as caught:
        attention_routes.choose_route(route, device, dtype)
    assert words in str(caught.value) and "Set attention to auto" in str(caught.value)


def test_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    for route, name in (("flash2", "flash-attn"), ("fa3", "FlashAttention 3"), ("fa4", "flash-attn-4")):
        if attention_routes.package_problem(route) is not None:
            with pytest.raises(ValueError, match=f"{name}.*is not installed|{name}.*does not load"):
                attention_routes.choose_route(route, CUDA, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 9))
    with pytest.raises(ValueError, match="FlashAttention 3 is for Hopper GPUs"):
        attention_routes.choose_route("fa3", CUDA, torch.bfloat16)


def test_head_sizes_that_fa4_lacks_go_through_torchs_kernel() -> None:
    """Heads of 16, as tiny models have them: the same result, and the package is never asked."""
    route = attention_routes.make_route("fa4", CPU, torch.float32)
    q, k, v = leaves()
    mask = route.prepare(RUNS, CPU)
    out = torch.where(mask[0], route.attend(q, k, v, mask), 0.0)
    torch.testing.assert_close(out, dense(q, k, v, RUNS), rtol=1e-5, atol=1e-6)
    plain = route.attend(q, k, v, None)
    torch.testing.assert_close(plain, attention_routes.plain_attention(q, k, v), rtol=1e-5, atol=1e-6)


def test_auto_takes_the_masked_route_on_cpu_and_unknown_names_are_refused() -> None:
    assert isinstance(attention_routes.choose_route("auto", CPU, torch.float32), attention_routes.MaskedSdpa)
    assert attention_routes.choose_route("flex", CPU, torch.float32, training=False).name == "flex"
    with pytest.raises(ValueError, match="unknown attention route 'xformers'"):
        attention_routes.choose_route("xformers", CPU, torch.float32)


def test_runs_and_rows() -> None:
    runs = joint_spans([3, 5], [4, 2], 5, 6)
    assert (runs.start, runs.end, runs.length, runs.padded) == ((2, 0), (9, 7), 11, True)
    assert not joint_spans([5, 5], [6, 6], 5, 6).padded
    assert padding.cu_seqlens(runs, CPU).tolist() == [0, 2, 9, 11, 11, 18, 22]
    assert padding.pad_counts(runs, CPU).tolist() == [4.0, 4.0]
    rows = pad_rows([torch.ones(1, 2), torch.ones(3, 2)], 3, "left", 7.0)
    assert rows[0].tolist() == [[7, 7], [7, 7], [1, 1]]
    with pytest.raises(ValueError, match="a row of 3 tokens does not fit 2"):
        pad_rows([torch.ones(3, 2)], 2, "right")
