"""compile_model: options, selection, fallbacks with their reason, and blocks that fail alone."""

import copy
import logging

import pytest
import torch

from backend.compile import model_compiler
from backend.compile.block_selection import BlockChoice
from backend.compile.memory_shortage import is_out_of_vram
from backend.compile.model_compiler import compile_model, disable_linear_layers, set_recompile_limit, tri_state
from backend.setup import toolchain
from tests.tiny.blocks import BreakingBlock, Counting, Stack, lists

# Requires a gradient, as every block's input does in training: else the first block would have a graph of its own.
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("written", "wanted"),
    [("auto", None), ("AUTO", None), (None, None), ("true", True), ("True", True), (True, True), ("FALSE", False)],
)
def test_dynamic_has_three_states_in_any_case(written, wanted) -> None:
    assert tri_state(written) is wanted


@pytest.mark.parametrize("bad", ["yes", "", 1])
def test_anything_else_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="must be auto, true or false"):
        tri_state(bad)


def test_compiled_blocks_compute_the_same(caplog) -> None:
    stack = Stack()
    wanted = stack(X)
    counting = Counting()
    with caplog.at_level(logging.INFO):
        report = compile_model(stack, lists(stack), backend=counting, dynamic="False", cache_size_limit=16)
    torch.testing.assert_close(stack(X), wanted)
    assert len(counting.graphs) == 1, "two blocks of a class share one graph"
    assert report.state == "compiled" and report.compiled == 2 and report.verdict(1) is None
    lines = [record.message for record in caplog.records if record.name == "backend.compile.model_compiler"]
    assert lines == [
        "compile: 2 first blocks, backend counting, mode default, dynamic false, fullgraph false, recompile limit 16"
    ]


def test_guards_of_a_graph_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[object] = []
    monkeypatch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: timed.append(1) or 0.0)
    torch.compile(torch.nn.Linear(8, 8), backend="eager")(X)
    assert len(timed) == 1, "torch has another name for it now"
    stack = Stack()
    compile_model(stack, lists(stack), backend="eager")
    stack(X)
    assert len(timed) == 1


def test_no_graph_and_no_reason_is_an_error() -> None:
    stack = Stack()
    report = compile_model(stack, lists(stack), backend="eager")
    assert "no graph was made" in report.verdict(0)


def test_selection_and_backend_of_single_blocks() -> None:
    stack, general, special = Stack(count=4), Counting(), Counting()
    rows = [BlockChoice("first:1-2", compile=False), BlockChoice("first:3", backend=special)]
    report = compile_model(stack, lists(stack), backend=general, selection=rows)
    stack(X)
    assert report.eager == ["first block 1", "first block 2"] and report.compiled == 2
    assert len(general.graphs) == 1 and len(special.graphs) == 1
    assert "left eager: first block 1, first block 2" in report.line()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("double:0", "no block class 'double'; this model has first"),
        ("first:5", "there is no block 5: the blocks are 0 to 1"),
        ("first:a", "names no blocks"),
    ],
)
def test_selection_that_names_nothing_is_refused(row: str, words: str) -> None:
    stack = Stack()
    with pytest.raises(ValueError, match=words):
        compile_model(stack, lists(stack), selection=[BlockChoice(row)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "inductr"}, "compile_backend is 'inductr', which torch does not know; known: .*inductor"),
        ({"mode": "fast"}, "compile_mode is 'fast'"),
        ({"scope": "all"}, "compile_scope is 'all'"),
        ({"disable_linear": "yes"}, "disable_linear is 'yes'"),
        ({"fullgraph": True, "disable_linear": "on"}, "exclude each other"),
        ({"scope": "model", "checkpointing": True, "backend": "eager"}, "cannot be used with gradient checkpointing"),
    ],
)
def test_contradictions_are_refused(options: dict, words: str) -> None:
    stack = Stack()
    with pytest.raises(ValueError, match=words):
        compile_model(stack, lists(stack), **options)


def test_old_torch_is_skipped_visibly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1+cu121")
    stack = Stack()
    report = compile_model(stack, lists(stack))
    assert report.state == "fallback" and "torch 2.4.1+cu121 is older than 2.11" in report.reason
    assert "asked for, but the run is eager" in report.verdict(0)
    assert "forward" not in stack.firsts[0].__dict__


def test_missing_compiler_falls_back_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    stack = Stack()
    report = compile_model(stack, lists(stack))
    assert report.state == "fallback" and "no C++ compiler was found. " in report.reason
    assert compile_model(Stack(), lists(stack), backend="eager").state == "compiled", "eager needs no compiler"


def test_what_a_gpu_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "has_triton", lambda: False)
    assert "Triton is not installed" in toolchain.missing_for_inductor("cuda")
    monkeypatch.setattr(toolchain, "has_triton", lambda: True)
    monkeypatch.setattr(toolchain, "python_header", lambda: None)
    assert "Python.h" in toolchain.missing_for_inductor("cuda")
    assert "Python.h" in toolchain.missing_for_inductor("cpu")


def test_a_failing_block_is_named_and_alone_goes_eager(caplog) -> None:
    """The compiler fails on block 1 only: it is named, runs eagerly, and the others stay compiled."""
    stack = Stack(count=3)
    wanted = stack(X)

    def failing(graph, inputs):
        raise RuntimeError("no kernel for this")

    rows, counting = [BlockChoice("first:1", backend=failing)], Counting()
    report = compile_model(stack, lists(stack), backend=counting, selection=rows)
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(stack(X), wanted)
        torch.testing.assert_close(stack(X), wanted)
    assert list(report.failed) == ["first block 1"] and "no kernel for this" in report.failed["first block 1"]
    assert report.state == "partly" and report.compiled == 2 and len(counting.graphs) == 1
    warned = [r for r in caplog.records if "first block 1 failed to compile" in r.message]
    assert len(warned) == 1, "said once, not at every step"
    assert "compiled in part: first block 1 failed to compile: no kernel for this" in report.verdict(1)


