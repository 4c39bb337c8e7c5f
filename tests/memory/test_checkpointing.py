"""Every kind of checkpointing gives the loss and gradients of none, eager and compiled, with the graphs of none."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._functorch.config
from torch import Tensor, nn

from backend.compile.block_selection import BlockChoice
from backend.compile.model_compiler import compile_model, set_recompile_limit
from backend.compile.telemetry import Telemetry
from backend.config.checkpointing import within_graphs
from backend.families.flux.facts import FACTS
from backend.lora.inject import find_targets, inject
from backend.memory import checkpointing
from backend.memory.activation_offload import ActivationOffload
from backend.models.family_classes import load_family
from backend.plan.graphs import Shape, count_graphs
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.shapes import Batch, make_batch
from tests.tiny.training import config

block_lists = load_family("flux").block_lists
predict = load_family("flux").predict

TEXT = 12
SIZES = [(6, 8), (8, 12)]
KINDS = ("off", *checkpointing.KINDS)
# The graphs are the same in number, and traced in a fraction of the time.
FEW = ("attn.to_q", "proj_mlp")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    limit = torch._dynamo.config.recompile_limit
    yield
    set_recompile_limit(limit)
    torch._dynamo.reset()
    checkpointing.set_activation_budget(None)


def denoiser(
    kind: str, double: int = 2, single: int = 3, targets: tuple[str, ...] = FACTS.default_targets, dropout: float = 0.3
) -> tuple[nn.Module, ActivationOffload | None]:
    """Tiny FLUX with LoRA dropout, as training has it."""
    model = make_tiny_denoiser(double, single)
    lora = inject(model, find_targets(model, targets), rank=2, alpha=4, dropout=dropout, seed=0)
    torch.manual_seed(1)
    for path in lora.layers:
        nn.init.normal_(lora.pair(path)[1], std=0.1)
    model.train()
    offload = checkpointing.apply(model, kind)
    if offload is not None:
        offload.smallest = 0
    return model, offload


def losses(model: nn.Module, batch: Batch, shapes: ShapeRuntime, seed: int = 5) -> Tensor:
    torch.manual_seed(seed)
    out = predict(model, batch.noisy, batch.sigma, batch.text, 3.5, shapes)
    return torch.stack([x.square().mean() for x in out]).sum()


def step(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    loss = losses(model, batch, shapes)
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


def assert_same(actual: tuple, wanted: tuple, tolerance: float) -> None:
    torch.testing.assert_close(actual[0], wanted[0], rtol=tolerance, atol=tolerance)
    assert actual[1].keys() == wanted[1].keys()
    for name, grad in wanted[1].items():
        torch.testing.assert_close(actual[1][name], grad, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("kind", checkpointing.KINDS)
def test_eager_is_bit_by_bit_the_run_without(kind: str) -> None:
    """Dropout on, two steps of different sizes, validation between: loss and gradients equal, the same random draws."""
    plain, (model, _) = denoiser("off")[0], denoiser(kind)
    shapes = ShapeRuntime("static", 24, text_length=TEXT)
    for sizes in (SIZES, SIZES[::-1]):
        batch = make_batch(sizes, [TEXT, TEXT - 3])
        wanted = step(plain, batch, shapes)
        after = torch.get_rng_state()
        assert_same(step(model, batch, shapes), wanted, 0)
        assert torch.equal(torch.get_rng_state(), after)
        with torch.no_grad():
            assert torch.equal(losses(model, batch, shapes), losses(plain, batch, shapes))


def test_compiled_every_kind_has_the_losses_and_the_very_graphs_of_none() -> None:
    """Static, fullgraph, validation between steps: 2 graphs of a class, which are all that the other kinds call.

    One class of blocks, since the hook is outside of the graph; test_compile_health.py and test_swap.py have both.
    """
    figures, graphs = {}, []
    training, no_grad = count_graphs("static", "false", [], [Shape(24, TEXT, 2)], [Shape(24, TEXT, 2)])
    shapes = ShapeRuntime("static", 24, text_length=TEXT)
    for kind in KINDS:
        model, _ = denoiser(kind, double=0, single=2, targets=FEW)
        report = compile_model(model, block_lists(model), backend="aot_eager", fullgraph=True, dynamic="false")
        telemetry = Telemetry().start()
        telemetry.expect_plan(training + no_grad, training=training, no_grad=no_grad)
        for sizes in (SIZES, SIZES[::-1]):
            batch = make_batch(sizes, [TEXT, TEXT])
            figures[kind, sizes[0]] = step(model, batch, shapes)
            with torch.no_grad():
                losses(model, batch, shapes)
        stats = telemetry.poll()
        telemetry.stop()
        assert (stats.recompiles, stats.breaks, stats.limit_hits) == (0, 0, 0), stats
        assert report.failed == {}
        assert kind != "off" or telemetry.difference() is None
        graphs.append(stats.graphs)
    for (kind, first), figure in figures.items():
        assert_same(figure, figures["off", first], 1e-6 if kind != "off" else 0)
    assert graphs == [2] + [0] * len(checkpointing.KINDS)


def test_blocks_recompute_within_their_graphs() -> None:
    """The compiler's partitioner recomputes more, in as many graphs and one call of a block; least is kept at 0."""
    batch, shapes = make_batch(SIZES, [TEXT, TEXT]), ShapeRuntime("static", 24, text_length=TEXT)
    figures, kept, calls = [], [], []
    for kind, budget in (("off", None), ("off", 0.4), ("auto", 0.0)):
        torch._dynamo.reset()
        model, _ = denoiser(kind, double=0, single=1, targets=FEW, dropout=0.0)
        checkpointing.set_activation_budget(budget)
        telemetry = Telemetry().start()
        report = compile_model(
            model, block_lists(model), backend="aot_eager_decomp_partition", fullgraph=True, dynamic="false",
            recompute=kind == "auto",
        )  # fmt: skip
        assert ("checkpointing within the graphs" in report.line()) == (kind == "auto")
        calls.append(0)
        model.single_transformer_blocks[0].register_forward_pre_hook(lambda *_: calls.append(calls.pop() + 1))
        sizes: list[int] = []

        def count(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            figures.append(step(model, batch, shapes))
        kept.append(sum(sizes))
        stats = telemetry.poll()
        telemetry.stop()
        assert (stats.graphs, stats.breaks) == (1, 0)
        assert_same(figures[-1], figures[0], 1e-6)
    assert kept[2] < kept[1] < kept[0], kept
    assert calls == [1, 1, 1]


def test_a_block_that_fails_to_compile_is_recomputed_from_outside() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler")

    torch._dynamo.register_backend(broken, name="broken")
    batch, shapes = make_batch(SIZES, [TEXT, TEXT]), ShapeRuntime("static", 24, text_length=TEXT)
    model, _ = denoiser("auto", double=1, single=1, targets=FEW)
    choice = [BlockChoice("single:0", "aot_eager", True)]
    report = compile_model(
        model, block_lists(model), backend="aot_eager_decomp_partition", selection=choice, recompute=True
    )
    assert not model.single_transformer_blocks[0].forward.recomputes
    forward = model.transformer_blocks[0].forward
    assert forward.recomputes
    forward.compiled = torch.compile(forward.eager, backend="broken")
    step(model, batch, shapes)
    assert report.failed and not forward.recomputes
    calls = []
    model.transformer_blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    step(model, batch, shapes)
    assert len(calls) == 2


def test_blocks_of_a_class_at_its_limit_are_recomputed_from_outside() -> None:
    """A shape without a graph runs eagerly: its insides must not be kept for it."""
    shapes = ShapeRuntime("off", text_length=TEXT)
    model, _ = denoiser("auto", double=0, single=1, targets=FEW, dropout=0.0)
    report = compile_model(
        model, block_lists(model), backend="aot_eager_decomp_partition", dynamic="false", cache_size_limit=1,
        recompute=True,
    )  # fmt: skip
    block, calls = model.single_transformer_blocks[0], []
    block.register_forward_pre_hook(lambda *_: calls.append(1))
    first, other = make_batch(SIZES[:1], [TEXT]), make_batch(SIZES[1:], [TEXT])
    step(model, first, shapes)
    assert len(calls) == 1 and block.forward.recomputes
    step(model, other, shapes)
    assert report.limited == ["single"] and not block.forward.recomputes
    calls.clear()
    figures = step(model, other, shapes)
    assert len(calls) == 2
    plain, _ = denoiser("off", double=0, single=1, targets=FEW, dropout=0.0)
    assert_same(figures, step(plain, other, shapes), 1e-6)


@pytest.mark.parametrize(
    ("changed", "within"),
    [
        ({}, True),
        ({"training": {"gradient_checkpointing": False}}, False),
        ({"memory": {"checkpointing_kind": "block"}}, False),
        ({"compile": {"compile": False}}, False),
        ({"compile": {"compile_backend": "aot_eager"}}, False),
        ({"network": {"network_dropout": 0.1}}, False),
        ({"network": {"rank_dropout": 0.1}}, False),
        ({"network": {"module_dropout": 0.1}}, False),
        ({"memory": {"blocks_to_swap": 2}}, True),
        ({"memory": {"blocks_to_swap": 2}, "compile": {"disable_linear": "off"}}, True),
        ({"compile": {"disable_linear": "on"}}, False),
    ],
)
def test_when_graphs_recompute(
    changed: dict, within: bool, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    base = {"training": {"gradient_checkpointing": True}, "compile": {"compile": True, "compile_backend": "inductor"}}
    merged = {name: base.get(name, {}) | changed.get(name, {}) for name in base.keys() | changed.keys()}
    assert within_graphs(config(tiny_flux, image_folder, tmp_path, **merged)) is within


class Toy(nn.Module):
    """Blocks in the way that a family's core calls them; remembers what it handed over, weakly."""

    def __init__(self, hook: Callable, blocks: int = 6, device: str = "cpu") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(blocks)).to(device)
        self.hook, self.inputs = hook, []

    def forward(self, x: Tensor, shared: Tensor) -> Tensor:
        for block in self.blocks:
            self.inputs.append(weakref.ref(x))
            x = self.hook(self.run, block, (x,), shared)
        return x

    @staticmethod
    def run(block: nn.Module, streams: tuple[Tensor, ...], shared: Tensor) -> Tensor:
        return torch.tanh(block(streams[0]) + shared)


def test_inputs_leave_the_device_and_come_back_from_the_host() -> None:
    """After the forward only the last inputs are alive; what the backward uses is what lies on the host."""
    offload = ActivationOffload(smallest=0)
    toy, plain = Toy(offload), Toy(checkpointing.Recompute())
    shared = torch.randn(1, 5, 16)

    def start() -> Tensor:
        return torch.ones(2, 5, 16).requires_grad_()

    first = start()
    loss = toy(first, shared).sum()
    alive = [ref() is not None for ref in toy.inputs]
    # the first is held here; the last two never left
    assert alive == [True, False, False, False, True, True]
    plain(start(), shared).sum().backward()
    loss.backward()
    for one, other in zip(toy.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    used = offload.hosts.bytes
    assert used == 6 * 2 * 5 * 16 * 4

    loss = toy(start(), shared).sum()
    assert offload.hosts.bytes == used, "host memory is used again"
    assert offload.latest is not None
    call = offload.latest().before.before.before
    call.kept[0].host.fill_(float("nan"))
    loss.backward()
    assert torch.isnan(toy.blocks[2].weight.grad).all() and torch.isfinite(toy.blocks[3].weight.grad).all()


def test_an_abandoned_forward_gives_its_host_memory_back() -> None:
    offload = ActivationOffload(smallest=0)
    toy = Toy(offload)
    for _ in range(3):
        toy(torch.ones(2, 5, 16, requires_grad=True), torch.zeros(1, 5, 16))
    assert offload.hosts.bytes == 6 * 2 * 5 * 16 * 4


def test_only_large_inputs_with_a_gradient_go_to_the_host() -> None:
    offload = ActivationOffload(smallest=1000)
    tokens = torch.zeros(1, 8, 64, requires_grad=True)
    assert offload.wants(tokens) and offload.wants(tokens.transpose(1, 2))
    for small in (tokens.detach(), tokens[:, :2], tokens.flatten(), tokens.expand(4, 8, 64)):
        assert not offload.wants(small)


def test_selective_keeps_every_second_block() -> None:
    calls: list[int] = []
    choice = checkpointing.Selective()
    toy = Toy(choice)
    for block in toy.blocks:
        block.register_forward_hook(lambda module, *_: calls.append(list(toy.blocks).index(module)))
    toy(torch.ones(1, 2, 16, requires_grad=True), torch.zeros(1, 2, 16)).sum().backward()
    assert calls == [0, 1, 2, 3, 4, 5, 4, 2, 0]


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="known: off, auto, block, attention, offload, selective"):
        checkpointing.apply(nn.Linear(1, 1), "unsloth")


@pytest.mark.gpu
def test_offload_on_the_card_is_exact_and_smaller() -> None:
    """Real streams: equal gradients over several steps, and a peak below that of plain checkpointing."""
    peaks, grads = [], []
    for hook in (checkpointing.Recompute(), ActivationOffload()):
        toy = Toy(hook, blocks=24, device="cuda")
        shared = torch.zeros(1, 1, 16, device="cuda")
        for _ in range(3):
            toy.zero_grad(set_to_none=True)
            x = torch.full((1, 1 << 19, 16), 0.1, device="cuda", requires_grad=True)
            torch.cuda.reset_peak_memory_stats()
            toy(x, shared).square().mean().backward()
            del x
        peaks.append(torch.cuda.max_memory_allocated())
        grads.append([p.grad for p in toy.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
    assert peaks[1] < 0.6 * peaks[0], peaks


@pytest.mark.gpu
@pytest.mark.parametrize("kind", checkpointing.KINDS)
def test_compiled_flux_on_the_card_equals_the_run_without(kind: str) -> None:
    """Inductor, dropout on where it may be: the same loss and gradients over three steps, two graphs in all."""
    within = ("auto", "attention")
    figures, dropout = [], 0.0 if kind in within else 0.3
    for each in ("off", kind):
        torch._dynamo.reset()
        model, _ = denoiser(each, dropout=dropout)
        model.cuda()
        checkpointing.set_activation_budget(None, each in within, each == "attention")
        shapes = ShapeRuntime("static", 24, text_length=TEXT)
        telemetry = Telemetry().start()
        compile_model(model, block_lists(model), fullgraph=True, dynamic="false", recompute=each in within)
        batches = [make_batch(sizes, [TEXT, TEXT]).to("cuda", torch.float32) for sizes in (SIZES, SIZES[::-1], SIZES)]
        figures.append([step(model, batch, shapes) for batch in batches])
        stats = telemetry.poll()
        telemetry.stop()
        assert (stats.graphs, stats.breaks) == (2, 0)
    for one, other in zip(*figures, strict=True):
        assert_same(other, one, 1e-5)
