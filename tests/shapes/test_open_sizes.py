"""Attention in graphs of open sizes: nothing on the way may guard them on more than the plan knows."""

from typing import Any

import pytest
import sympy
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import Mod

from backend.compile.telemetry import Telemetry
from backend.models.family_classes import load_family
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime

block_lists = load_family("flux").block_lists
predict = load_family("flux").predict


def leaves(tokens: int, width: int = 16) -> list[torch.Tensor]:
    return [torch.randn(1, tokens, 2, width, requires_grad=True) for _ in range(3)]


def open_route() -> attention_routes.Route:
    route = attention_routes.MaskedSdpa()
    route.open_sizes()
    return route


def test_unpadded_rows_of_open_sizes_are_plain_attention() -> None:
    """Through our operator, to keys of another number too (text of a UNet), outputs and gradients."""
    route, tensors = open_route(), leaves(20)
    wanted = [x.detach().clone().requires_grad_() for x in tensors]
    for (q, k, v), attend in ((tensors, route.plain), (wanted, attention_routes.plain_attention)):
        attend(q, k[:, :5], v[:, :5]).square().sum().backward()
    for got, want in zip(tensors, wanted, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-5, atol=1e-6)
    odd = leaves(20, width=12)
    torch.testing.assert_close(route.plain(*odd), attention_routes.plain_attention(*odd), rtol=0, atol=0)


@torch._inductor.config.patch(force_disable_caches=True)  # what is asked here is no part of a cache's key
def test_graphs_of_open_sizes_are_not_guarded_by_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card inductor asks whether rows of SDPA's lse are a multiple of 8 long: here the CPU's kernel is asked."""
    from torch._inductor import lowering

    def asked(node: object, *arguments: Any, **named: Any) -> Any:
        rows = arguments[5].get_size()[-1]
        V.graph.sizevars.guard_or_false(sympy.Eq(Mod(rows, 8), 0))
        return usual(node, *arguments, **named)

    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    usual = lowering._maybe_layout_constraints[kernel]
    monkeypatch.setitem(lowering._maybe_layout_constraints, kernel, asked)
    graphs = []
    for attend in (attention_routes.plain_attention, open_route().plain):
        torch._dynamo.reset()
        counting = Telemetry().start()
        compiled = torch.compile(lambda *arguments, attend=attend: attend(*arguments))
        for tokens in (64, 68, 72):
            tensors = leaves(tokens)
            for each in tensors:
                torch._dynamo.mark_dynamic(each, 1)
            compiled(*tensors).sum().backward()
        graphs.append(counting.poll().graphs)
        counting.stop()
    assert graphs == [2, 1], "SDPA's own, ours"


@pytest.mark.gpu
def test_on_a_card_a_graph_a_class_serves_all_sizes() -> None:
    """By inductor, in bf16: 4096, 4050 and 4092 image tokens beside 40 of text: some rows are a multiple of 8 long."""
    from backend.compile.model_compiler import compile_model
    from tests.tiny.shapes import make_batch
    from tests.tiny.wide_flux import wide_denoiser

    device = torch.device("cuda")
    model = wide_denoiser().to(device, torch.bfloat16)
    route = attention_routes.choose_route("sdpa", device, torch.bfloat16)
    shapes = ShapeRuntime("dynamic", route=route, longest=4200)
    shapes.expect_graphs("auto", device, torch.bfloat16)
    telemetry = Telemetry().start()
    compile_model(model, block_lists(model), fullgraph=True, dynamic=shapes.compile_dynamic("auto"))
    for size in ((128, 128), (108, 150), (124, 132)):
        batch = make_batch([size], [40]).to("cuda", torch.bfloat16)
        predict(model, batch.noisy, batch.sigma, batch.text, 1.0, shapes)[0].square().mean().backward()
    stats = telemetry.poll()
    telemetry.stop()
    assert (stats.graphs, stats.recompiles, stats.breaks) == (2, 0, 0)
