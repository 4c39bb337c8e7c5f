"""Qwen-Image compiled block by block: planned graphs are the observed ones over 8 sizes and 8 captions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from backend.compile.helper import compile_model
from backend.compile.telemetry import Telemetry
from backend.memory import checkpointing
from backend.models.qwen_image.denoise import block_lists, predict
from backend.plan.graphs import Shape, count_graphs
from backend.shapes import attention
from backend.shapes.runtime import ShapeRuntime
from tests.compile.toys import Counting
from tests.models.qwen_image.test_forward import make_batch, model_with_lora, ours

SIZES = [(8, 8), (8, 12), (6, 10), (12, 4), (4, 24), (10, 10), (12, 8), (6, 16)]
LENGTHS = [6, 16, 9, 12, 15, 30, 33, 60]
BUCKETS = (16, 64)
FEW = [r".*attn\.to_k"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("mode", "dynamic", "buckets", "style"),
    [
        ("static", "false", BUCKETS, "mask"),
        ("static", "false", None, "sink"),
        ("dynamic", "auto", BUCKETS, "mask"),
    ],
)
def test_graphs_equal_the_plan_over_eight_sizes_and_captions(
    mode: str, dynamic: str, buckets: tuple[int, ...] | None, style: str
) -> None:
    model = model_with_lora(FEW)
    checkpointing.apply(model, "block")
    route = attention.MaskedSdpa() if style == "mask" else attention.sink_route("sdpa", "aten", "flash")
    shapes = ShapeRuntime(mode, 32, buckets, 64, route, longest=1000)
    kept = [next(b for b in buckets if b >= length) if buckets else 64 for length in LENGTHS]
    tokens = [32 if mode == "static" else h * w // 4 for h, w in SIZES]
    planned = [Shape(n, t, 1) for n, t in zip(tokens, kept, strict=True)]
    wanted = count_graphs(mode, dynamic, [], planned, planned)
    assert wanted == {"static": (len({*kept}),) * 2, "dynamic": (1, 1)}[mode]
    counting, telemetry = Counting(), Telemetry().start()
    compile_model(
        model, block_lists(model), backend=counting, fullgraph=True, dynamic=shapes.compile_dynamic(dynamic),
        cache_size_limit=64, checkpointing=True,
    )  # fmt: skip
    telemetry.warm(sum(wanted), training=wanted[0], no_grad=wanted[1])
    batches = [make_batch([size], [length]) for size, length in zip(SIZES, LENGTHS, strict=True)]
    for batch in batches:
        ours(model, batch, shapes)
    with torch.no_grad():
        for batch in batches:
            predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    stats, difference = telemetry.poll(), telemetry.difference()
    telemetry.stop()
    assert (stats.graphs, stats.recompiles, stats.breaks, stats.limit_hits) == (sum(wanted), 0, 0, 0), stats
    assert difference is None and stats.by_class.keys() == {"block"}


def test_compiled_and_checkpointed_equal_eager() -> None:
    """Through the compiler's autograd, every way of checkpointing, three rows of mixed sizes."""
    route = attention.sink_route("sdpa", "aten", "flash")
    batch, shapes = make_batch(SIZES[:3], LENGTHS[:3]), ShapeRuntime("static", 32, BUCKETS, 64, route)
    wanted = ours(model_with_lora(), batch, shapes)
    for kind in checkpointing.KINDS:
        model = model_with_lora()
        offload = checkpointing.apply(model, kind)
        if offload is not None:
            offload.smallest = 0
        torch.testing.assert_close(ours(model, batch, shapes), wanted, rtol=1e-6, atol=1e-7)
    compile_model(model, block_lists(model), backend="aot_eager", fullgraph=True, dynamic="false", checkpointing=True)
    torch.testing.assert_close(ours(model, batch, shapes), wanted, rtol=1e-5, atol=1e-6)
