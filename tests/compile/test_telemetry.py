"""Telemetry: recompiles with their true reason, breaks with their place, limit hits, the live indicator, the cache."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from backend.compile.forward_shape import ForwardShape, set_forward_shape
from backend.compile.model_compiler import compile_model, set_recompile_limit
from backend.compile.recompile_reasons import Signature, explain, from_guard
from backend.compile.telemetry import Telemetry
from backend.runs.events.kinds import GraphBreakEvent, GraphEvent, RecompileEvent
from tests.tiny.blocks import BreakingBlock, Counting, Stack, lists


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    before = torch._dynamo.config.recompile_limit
    yield
    set_recompile_limit(before)
    torch._dynamo.reset()


def step(stack: Stack, batch: int, image: int, text: int, gradients: bool = True) -> None:
    """What the shape runtime and predict do, in miniature: set the forward shape, run the blocks."""
    set_forward_shape(ForwardShape(batch, image, text))
    with torch.set_grad_enabled(gradients):
        stack(torch.randn(batch, image + text, 8).requires_grad_(gradients))


def compiled(backend=None, **options) -> tuple[Stack, Telemetry]:
    stack = Stack(options.pop("block", None) or Stack().firsts[0].__class__)
    compile_model(stack, lists(stack), backend=backend or Counting(), dynamic="false", **options)
    return stack, Telemetry().start()


def test_recompiles_are_told_in_words_with_the_setting_that_ends_them() -> None:
    stack, telemetry = compiled()
    telemetry.expect_plan(2, training=1, no_grad=1)
    step(stack, 2, 32, 128)
    step(stack, 2, 32, 128, gradients=False)
    assert telemetry.poll().warm and telemetry.poll().recompiles == 0
    telemetry.new_events()
    step(stack, 2, 32, 256)
    step(stack, 2, 48, 128)
    step(stack, 1, 32, 128)
    step(stack, 3, 64, 512)
    events = [event for event in telemetry.new_events() if isinstance(event, RecompileEvent)]
    assert [event.reason for event in events] == [
        "caption length went from 128 to 256 tokens",
        "image tokens went from 32 to 48",
        "batch went from 2 rows to 1 row",
        # Nearest graph first: the latest of those that differ in as little.
        "caption length went from 128 to 512 tokens and image tokens went from 32 to 64 and "
        "batch went from 1 row to 3 rows",
    ]
    assert "caption_buckets" in events[0].setting and "shape_mode = static" in events[1].setting
    assert all(event.block == "first" and event.guard for event in events)
    stats = telemetry.poll()
    assert (stats.graphs, stats.recompiles, stats.planned) == (6, 4, 2)
    assert telemetry.difference().startswith("2 graphs were planned, 6 were made; the last one because caption length")


def test_recompile_before_the_warm_up_ends_is_seen() -> None:
    """4 graphs planned, 1 of them for training: a second training graph is a recompile, though only 2 were made."""
    stack, telemetry = compiled()
    telemetry.expect_plan(4, training=1, no_grad=3)
    step(stack, 1, 16, 8)
    step(stack, 1, 24, 8)
    assert telemetry.poll().recompiles == 1 and not telemetry.poll().warm


def test_what_is_asked_for_on_the_way_joins_the_plan() -> None:
    stack, telemetry = compiled()
    telemetry.expect_plan(1, training=1, no_grad=0)
    step(stack, 2, 32, 8)
    telemetry.expect(1, no_grad=1)
    assert telemetry.poll().planned == 2 and not telemetry.poll().warm
    step(stack, 1, 32, 8, gradients=False)
    assert telemetry.poll().recompiles == 0 and telemetry.poll().warm and telemetry.difference() is None
    step(stack, 1, 64, 8, gradients=False)
    assert telemetry.poll().recompiles == 1, "one sample size was expected, not two"


def test_same_shape_twice_gives_torchs_own_reason() -> None:
    """A change that no shape explains: the guard of the very graph that should have served."""
    stack, telemetry = compiled()
    step(stack, 1, 16, 8)
    step(stack, 1, 16, 8, gradients=False)
    stack.firsts[0].norm.eps = stack.firsts[1].norm.eps = 1e-3
    step(stack, 1, 16, 8)
    stats = telemetry.poll()
    assert stats.recompiles == 1 and "eps" in stats.last_reason


def test_train_and_eval_are_told_apart() -> None:
    class Dropping(Stack().firsts[0].__class__):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.1, self.training)

    stack, telemetry = compiled(block=Dropping)
    step(stack, 1, 16, 8)
    stack.eval()
    step(stack, 1, 16, 8)
    assert telemetry.poll().last_reason == "the model went from train to eval mode"


def test_breaks_have_file_and_line() -> None:
    stack, telemetry = compiled(block=BreakingBlock)
    step(stack, 1, 16, 8)
    breaks = [event for event in telemetry.new_events() if isinstance(event, GraphBreakEvent)]
    assert telemetry.poll().breaks == len(breaks) >= 1
    assert breaks[0].line > 10 and "graph_break" in breaks[0].reason
    # Where the layer is called, and not torch's own way of calling it.
    assert {event.file.rpartition("/")[2] for event in breaks} == {"blocks.py"}


def test_limit_hits_are_counted_and_said() -> None:
    """The shapes that have a graph keep it; the class is named, and the run is no longer called compiled."""
    stack, counting, telemetry = Stack(), Counting(), Telemetry().start()
    report = compile_model(stack, lists(stack), backend=counting, dynamic="false", cache_size_limit=2)
    for image in (16, 24):
        step(stack, 1, image, 8)
    assert report.state == "compiled" and report.why is None
    for image in (32, 40, 16):
        step(stack, 1, image, 8)
    stats = telemetry.poll()
    assert stats.graphs == len(counting.graphs) == 2 and stats.limit_hits == 1 and report.limited == ["first"]
    assert report.state == "partly" and "first blocks have as many graphs as the recompile limit of 2" in report.why
    assert "compile_cache_size_limit" in report.remedy


def test_a_limit_under_fullgraph_says_which_settings_exclude_each_other() -> None:
    stack = Stack()
    report = compile_model(stack, lists(stack), backend=Counting(), dynamic="false", cache_size_limit=1, fullgraph=True)
    for image in (16, 24):
        step(stack, 1, image, 8)
    assert report.state == "fallback" and report.why.startswith("first block 0, first block 1 failed to compile: ")
    assert "compile_fullgraph" in report.why and "compile_cache_size_limit" in report.remedy


def test_live_indicator_names_the_block_and_what_it_took_last_time(tmp_path) -> None:
    reached, go = threading.Event(), threading.Event()

    def slow(graph, inputs):
        reached.set()
        assert go.wait(30)
        return graph.forward

    def run_once() -> tuple[str, float]:
        torch._dynamo.reset()
        reached.clear()
        go.clear()
        stack = Stack()
        compile_model(stack, lists(stack), backend=slow, dynamic="false")
        telemetry = Telemetry(tmp_path).start()
        assert telemetry.poll().compiling is None
        thread = threading.Thread(target=step, args=(stack, 1, 16, 8))
        thread.start()
        assert reached.wait(30)
        seen = telemetry.poll().compiling
        time.sleep(0.6)
        go.set()
        thread.join()
        stats = telemetry.poll()
        telemetry.stop()
        assert stats.compiling is None
        return seen, stats.seconds

    assert run_once()[0] == "first block 0"
    seen, seconds = run_once()
    assert seen.startswith("first block 0 (took ") and "s last time)" in seen and seconds >= 0.6


def test_counts_start_at_zero_and_stay_there_when_eager() -> None:
    stack, _ = compiled()
    step(stack, 1, 16, 8)
    telemetry = Telemetry().start()
    Stack()(torch.randn(1, 4, 8))
    stats = telemetry.poll()
    assert (stats.graphs, stats.recompiles, stats.breaks, stats.seconds, stats.cache_hits) == (0, 0, 0, 0.0, 0)
    assert telemetry.new_events() == []


def test_counting_goes_on_after_a_reset() -> None:
    stack, telemetry = compiled()
    step(stack, 1, 16, 8)
    assert telemetry.poll().graphs == 1
    torch._dynamo.reset()
    telemetry.poll()
    step(stack, 1, 16, 8)
    stats = telemetry.poll()
    assert stats.graphs == 2 and stats.seconds > 0


def test_compile_events_say_what_was_made() -> None:
    stack, telemetry = compiled()
    step(stack, 2, 16, 8)
    (event,) = telemetry.new_events()
    assert event.seconds > 0
    made = GraphEvent(
        graph=1, block="first", cached=False, image_tokens=16, text_tokens=8, batch=2, gradients=True, reason=None
    )
    assert replace(event, seconds=None) == made


def test_first_graph_has_no_cause_and_the_nearest_one_explains() -> None:
    old = Signature(ForwardShape(1, 4096, 512), True)
    far = Signature(ForwardShape(4, 1024, 128), False)
    assert explain([], old, None) is None
    new = Signature(ForwardShape(1, 4096, 256), True)
    assert explain([far, old], new, "0/0: something").reason == "caption length went from 512 to 256 tokens"
    masked = Signature(ForwardShape(1, 4096, 512, masked=True), True)
    assert explain([old], masked, None).reason == "the batch now holds padded rows"


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        (
            "0/0: tensor 'hidden_states' size mismatch at index 1. expected 44, actual 52",
            "size of hidden_states (axis 1) went from 44 to 52",
        ),
        ("0/1: tensor 'x' dtype mismatch. expected Float, actual BFloat16", "number format of x went from Float"),
        ("1/0: GLOBAL_STATE changed: grad_mode ", "gradients were turned on or off"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=1", "whether x takes a gradient changed"),
        ("0/0: tensor 'x' stride mismatch at index 0. expected 12, actual 24", "memory layout of x changed"),
        ("0/0: self._modules['to_q'].scaling['default'] == 2.0", "the LoRA's strength changed (it was 2.0)"),
        ("0/0: len(d) == 3", "len(d) == 3"),
        (None, "torch gave no reason"),
    ],
)
def test_guard_texts_in_words(guard, words: str) -> None:
    assert from_guard(guard).reason.startswith(words)


def test_poll_is_cheap() -> None:
    """Not a timing: a poll with nothing new reads no row twice and builds no event."""
    stack, telemetry = compiled()
    step(stack, 1, 16, 8)
    telemetry.poll()
    rows = telemetry._rows_done
    telemetry._read = lambda rows: pytest.fail("rows were read again")
    assert telemetry.poll().graphs == 1 and telemetry._rows_done == rows
