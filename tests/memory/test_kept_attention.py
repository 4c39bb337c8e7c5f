"""Checkpointing kind attention: each block's attention runs once a step, and nothing else is kept but its input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._functorch.config

from backend.compile.model_compiler import compile_model
from backend.memory import checkpointing, kept_attention
from backend.shapes import flash_kernels
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.block_graphs import Subject, route_of
from tests.tiny.graph_subjects import SUBJECTS

# Of a few tokens the partitioner would keep all there is, since it is less than the weights.
SIZE, TOKENS = (32, 32), 300


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    checkpointing.set_activation_budget(None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the real kernel is of tokens among themselves."""
    seen, forward = [], flash_kernels.AtenFlash.forward

    def counted(self: flash_kernels.AtenFlash, q: torch.Tensor, k: torch.Tensor, *rest: object) -> object:
        seen.append(q.shape == k.shape)
        return forward(self, q, k, *rest)

    monkeypatch.setattr(flash_kernels.AtenFlash, "forward", counted)
    return seen


def step(subject: Subject, kind: str, compiled: bool) -> tuple[tuple, int]:
    """Outputs and gradients of a padded row, and bytes kept for the backward pass."""
    torch._dynamo.reset()
    model, held = subject.model(subject.few), []
    checkpointing.apply(model, kind, random=False)
    checkpointing.set_activation_budget(None, compiled, kind == "attention")
    if compiled:
        compile_model(
            model, subject.lists(model), backend="aot_eager_decomp_partition", fullgraph=True, dynamic="false",
            recompute=True,
        )  # fmt: skip
    shapes = ShapeRuntime("static", TOKENS, None, subject.room, route_of("sink"))
    batch = subject.make_batch([SIZE], subject.lengths[:1])

    def count(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        return subject.ours(model, batch, shapes), sum(held)


def test_attention_runs_once_and_its_results_and_inputs_alone_are_kept(calls: list[bool]) -> None:
    """Eager and compiled, of which the first kind computes attention twice."""
    counts, runs, kept = {}, {}, {}
    for kind, compiled in (("auto", False), ("attention", False), ("auto", True), ("attention", True)):
        calls.clear()
        runs[kind, compiled], kept[kind, compiled] = step(SUBJECTS["wan"], kind, compiled)
        counts[kind, compiled] = calls.count(True)
    wanted = runs.pop(("auto", False))
    for row in runs.values():
        torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-6)
    # two blocks
    assert counts == {(kind, how): 4 if kind == "auto" else 2 for kind, how in counts}
    # of each: tokens of 2 heads of 16, and a number of their softmax each
    attention = 2 * TOKENS * 2 * (16 + 1) * 4
    assert kept["attention", True] - kept["auto", True] == pytest.approx(attention, rel=0.01)


def test_what_counts_as_attention() -> None:
    aten = torch.ops.aten
    kept = (
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._flash_attention_forward.default,
        torch.ops.higher_order.flex_attention,
    )
    others = (
        aten._scaled_dot_product_flash_attention_backward.default,
        aten._flash_attention_backward.default,
        aten.mm.default,
        torch.ops.higher_order.flex_attention_backward,
    )
    assert all(map(kept_attention.is_attention, kept)) and not any(map(kept_attention.is_attention, others))
