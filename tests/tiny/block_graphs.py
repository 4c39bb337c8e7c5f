"""What graph tests ask of any family of static blocks: planned graphs are the observed ones, numbers the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from backend.compile.model_compiler import compile_model
from backend.compile.telemetry import Telemetry
from backend.memory import checkpointing
from backend.plan.graphs import Shape, count_graphs
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.blocks import Counting

SIZES = [(8, 8), (8, 12), (6, 10), (12, 4), (4, 24), (10, 10), (12, 8), (6, 16)]
BUCKETS = (16, 64)


@dataclass(frozen=True)
class Subject:
    """A family's parts. few: LoRA targets, quickly traced. lengths: of 8 captions. room: text rows untrimmed.

    classes: its block classes.
    """

    model: Callable[..., Any]
    few: list[str]
    lists: Callable[[Any], Any]
    predict: Callable[..., Any]
    make_batch: Callable[..., Any]
    ours: Callable[..., Any]
    lengths: Sequence[int]
    room: int
    classes: tuple[str, ...] = ("block",)


def route_of(style: str, mode: str = "static") -> attention_routes.Route:
    """The route with a mask, or that with zero keys, as a card has it for this mode."""
    if style == "mask":
        return attention_routes.MaskedSdpa()
    route = attention_routes.sink_route("sdpa", "aten", "flash")
    if mode == "dynamic":
        route.open_sizes()
    return route


def planned_graphs_are_observed(
    subject: Subject, mode: str, dynamic: str, buckets: tuple[int, ...] | None, style: str, validated: bool = True
) -> None:
    """Over 8 sizes and 8 captions, checkpointed, training and, where `validated`, without gradients."""
    model = subject.model(subject.few)
    checkpointing.apply(model, "block")
    shapes = ShapeRuntime(mode, 32, buckets, subject.room, route_of(style, mode), longest=1000)
    kept = [next(b for b in buckets if b >= length) if buckets else subject.room for length in subject.lengths]
    tokens = [32 if mode == "static" else h * w // 4 for h, w in SIZES]
    planned = [Shape(n, t, 1) for n, t in zip(tokens, kept, strict=True)]
    wanted = count_graphs(mode, dynamic, [], planned, planned)
    assert wanted == {"static": (len({*kept}),) * 2, "dynamic": (1, 1)}[mode]
    counting, telemetry = Counting(), Telemetry().start()
    compile_model(
        model, subject.lists(model), backend=counting, fullgraph=True, dynamic=shapes.compile_dynamic(dynamic),
        cache_size_limit=64, checkpointing=True,
    )  # fmt: skip
    training, no_grad = (count * len(subject.classes) for count in (wanted[0], wanted[1] * validated))
    telemetry.expect_plan(training + no_grad, training=training, no_grad=no_grad)
    batches = [subject.make_batch([size], [length]) for size, length in zip(SIZES, subject.lengths, strict=True)]
    for batch in batches:
        subject.ours(model, batch, shapes)
    with torch.no_grad():
        for batch in batches if validated else ():
            subject.predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    stats, difference = telemetry.poll(), telemetry.difference()
    telemetry.stop()
    assert (stats.graphs, stats.recompiles, stats.breaks, stats.limit_hits) == (training + no_grad, 0, 0, 0), stats
    assert difference is None and stats.by_class.keys() == set(subject.classes)


def compiled_and_checkpointed_equal_eager(subject: Subject) -> None:
    """Through the compiler's autograd, every way of checkpointing, three rows of mixed sizes; one graph a class."""
    batch = subject.make_batch(SIZES[:3], subject.lengths[:3])
    shapes = ShapeRuntime("static", 32, BUCKETS, subject.room, route_of("sink"))
    model, recorded = subject.model(subject.few), []
    # what takes the place of a recorder is asked to run the family's core, whole
    model._monotile_recorder = lambda function, *arguments: recorded.append(function) or function(*arguments)
    wanted = subject.ours(model, batch, shapes)
    assert recorded and set(recorded) == {model.core}
    for kind in checkpointing.KINDS:
        model = subject.model(subject.few)
        checkpoint_all(model, kind)
        torch.testing.assert_close(subject.ours(model, batch, shapes), wanted, rtol=1e-6, atol=1e-7)
    telemetry = Telemetry().start()
    compile_model(model, subject.lists(model), backend="aot_eager", fullgraph=True, dynamic="false", checkpointing=True)
    for kind in (*reversed(checkpointing.KINDS), "off"):
        checkpoint_all(model, kind)
        torch.testing.assert_close(subject.ours(model, batch, shapes), wanted, rtol=1e-5, atol=1e-6)
    stats = telemetry.poll()
    telemetry.stop()
    assert (stats.graphs, stats.recompiles, stats.breaks) == (len(subject.classes), 0, 0), stats


def checkpoint_all(model: Any, kind: str) -> None:
    """Checkpoint blocks as `kind` has it, however small their inputs are."""
    offload = checkpointing.apply(model, kind)
    if offload is not None:
        offload.smallest = 0
