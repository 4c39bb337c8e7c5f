"""UNets compiled block by block: planned graphs are the observed ones over 8 sizes, and nothing changes in numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from backend.compile.model_compiler import compile_model
from backend.compile.telemetry import Telemetry
from backend.families.table import family
from backend.lora.inject import find_targets, inject
from backend.memory import checkpointing
from backend.models.family_classes import load_family
from backend.models.unet.blocks import block_lists, levels_of, running_order
from backend.plan.graphs import Shape, count_graphs
from backend.plan.make_plan import make_plan
from backend.plan.memory.parts import place_of
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.blocks import Counting
from tests.tiny.plan_items import config, scan_of
from tests.tiny.sdxl import FIRST_WIDTH, POOLED_WIDTH, SECOND_WIDTH, make_tiny_unet

predict = load_family("sdxl").predict

# of each kind of layer in a block one, and one outside of blocks: all are most of what is traced
SOME = ["attn1.to_q", "attn2.to_k", "ff.net.2", "conv1"]

# cells of the coarsest level: 8 sizes, of which some have one token count
SIZES = [(4, 6), (6, 4), (3, 8), (8, 3), (2, 12), (4, 5), (5, 4), (3, 7)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def unet(name: str, targets: list[str] | None = None, dropout: float = 0.0) -> nn.Module:
    """Tiny UNet in train mode, with a LoRA that does something: of `targets`, or of all layers, convolutions too."""
    model, facts = make_tiny_unet(name).train(), family(name)
    layers = find_targets(model, targets or [*facts.default_targets, *facts.conv_targets])
    lora = inject(model, layers, rank=2, alpha=2.0, dropout=dropout, seed=1)
    source = torch.Generator().manual_seed(2)
    for path in lora.layers:
        b = lora.pair(path)[1]
        b.data.copy_(torch.randn(b.shape, generator=source) * 0.1)
    return model


def batch(name: str, size: tuple[int, int], rows: int = 1) -> tuple[list[Tensor], Tensor, list[dict[str, Tensor]]]:
    cell = 4 if name == "sdxl" else 8
    source = torch.Generator().manual_seed(size[0] * 100 + size[1])
    noisy = [torch.randn(4, size[0] * cell, size[1] * cell, generator=source) for _ in range(rows)]
    width = FIRST_WIDTH + (SECOND_WIDTH if name == "sdxl" else 0)
    text = [
        {
            "prompt_embeds": torch.randn(77, width, generator=source),
            "pooled": torch.randn(POOLED_WIDTH, generator=source),
            "time_ids": torch.tensor([600.0, 500, 0, 7, 640, 512]),
        }
        for _ in range(rows)
    ]
    return noisy, torch.tensor([400.0] * rows), text


def loss(model: nn.Module, name: str, size: tuple[int, int], shapes: ShapeRuntime) -> Tensor:
    torch.manual_seed(5)
    return predict(model, *batch(name, size), None, shapes)[0].square().mean()


def step(model: nn.Module, name: str, size: tuple[int, int], shapes: ShapeRuntime) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad(set_to_none=True)
    outcome = loss(model, name, size, shapes)
    outcome.backward()
    return outcome.detach(), [p.grad.clone() for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_classes_are_those_of_the_facts(name: str) -> None:
    model, facts = make_tiny_unet(name), family(name)
    lists = levels_of(model)
    assert list(lists) == [each.name for each in facts.block_classes]
    paths = {id(module): path for path, module in model.named_modules()}
    for kind, blocks in lists.items():
        for block in blocks:
            place = place_of(f"{paths[id(block)]}.attn1.to_q.weight", facts)
            assert place is not None and place[0] == kind and place[3] == "attn1.to_q.weight"
            assert type(block).__name__ == facts.block_classes[0].class_name
        assert len({block.attn1.to_q.in_features for block in blocks}) == 1
    count = sum(type(module).__name__ == "BasicTransformerBlock" for module in model.modules())
    assert sum(map(len, lists.values())) == count


@pytest.mark.parametrize(
    ("name", "mode", "dynamic"),
    [
        # the count is one for each class of blocks, and here are three classes; what a size does is of the mode
        ("sd15", "exact_buckets", "false"),
        ("sdxl", "off", "auto"),
        ("sdxl", "dynamic", "auto"),
    ],
)
def test_graphs_equal_the_plan_over_eight_sizes(name: str, mode: str, dynamic: str) -> None:
    model, facts = unet(name, ["attn2.to_k"]), family(name)
    checkpointing.apply(model, "block")
    sizes = SIZES[:5] if mode == "exact_buckets" else SIZES
    eager = step(model, name, sizes[0], ShapeRuntime(mode, longest=1000))
    shapes = ShapeRuntime(mode, longest=1000)
    planned = [Shape(h * w, 77, 1) for h, w in sizes]
    training, no_grad = count_graphs(mode, dynamic, [], planned, planned)
    classes = len(facts.block_classes)
    assert (training, no_grad) == {"exact_buckets": (1, 1), "dynamic": (1, 1)}.get(mode, (training, no_grad))
    counting = Counting()
    telemetry = Telemetry().start()
    compile_model(
        model, block_lists(model), backend=counting, fullgraph=True, dynamic=dynamic, cache_size_limit=64,
        checkpointing=True,
    )  # fmt: skip
    telemetry.expect_plan(classes * (training + no_grad), training=training, no_grad=no_grad)
    compiled = [step(model, name, size, shapes) for size in sizes]
    torch.testing.assert_close(compiled[0], eager, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        for size in sizes:
            loss(model, name, size, shapes)
    stats = telemetry.poll()
    difference = telemetry.difference()
    telemetry.stop()
    wanted = classes * (training + no_grad)
    assert (stats.graphs, stats.recompiles, stats.breaks, stats.limit_hits) == (wanted, 0, 0, 0), stats
    assert difference is None and stats.by_class.keys() == {each.name for each in facts.block_classes}


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_compiled_and_checkpointed_equal_eager(name: str) -> None:
    """Loss and gradients, dropout on, whatever is trained; one graph a class though some blocks' inputs are frozen.

    How blocks are checkpointed is told to the model, and their order and widths are the model's: SDXL goes through all
    kinds and the compiler's own autograd, and SD 1.5, whose blocks lie in three levels, through two, uncompiled: its
    compiled loss is compared in the test above.
    """
    model = unet(name, SOME if name == "sdxl" else ["attn2.to_k"], 0.2)
    wanted = step(model, name, (4, 6), ShapeRuntime("off"))
    for kind in checkpointing.KINDS if name == "sdxl" else ("block", "selective"):
        offload = checkpointing.apply(model, kind)
        if offload is not None:
            offload.smallest = 0
        eager = step(model, name, (4, 6), ShapeRuntime("off"))
        torch.testing.assert_close(eager, wanted, rtol=1e-6, atol=1e-7)
    if name == "sd15":
        return
    checkpointing.apply(model, "block")
    telemetry = Telemetry().start()
    compile_model(model, block_lists(model), backend="aot_eager", fullgraph=True, dynamic="false", checkpointing=True)
    outcome = step(model, name, (4, 6), ShapeRuntime("off"))
    stats = telemetry.poll()
    telemetry.stop()
    torch.testing.assert_close(outcome, wanted, rtol=1e-5, atol=1e-6)
    assert (stats.graphs, stats.breaks) == (len(family(name).block_classes), 0)


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_the_plan_of_a_unet_has_one_or_two_graphs_for_all_sizes(name: str) -> None:
    facts = family(name)
    pictures = scan_of([(1024, 1024), (1152, 896), (896, 1152), (1344, 768), (1536, 640), (1000, 700), (832, 1216)] * 4)
    values = {"model": {"family": name, "text_length": 200}, "compile": {"shape_mode": "exact_buckets"}}
    plan = make_plan(config(**values, dataset={"batch_size": 2}), pictures, facts.default_geometry, facts)
    assert plan.graphs.training_graphs in (1, 2) and plan.graphs.classes == len(facts.block_classes)
    assert plan.text_length == 77 and {shape.text_tokens for shape in plan.graphs.training} == {77}
    for rows in plan.batches(0):
        assert len({plan.fits[row].bucket for row in rows}) == 1, "a batch has one size"
    unable = config(model={"family": name}, compile={"shape_mode": "static"})
    static = make_plan(unable, pictures, facts.default_geometry, facts)
    assert static.problems and "convolutions" in static.problems[0].text
    fixed = config(model={"family": name}, compile={"compile": True, "compile_dynamic": "false"})
    compiled = make_plan(fixed, pictures, facts.default_geometry, facts)
    assert compiled.recommended == "exact_buckets" and "convolutions" in compiled.reason


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_running_order_is_the_order_in_which_blocks_run(name: str) -> None:
    model, called = unet(name, ["attn2.to_k"]), []
    (blocks,) = running_order(model).values()
    for number, block in enumerate(blocks):
        block.register_forward_hook(lambda *_, number=number: called.append(number))
    loss(model, name, (2, 2), ShapeRuntime("off"))
    assert called == list(range(len(blocks))) and len(called) == sum(map(len, levels_of(model).values()))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["exact_buckets", "dynamic"])
def test_on_the_card_inductor_gives_the_eager_loss_in_the_planned_graphs(mode: str) -> None:
    losses_of_graph = []
    for compiled in (False, True):
        model = unet("sdxl").cuda()
        checkpointing.apply(model, "block")
        telemetry = Telemetry().start()
        if compiled:
            dynamic = "auto" if mode == "dynamic" else "false"
            compile_model(model, block_lists(model), fullgraph=True, dynamic=dynamic, checkpointing=True)
        shapes, losses = ShapeRuntime(mode, longest=1000), []
        for size in SIZES[:5]:
            noisy, level, text = batch("sdxl", size)
            rows = [{key: value.cuda() for key, value in row.items()} for row in text]
            out = predict(model, [x.cuda() for x in noisy], level.cuda(), rows, None, shapes)[0].square().mean()
            out.backward()
            losses.append(out.item())
        losses_of_graph.append(losses)
        stats = telemetry.poll()
        telemetry.stop()
        assert (stats.graphs, stats.breaks, stats.recompiles) == (2 * compiled, 0, 0)
    assert losses_of_graph[1] == pytest.approx(losses_of_graph[0], rel=1e-4)
