"""Adafactor: torch's own results and states, and no value that is read back from the device."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from backend.optimizers.adafactor import Adafactor
from backend.optimizers.build import make_optimizer
from backend.optimizers.tensorwise import Tensorwise

SHAPES = ((24, 40), (40,), (8, 4, 3, 3), (1, 7), ())
# two kernels of one formula: the last bits of float32
NEAR = {"rtol": 1e-5, "atol": 1e-7}


def weights(dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[nn.Parameter]:
    source = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=source).to(device, dtype)) for shape in SHAPES]


def give_gradients(parameters: list[nn.Parameter], number: int) -> None:
    source = torch.Generator().manual_seed(number)
    # the fourth is so large that its step is shortened, one of another step is zero
    for place, weight in enumerate(parameters):
        size = 100.0 if number == 4 else float(number != 6 or place != 0)
        weight.grad = (size * torch.randn(weight.shape, generator=source)).to(weight.device, weight.dtype)


@pytest.mark.parametrize(
    "more", [{}, {"d": 2.0, "weight_decay": 0.1, "eps": (1e-5, 0.1)}, {"maximize": True, "foreach": True}]
)
def test_steps_are_those_of_torch(more: dict[str, Any]) -> None:
    theirs, ours = weights(), weights()
    reference = torch.optim.Adafactor(theirs, lr=0.02, **more)
    optimizer = Adafactor(ours, lr=0.02, **more)
    for number in range(12):
        for parameters, each in ((theirs, reference), (ours, optimizer)):
            give_gradients(parameters, number)
            each.step()
        if number == 7:  # a state that torch's wrote is continued from
            kept = io.BytesIO()
            torch.save(reference.state_dict(), kept)
            kept.seek(0)
            optimizer = Adafactor(ours, lr=0.02, **more)
            optimizer.load_state_dict(torch.load(kept, weights_only=True))
        for one, other in zip(theirs, ours, strict=True):
            torch.testing.assert_close(other, one, **NEAR)
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(optimizer.state[other], reference.state[one], **NEAR)


def test_nothing_is_read_back_from_the_device() -> None:
    """Also where a 16-bit weight is moved as soon as its gradient is there; the meta device has no value to read."""
    parameters = weights(torch.bfloat16)
    usual = {"learning_rate": 1e-3, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
    made = make_optimizer("adafactor", weights(device="meta"), **usual)
    assert type(made) is Adafactor
    give_gradients(made.param_groups[0]["params"], 0)
    made.step()
    with pytest.raises(RuntimeError, match="meta"):
        torch.optim.Adafactor.step(made)
    optimizer = Tensorwise(
        lambda groups: make_optimizer("adafactor", groups, **usual), [{"params": parameters}], fused=True, longest=1.0
    )
    for _ in range(2):
        loss = sum(weight.float().square().sum() for weight in parameters)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            loss.backward()
            optimizer.step()
    read = {event.key: event.count for event in seen.key_averages()}.get("aten::_local_scalar_dense", 0)
    assert read == len(SHAPES), "each tensor's count of steps, which is on the CPU"
