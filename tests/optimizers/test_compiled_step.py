"""Compiled steps of single tensors: the same numbers, rounded at random, and counted apart from the model's graphs."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from backend.compile.telemetry import Telemetry
from backend.optimizers import compiled_step
from backend.optimizers.adafactor import Adafactor
from backend.optimizers.compiled_step import CompiledStep
from backend.optimizers.tensorwise import Tensorwise

# one with a graph of its own, one that shares a graph for any size, and a vector
SHAPES = ((40, 24), (16, 8), (24,))
NEAR = {"rtol": 1e-5, "atol": 1e-7}


def weights() -> list[nn.Parameter]:
    source = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=source).bfloat16()) for shape in SHAPES]


def optimizer_of(parameters: list[nn.Parameter], compiled: bool) -> Tensorwise:
    groups = [{"params": parameters, "lr": 0.02}]
    return Tensorwise(lambda own: Adafactor(own, lr=0.02, weight_decay=0.1), groups, fused=False, compiled=compiled)


def neighbours(value: Tensor) -> tuple[Tensor, Tensor]:
    """The bf16 numbers below and above `value` in length (float32), as float32."""
    bits = value.view(torch.int32) >> 16 << 16
    return bits.view(torch.float32), (bits + (1 << 16)).view(torch.float32)


def test_a_compiled_step_is_the_plain_one_rounded_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graphs are no graphs of the model: a plan that expects none raises no alarm."""
    monkeypatch.setattr(compiled_step, "_OWN_GRAPH", 512)
    clear_compilation_metrics()
    telemetry = Telemetry().start()
    telemetry.expect_plan(0)
    stored = weights()
    optimizer = optimizer_of(stored, compiled=True)
    drawn = []
    for number in range(4):
        exact = [nn.Parameter(weight.detach().float()) for weight in stored]
        reference = Adafactor([{"params": exact, "lr": 0.02}], lr=0.02, weight_decay=0.1)
        if number:
            state = copy.deepcopy(optimizer.state_dict())
            reference.load_state_dict(state)
        source = torch.Generator().manual_seed(number)
        for weight, plain in zip(stored, exact, strict=True):
            weight.grad = torch.randn(weight.shape, generator=source).bfloat16()
            plain.grad = weight.grad.float()
        optimizer.step()
        reference.step()
        for weight, plain in zip(stored, exact, strict=True):
            below, above = neighbours(plain.detach())
            near = (weight.float() - below).abs() <= 1e-6, (weight.float() - above).abs() <= 1e-6
            assert (near[0] | near[1]).float().mean() > 0.99
            drawn.append((near[1] & ~near[0]).float().mean())
        kept = optimizer.state_dict()["state"].values()
        for own, plain in zip(kept, reference.state_dict()["state"].values(), strict=True):
            torch.testing.assert_close(own, plain, **NEAR)
    assert 0.2 < torch.stack(drawn).mean() < 0.8, "rounded up about as often as down"
    rows = [row for row in get_compilation_metrics() if row.co_name == "_move_stored"]
    assert len(rows) == len(SHAPES)
    assert {row.recompile_reason for row in rows} == {None}, "each kind of tensor has code of its own"
    stats = telemetry.poll()
    assert stats.graphs == stats.recompiles == 0
    assert stats.seconds > 0
    telemetry.stop()


def broken(weight: Tensor) -> None:
    torch._dynamo.graph_break()
    weight.add_(1.0)


def test_what_can_not_be_compiled_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    step, weight = CompiledStep(broken), torch.zeros(3)
    with caplog.at_level(logging.WARNING):
        step(weight)
        step(weight)
    assert weight.tolist() == [2.0, 2.0, 2.0]
    assert caplog.text.count("the optimizer's step is not compiled") == 1
