"""Graphs of a real (tiny) FLUX with LoRA: one a block class, shape and gradient mode, as planned, in every mode."""

import pytest
import torch

from backend.compile.block_selection import BlockChoice
from backend.compile.model_compiler import compile_model
from backend.compile.telemetry import CompileStats, Telemetry
from backend.config.schema import Config
from backend.families.table import family
from backend.models.family_classes import load_family
from backend.plan.graphs import Shape, count_graphs
from backend.plan.trained_blocks import graph_variants
from backend.runs.events.kinds import RecompileEvent
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.blocks import Counting
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.shapes import Batch, denoiser_with_lora, make_batch, run

block_lists = load_family("flux").block_lists
predict = load_family("flux").predict

# Latent sizes (h, w) of 12, 16 and 24 tokens.
SIZES = [(6, 8), (8, 8), (8, 12)]
TEXT = 12


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sparse_lora(dropout: float = 0.0) -> torch.nn.Module:
    """LoRA on one layer a block class: the graphs are the same in number, and traced in a fraction of the time."""
    from peft import LoraConfig, inject_adapter_in_model

    model = make_tiny_denoiser()
    inject_adapter_in_model(LoraConfig(r=2, lora_dropout=dropout, target_modules=r".*(attn\.to_q|proj_mlp)"), model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model.train()


def no_grad(model: torch.nn.Module, batch: Batch, shapes: ShapeRuntime) -> None:
    with torch.no_grad():
        predict(model, batch.noisy, batch.sigma, batch.text, 3.5, shapes)


def batch_of(shape: Shape, text: int | None = None) -> Batch:
    size = {12: (6, 8), 16: (8, 8), 24: (8, 12)}[shape.image_tokens]
    return make_batch([size] * shape.batch, [text or shape.text_tokens] * shape.batch)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_static_is_one_whole_graph_a_class(checkpointing: bool) -> None:
    """LoRA with dropout, fullgraph, rows of many sizes, validation between: 2 graphs a class, 0 breaks.

    Everywhere in one class of blocks; with checkpointing, which is outside of the graphs, on few layers of both.
    """
    classes = ("double", "single") if checkpointing else ("single",)
    model = sparse_lora(0.1) if checkpointing else denoiser_with_lora(dropout=0.1)
    if checkpointing:
        model.enable_gradient_checkpointing()
    counting = Counting()
    report = compile_model(model, lists_of(model, *classes), backend=counting, fullgraph=True, dynamic="false")
    telemetry = Telemetry().start()
    telemetry.expect_plan(2 * len(classes), training=1, no_grad=1)
    shapes = ShapeRuntime("static", 24, text_length=TEXT)
    for step, pair in enumerate(([0, 1], [2, 2], [1, 0], [2, 1])):
        batch = make_batch([SIZES[i] for i in pair], [TEXT - step, TEXT])
        run(model, batch, shapes)
        if step % 2:
            # As validation does it: no gradients, dropout off.
            model.eval()
            no_grad(model, batch, shapes)
            model.train()
    stats = telemetry.poll()
    telemetry.stop()
    assert (stats.graphs, stats.recompiles, stats.breaks, stats.limit_hits) == (2 * len(classes), 0, 0, 0)
    assert stats.by_class == dict.fromkeys(classes, 2) and stats.warm and len(counting.graphs) == stats.graphs
    assert telemetry.difference() is None and report.failed == {} and report.verdict(stats.graphs) is None


def lists_of(model: torch.nn.Module, *classes: str) -> dict[str, torch.nn.ModuleList]:
    """The blocks of these classes: with the others eager, there are as many graphs a class, and half of the tracing."""
    return {name: blocks for name, blocks in block_lists(model).items() if name in classes}


def play(
    mode: str, dynamic: str, training: list[Shape], no_grad_shapes: list[Shape], *classes: str
) -> tuple[CompileStats, Counting]:
    """Run the shapes through a tiny FLUX whose `classes` are compiled, training first; count what the backend got."""
    model, counting = sparse_lora(), Counting()
    shapes = ShapeRuntime(mode, 24 if mode == "static" else None, text_length=TEXT)
    lists, dynamic = lists_of(model, *classes), shapes.compile_dynamic(dynamic)
    compile_model(model, lists, backend=counting, fullgraph=True, dynamic=dynamic, cache_size_limit=24)
    telemetry = Telemetry().start()
    for shape in training:
        run(model, batch_of(shape), shapes)
    for shape in no_grad_shapes:
        no_grad(model, batch_of(shape), shapes)
    stats = telemetry.poll()
    telemetry.stop()
    return stats, counting


# The three sizes in turn and again, batch 2; then samples, one row each, of two of the sizes.
TRAINING = [Shape(tokens, TEXT, 2) for tokens in (12, 24, 16, 12, 16)]
SAMPLES = [Shape(tokens, TEXT, 1) for tokens in (16, 24)]


@pytest.mark.parametrize(
    ("mode", "dynamic"),
    [("static", "false"), ("exact_buckets", "auto"), ("dynamic", "false"), ("off", "auto")],
)
def test_observed_graphs_are_the_planned_ones(mode: str, dynamic: str) -> None:
    """The plan's arithmetic, telemetry's count and the graphs that a counting backend was handed agree.

    off with false is compiled as exact buckets are, and planned so.
    """
    seen = [Shape(24, s.text_tokens, s.batch) for s in TRAINING] if mode == "static" else TRAINING
    samples = [Shape(24, s.text_tokens, s.batch) for s in SAMPLES] if mode == "static" else SAMPLES
    planned = count_graphs(mode, dynamic, [], seen, samples)
    stats, counting = play(mode, dynamic, TRAINING, SAMPLES, "single")
    assert stats.by_class == {"single": sum(planned)}, (stats, planned)
    assert len(counting.graphs) == stats.graphs == sum(planned)
    assert stats.breaks == 0
    if mode == "exact_buckets":
        assert ShapeRuntime("off").compile_dynamic("false") == ShapeRuntime(mode).compile_dynamic(dynamic)
        assert count_graphs("off", "false", [], seen, samples) == planned


def test_sizes_that_open_without_gradients_cost_one_graph_for_all_blocks() -> None:
    """Samples before the first step: the first block's input, a linear layer's result, must look like the others'."""
    shapes = [Shape(tokens, TEXT, 1) for tokens in (24, 16, 12)]
    planned = count_graphs("off", "auto", shapes, [], [])
    assert sum(planned) == 2
    stats, _ = play("off", "auto", [], shapes, "double", "single")
    assert stats.by_class == {"double": 2, "single": 2}


@pytest.mark.parametrize("rows", [1, 2])
def test_dynamic_graph_survives_a_size_equal_to_the_width(rows: int) -> None:
    """32 image tokens at width 32: `dynamic=True` would tie or specialise the axis; marked axes stay one graph.

    Two rows have captions of two lengths, and so a mask, which is as long; one row is seen in one class of blocks.
    """
    model, counting = sparse_lora(), Counting()
    model.enable_gradient_checkpointing()
    shapes = ShapeRuntime("dynamic")
    lists = lists_of(model, "single", "double") if rows == 2 else lists_of(model, "single")
    compile_model(model, lists, backend=counting, fullgraph=True, dynamic=shapes.compile_dynamic("true"))
    for size, text in (((8, 16), 12), ((8, 12), 32), ((6, 8), 20), ((16, 16), 12)):
        run(model, make_batch([size] * rows, [text, text - 2][:rows]), shapes)
    assert len(counting.graphs) == len(lists)


def test_dynamic_graph_is_bounded_to_the_plan() -> None:
    """A row beyond the plan's longest gets a graph of its own, and is not computed by one that was not made for it."""
    model, counting = sparse_lora(), Counting()
    shapes = ShapeRuntime("dynamic", longest=40)
    lists = lists_of(model, "single")
    compile_model(model, lists, backend=counting, fullgraph=True, dynamic=shapes.compile_dynamic("auto"))
    for size, graphs in (((6, 8), 1), ((8, 12), 1), ((12, 12), 2)):
        run(model, make_batch([size], [12]), shapes)
        assert len(counting.graphs) == graphs


def test_caption_buckets_cost_one_graph_each() -> None:
    model, counting = sparse_lora(), Counting()
    shapes = ShapeRuntime("static", 24, caption_buckets=[4, 8], text_length=TEXT)
    compile_model(model, lists_of(model, "single"), backend=counting, fullgraph=True, dynamic="false")
    for real in (2, 4, 7, 3, 8):
        batch = make_batch([SIZES[1]])
        batch.text[0]["length"] = torch.tensor(real)
        run(model, batch, shapes)
    assert len(counting.graphs) == 2


def test_a_block_with_a_backend_of_its_own_is_planned_and_no_recompile() -> None:
    """Blocks of a class share their code, whose graphs of two backends are two, as planned."""
    facts, backends = family("flux"), ("eager", "eager_noexcept")

    def planned(*rows: dict[str, object]) -> tuple[Config, int]:
        cfg = Config.model_validate({"compile": {"compile_backend": backends[0], "compile_blocks": list(rows)}})
        return cfg, sum(count for _, count in graph_variants(cfg, facts, {}))

    other = {"blocks": "single:1", "backend": backends[1]}
    # a class with an eager block is one all the same; without the double blocks half is traced
    assert planned(other, {"blocks": "double:0", "compile": False})[1] == 3
    cfg, classes = planned(other, {"blocks": "double", "compile": False})
    model, shapes = sparse_lora(), ShapeRuntime("static", 24, text_length=TEXT)
    choices = [BlockChoice(row.blocks, row.backend, row.compile) for row in cfg.compile.compile_blocks or ()]
    report = compile_model(model, block_lists(model), backend=backends[0], selection=choices, dynamic="false")
    telemetry = Telemetry().start()
    telemetry.expect_plan(2 * classes, training=1, no_grad=1)
    for pair in ([0, 1], [2, 2]):
        run(model, make_batch([SIZES[i] for i in pair], [TEXT, TEXT]), shapes)
    no_grad(model, make_batch([SIZES[0]], [TEXT]), shapes)
    stats = telemetry.poll()
    assert classes == 2 and report.eager == ["double block 0", "double block 1"]
    assert (stats.graphs, stats.recompiles, stats.warm) == (4, 0, True) and telemetry.difference() is None
    assert stats.by_class == {"single": 4}
    run(model, make_batch([SIZES[0]] * 3, [TEXT] * 3), shapes)
    assert telemetry.poll().recompiles == 2
    telemetry.stop()


def test_pieces_of_a_planned_shape_are_no_recompile_and_those_of_another_are() -> None:
    """Linear layers left out: each shape's pieces come with its first forward through the first block."""
    model, shapes = sparse_lora(), ShapeRuntime("static", 24, text_length=TEXT)
    compile_model(model, lists_of(model, "single"), backend="eager", dynamic="false", disable_linear="on")
    telemetry = Telemetry().start()
    telemetry.expect_pieces(training=1, no_grad=1)
    for pair in ([0, 1], [2, 2], [1, 0]):
        run(model, make_batch([SIZES[i] for i in pair], [TEXT, TEXT]), shapes)
        no_grad(model, make_batch([SIZES[pair[0]]], [TEXT]), shapes)
    stats = telemetry.poll()
    assert stats.graphs > 4 and stats.breaks > 0 and stats.recompiles == 0
    run(model, make_batch([SIZES[0]] * 3, [TEXT] * 3), shapes)
    later = telemetry.poll()
    telemetry.stop()
    assert later.recompiles > 0
    recompiles = [event for event in telemetry.new_events() if isinstance(event, RecompileEvent)]
    assert "batch went from 2 rows to 3 rows" in recompiles[0].reason


def test_whole_model_scope_is_one_graph() -> None:
    model, counting = sparse_lora(), Counting()
    shapes = ShapeRuntime("static", 24, text_length=TEXT)
    batch = make_batch([SIZES[0], SIZES[2]])
    wanted = run(model, batch, shapes)
    compile_model(model, block_lists(model), backend=counting, scope="model", fullgraph=True, dynamic="false")
    output = run(model, batch, shapes)
    assert len(counting.graphs) == 1
    torch.testing.assert_close(output[0], wanted[0])
    torch.testing.assert_close(output[1], wanted[1])


def test_flex_masks_are_data_not_shape() -> None:
    """A new BlockMask each step: one graph a class. Without gradients, as flex has no backward on the CPU."""
    from backend.shapes.attention_routes import Flex

    model, counting = sparse_lora(), Counting()
    shapes = ShapeRuntime("static", 24, text_length=TEXT, route=Flex())
    compile_model(model, lists_of(model, "single"), backend=counting, fullgraph=True, dynamic="false")
    for size, text in ((SIZES[0], 12), (SIZES[2], 5), (SIZES[1], 9)):
        batch = make_batch([size, size], [text, TEXT])
        no_grad(model, batch, shapes)
    assert len(counting.graphs) == 1
