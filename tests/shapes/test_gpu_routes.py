"""The GPU routes against float32: exact where they compute in float32, and no further off than the unpadded bf16 run.

Run on a machine with a card: python -m pytest -q -m gpu tests/shapes
"""

import copy
from pathlib import Path

import pytest
import torch

from backend.compile.cuda_graphs.recording import record
from backend.compile.model_compiler import compile_model
from backend.compile.telemetry import Telemetry
from backend.models.family_classes import load_family
from backend.shapes import attention_probe, attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.shapes import assert_equal_runs, make_batch, reference, run
from tests.tiny.wide_flux import wide_denoiser

block_lists = load_family("flux").block_lists

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
# 64, 96, 60 and 48 image tokens, text of 40 to 64: several blocks of 128 keys, edges inside of blocks.
SIZES, WORDS = [(16, 16), (16, 24), (12, 20), (24, 8)], [40, 64, 50, 64]
HALF_ROUTES = ["sdpa", "varlen", "flash2", "fa3", "fa4", "flex"]


def errors(actual: tuple, wanted: tuple) -> tuple[float, float]:
    """Root mean square error of outputs and of gradients, each against its own size."""

    def rms(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
        got, want = (torch.cat([x.double().flatten() for x in xs]) for xs in (got, want))
        return ((got - want).square().mean().sqrt() / want.square().mean().sqrt()).item()

    names = sorted(wanted[1])
    return rms(actual[0], wanted[0]), rms([actual[1][n] for n in names], [wanted[1][n] for n in names])


@pytest.fixture(scope="module")
def model32() -> torch.nn.Module:
    return wide_denoiser().to(CUDA)


@pytest.fixture(scope="module")
def truth(model32: torch.nn.Module) -> tuple:
    torch.backends.cuda.matmul.allow_tf32 = False
    return reference(model32, make_batch(SIZES, WORDS).to("cuda", torch.float32))


def static(route: attention_routes.Route) -> ShapeRuntime:
    shapes = ShapeRuntime("static", 120, text_length=64, route=route)
    shapes.pad_fill = 1e3
    return shapes


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["sdpa", "flex"])
def test_float32_routes_are_exact(model32: torch.nn.Module, truth: tuple, name: str, checkpointing: bool) -> None:
    batch = make_batch(SIZES, WORDS).to("cuda", torch.float32)
    if checkpointing:
        model32.enable_gradient_checkpointing()
    try:
        output = run(model32, batch, static(attention_routes.choose_route(name, CUDA, torch.float32)))
    finally:
        model32.disable_gradient_checkpointing()
    assert_equal_runs(output, truth)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", HALF_ROUTES)
def test_half_precision_routes_are_as_close_as_the_unpadded_run(
    model32: torch.nn.Module, truth: tuple, name: str, checkpointing: bool
) -> None:
    why = attention_routes.route_problem(name, CUDA, torch.bfloat16)
    if why is not None:
        pytest.skip(why)
    model = copy.deepcopy(model32).to(torch.bfloat16)
    if checkpointing:
        model.enable_gradient_checkpointing()
    batch = make_batch(SIZES, WORDS).to("cuda", torch.bfloat16)
    bare = errors(reference(model, batch), truth)
    padded = errors(run(model, batch, static(attention_routes.choose_route(name, CUDA, torch.bfloat16))), truth)
    # Two roundings of the same size, summed in another order: a tenth is their noise, a leak would be far above it.
    assert padded[0] <= 1.1 * bare[0] and padded[1] <= 1.1 * bare[1], (padded, bare)


@pytest.mark.parametrize("name", HALF_ROUTES)
def test_compiled_route_is_one_graph_a_class(model32: torch.nn.Module, name: str) -> None:
    why = attention_routes.route_problem(name, CUDA, torch.bfloat16)
    if why is not None:
        pytest.skip(why)
    torch._dynamo.reset()
    model = copy.deepcopy(model32).to(torch.bfloat16)
    batch = make_batch(SIZES, WORDS).to("cuda", torch.bfloat16)
    shapes = static(attention_routes.choose_route(name, CUDA, torch.bfloat16))
    eager = run(model, batch, shapes)
    telemetry = Telemetry().start()
    report = compile_model(model, block_lists(model), fullgraph=True, dynamic="false")
    compiled = run(model, batch, shapes)
    for rows in ((3, 1, 0, 2), (2, 0, 1, 3)):
        run(model, batch.rows(*rows), shapes)
    stats = telemetry.poll()
    telemetry.stop()
    assert report.failed == {} and report.compiled == 4
    assert stats.by_class == {"double": 1, "single": 1} and stats.breaks == 0, stats
    close = errors(compiled, eager)
    assert close[0] < 0.02 and close[1] < 0.03, close


def test_auto_takes_the_fastest_that_works() -> None:
    hopper = torch.cuda.get_device_capability()[0] == 9
    usable = attention_routes.route_problem("fa4", CUDA, torch.bfloat16) is None
    wanted = "fa4" if hopper and usable else "sdpa"
    assert attention_routes.choose_route("auto", CUDA, torch.bfloat16).name == wanted


@pytest.mark.parametrize("padded", [True, False])
def test_the_probe_measures_every_route_there_is(padded: bool, tmp_path: Path) -> None:
    form = attention_probe.AttentionForm(batch=1, tokens=1024, heads=4, width=128, dtype=torch.bfloat16, padded=padded)
    routes, left_out = attention_probe.candidates(CUDA, form)
    expected = {"sdpa", "varlen", "flex"} if padded else {"sdpa", "flex"}
    assert expected <= set(routes) and ("varlen" in routes) == padded, left_out
    measured = attention_probe.fastest_route(CUDA, form, tmp_path, routes, left_out)
    assert expected <= set(measured.milliseconds), measured.left_out
    assert not any("away from" in why for why in measured.left_out.values()), measured.left_out
    assert attention_probe.fastest_route(CUDA, form, tmp_path, routes).cached


def test_flex_computes_unpadded_rows_in_compiled_blocks() -> None:
    """By kernels of its own; the eager call is SDPA's."""
    route, source = attention_routes.make_route("flex", CUDA, torch.bfloat16), torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 700, 2, 64, device="cuda", generator=source).bfloat16() for _ in range(3))
    results = []
    for attend in (route.attend, torch.compile(route.attend, dynamic=False, fullgraph=True)):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = attend(*leaves, None)
        out.float().square().sum().backward()
        results.append(([out], {str(number): leaf.grad for number, leaf in enumerate(leaves)}))
    close = errors(results[1], results[0])
    assert close[0] < 0.02 and close[1] < 0.03, close


@pytest.mark.parametrize("name", ["sdpa", "flex"])
def test_padded_rows_are_recorded_with_the_masks_of_each_batch(model32: torch.nn.Module, name: str) -> None:
    """Other lengths at each step, in the graphs of one shape."""
    plain, model = (copy.deepcopy(model32).to(torch.bfloat16) for _ in range(2))
    recorder, shapes = record(model), static(attention_routes.choose_route(name, CUDA, torch.bfloat16))
    if name == "flex":  # its backward pass exists in compiled blocks alone
        for each in (plain, model):
            compile_model(each, block_lists(each), dynamic="false")
    batch = make_batch(SIZES, WORDS).to("cuda", torch.bfloat16)
    for rows in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 0, 1, 3), (1, 2, 3, 0)):
        results = [run(each, batch.rows(*rows), shapes) for each in (plain, model)]
        close = errors(results[1], results[0])
        assert close[0] < 0.02 and close[1] < 0.03, (rows, close)
    assert len(recorder.recordings) == 1 and not recorder.failed, recorder.failed
