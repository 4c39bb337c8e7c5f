"""Counts the graphs that a measurement should make, as the shape plan of a run counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.bench.variants import Variant
from backend.plan.graphs import GraphCounter, Shape

if TYPE_CHECKING:
    from backend.bench.work import Stream
    from backend.shapes.shape_runtime import ShapeRuntime


def step_shape(stream: Stream, step: int, shapes: ShapeRuntime) -> Shape:
    """What the blocks see of a step's batch: image tokens, those of control pictures included, text tokens, rows."""
    rows = stream.rows(step)
    image = shapes.image_size([stream.image_tokens(index) for index in rows])
    real = [stream.caption_tokens(index) for index in rows]
    if stream.size.real_text:
        text = shapes.room(real)
    else:
        text = shapes.text_size([shapes.text_tokens(stream.size.text_tokens, length) for length in real])
    return Shape(image, text, len(rows))


def planned_graphs(kind: Variant, classes: int, stream: Stream, shapes: ShapeRuntime, steps: int) -> int:
    """Graphs of `steps` training steps of a variant; classes: block classes that it compiles, 0 for none."""
    counter = GraphCounter(shapes.mode, kind.dynamic)
    for step in range(steps):
        counter.call(step_shape(stream, step, shapes), training=True)
    most = len(counter.graphs)
    return classes * (most if kind.limit is None else min(most, kind.limit))
