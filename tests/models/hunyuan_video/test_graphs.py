"""HunyuanVideo compiled: clips and pictures mixed, and its text refiner in a graph of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from backend.compile.model_compiler import compile_model
from backend.compile.telemetry import Telemetry
from backend.memory import checkpointing
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.block_graphs import BUCKETS, route_of
from tests.tiny.blocks import Counting
from tests.tiny.hunyuan_forward import make_batch, model_with_lora, ours

CODE = load_family("hunyuan_video")
FEW = [r".*blocks\.\d+\.attn\.to_k"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_clips_and_pictures_are_a_graph_for_each_of_their_sizes() -> None:
    """Pictures and clips in four sizes: two padded sizes, so two graphs a block class."""
    model = model_with_lora(FEW)
    checkpointing.apply(model, "block")
    shapes = ShapeRuntime("static", (16, 56), None, 64, route_of("sink"))
    telemetry = Telemetry().start()
    compile_model(
        model, CODE.block_lists(model), backend=Counting(), fullgraph=True, dynamic=shapes.compile_dynamic("false"),
        cache_size_limit=64, checkpointing=True,
    )  # fmt: skip
    telemetry.expect_plan(4, training=4, no_grad=0)
    for size in ((1, 8, 8), (3, 8, 8), (3, 6, 10), (1, 6, 10)):
        ours(model, make_batch([size], [9]), shapes)
    stats, difference = telemetry.poll(), telemetry.difference()
    telemetry.stop()
    assert (stats.graphs, stats.recompiles, stats.breaks) == (4, 0, 0) and difference is None


def test_a_graph_of_the_whole_model_has_the_text_refiner_in_it() -> None:
    """The stack traced as one gives what its blocks give one by one."""
    batch, shapes = make_batch([(3, 8, 8), (1, 8, 8)], [9, 14]), ShapeRuntime("static", (56,), BUCKETS, 64)
    wanted = ours(model_with_lora(FEW), batch, shapes)
    model = model_with_lora(FEW)
    CODE.block_lists(model)
    model.core = torch.compile(partial(model.core), backend="eager", fullgraph=True)
    torch.testing.assert_close(ours(model, batch, shapes), wanted, rtol=1e-5, atol=1e-6)