def test_a_failing_backward_is_caught_in_the_forward() -> None:
    """Inductor and AOT backends compile the backward too; its failure must not kill the step in the middle."""
    from torch._dynamo.backends.common import aot_autograd

    def refuse(graph, inputs):
        raise RuntimeError("no backward kernel")

    backend = aot_autograd(fw_compiler=lambda graph, inputs: graph.forward, bw_compiler=refuse)
    backend.__name__ = "half"
    stack = Stack()
    report = compile_model(stack, lists(stack), backend=backend)
    stack(X).sum().backward()
    assert len(report.failed) == 2 and report.state == "fallback"
    assert stack.firsts[0].linear.weight.grad is not None
    assert "no backward kernel" in report.verdict(0)


def test_a_card_that_is_full_while_compiling_is_no_failed_compile() -> None:
    """Eager blocks need more memory still: what is told has to be what is missing."""

    def full(graph, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB.")

    stack = Stack()
    report = compile_model(stack, lists(stack), backend=full)
    with pytest.raises(RuntimeError, match="out of memory") as raised:
        stack(X)
    assert is_out_of_vram(raised.value) and not report.failed


def test_real_mistakes_are_not_swallowed() -> None:
    stack = Stack()
    compile_model(stack, lists(stack), backend="eager")
    with pytest.raises(RuntimeError, match="normalized_shape|shape"):
        stack(torch.randn(2, 5, 9))


def test_fullgraph_break_sends_the_block_to_eager_by_name() -> None:
    stack = Stack(BreakingBlock)
    report = compile_model(stack, lists(stack), backend="eager", fullgraph=True)
    stack(X)
    assert list(report.failed) == ["first block 0", "first block 1"]


@pytest.mark.parametrize(("setting", "wanted"), [("auto", False), ("off", False), ("on", True)])
def test_disable_linear_leaves_linear_layers_out(setting: str, wanted: bool) -> None:
    stack, counting = Stack(), Counting()
    expected = stack(X)
    report = compile_model(stack, lists(stack), backend=counting, disable_linear=setting)
    torch.testing.assert_close(stack(X), expected)
    assert report.disable_linear is wanted
    # One graph, or the parts before and after the layer: what is left still compiles.
    assert len(counting.graphs) == (2 if wanted else 1)
    held = any(node.target is torch._C._nn.linear for graph in counting.graphs for node in graph.graph.nodes)
    assert held is not wanted


def test_disable_linear_takes_quantised_and_lora_layers_whole() -> None:
    from peft import LoraConfig, inject_adapter_in_model
    from torch import nn

    class Linear8bitLt(nn.Linear):
        pass

    stack = Stack()
    stack.firsts[0].linear = Linear8bitLt(8, 8)
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["firsts.1.linear"]), stack)
    assert disable_linear_layers(stack.firsts[0]) == 1
    assert disable_linear_layers(stack.firsts[1]) == 1, "the LoRA layer as a whole, not its three parts"


@pytest.mark.parametrize(
    ("mode", "wanted"), [("reduce-overhead", "default"), ("max-autotune", "max-autotune-no-cudagraphs")]
)
def test_modes_that_record_cuda_graphs_are_compiled_as_those_without_and_said(mode: str, wanted: str) -> None:
    stack = Stack()
    report = compile_model(stack, lists(stack), mode=mode)
    assert report.mode == wanted and "recorded as CUDA graphs" in report.line()


def test_a_mode_without_inductor_is_said() -> None:
    stack = Stack()
    report = compile_model(Stack(), lists(stack), mode="max-autotune", backend="eager")
    assert "has no effect with backend eager" in report.line()


def test_scope_model_compiles_the_stack_as_one() -> None:
    stack, counting = Stack(count=3), Counting()
    wanted = stack(X)
    report = compile_model(stack, lists(stack), backend=counting, scope="model")
    torch.testing.assert_close(stack.core(X), wanted)
    assert len(counting.graphs) == 1 and report.blocks == {"model": 1}


def test_a_copy_of_a_compiled_model_uses_its_own_weights() -> None:
    stack = Stack()
    compile_model(stack, lists(stack), backend="eager")
    other = copy.deepcopy(stack)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(other(X), X) and not torch.equal(stack(X), X)


def test_compiling_twice_does_not_stack() -> None:
    stack, counting = Stack(), Counting()
    compile_model(stack, lists(stack), backend="eager")
    compile_model(stack, lists(stack), backend=counting)
    stack(X)
    assert isinstance(stack.firsts[0].forward, model_compiler.BlockForward)
    assert not isinstance(stack.firsts[0].forward.eager, model_compiler.BlockForward)
    assert len(counting.graphs) == 1


def test_limit_holds_in_other_threads() -> None:
    """From torch 2.12 on a new thread starts with the defaults: both must say the new limit (K8)."""
    import threading

    before = torch._dynamo.config.recompile_limit
    try:
        set_recompile_limit(37)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch._dynamo.config.recompile_limit))
        thread.start()
        thread.join()
        assert torch._dynamo.config.recompile_limit == 37 and seen == [37]
    finally:
        set_recompile_limit(before)
