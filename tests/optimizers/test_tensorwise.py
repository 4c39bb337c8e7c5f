"""Steps of single tensors: the numbers of a plain step, in the backward pass and on bf16 weights rounded at random."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backend.config.sections.optimizer import OptimizerSection
from backend.memory.state_stream import is_streamed
from backend.optimizers.compiled_step import rounded
from backend.optimizers.from_settings import optimizer_of
from backend.optimizers.state import ExactState
from backend.optimizers.tensorwise import Tensorwise, rest_to

USUAL = ("adamw", "adafactor", "came", "lion", "adam", "sgd", "rmsprop")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    weights = list(model.parameters())
    return [{"params": weights[:2], "lr": 1e-2}, {"params": weights[2:], "lr": 1e-3}]


def wrapped(model: nn.Module, settings: OptimizerSection, **how: Any) -> Tensorwise:
    return Tensorwise(lambda groups: optimizer_of(settings, groups), groups_of(model), **how)


def loss_of(model: nn.Module, number: int) -> Tensor:
    made = torch.Generator().manual_seed(number)
    x, y = torch.randn(16, 8, generator=made), torch.randn(16, 4, generator=made)
    return (model(x.to(next(model.parameters()).dtype)).float() - y).square().mean()


@pytest.mark.parametrize("name", USUAL)
def test_a_fused_step_is_the_plain_one_bit_by_bit_and_lets_go_of_gradients(name: str) -> None:
    """Also after half of the steps were saved and loaded."""
    settings = OptimizerSection(optimizer=name, learning_rate=1e-2, optimizer_args={})
    plain, fused = network(), network()
    optimizer, own = optimizer_of(settings, groups_of(plain)), wrapped(fused, settings, fused=True)
    for number in range(6):
        loss_of(plain, number).backward()
        length = nn.utils.get_total_norm([p.grad for p in plain.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        loss_of(fused, number).backward()
        assert all(weight.grad is None for weight in fused.parameters())
        assert torch.allclose(own.grad_norm(), length)
        own.step()
        if number == 2:
            state = copy.deepcopy(ExactState(own).state_dict())
            fused = copy.deepcopy(fused)
            for weight in fused.parameters():
                weight._post_accumulate_grad_hooks = None
            own = wrapped(fused, settings, fused=True)
            ExactState(own).load_state_dict(state)
    assert all(a.equal(b) for a, b in zip(plain.parameters(), fused.parameters(), strict=True))


class Slowing(torch.optim.Optimizer):
    """Counts its steps in the group, as some classes do, and slows down with them."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(weight.grad * group["lr"] / group["count"])


def test_what_a_group_counts_is_counted_once_a_step() -> None:
    plain, fused = network(), network()
    optimizer, own = Slowing(groups_of(plain)), Tensorwise(Slowing, groups_of(fused), fused=True)
    for number in range(3):
        for model, each in ((plain, optimizer), (fused, own)):
            loss_of(model, number).backward()
            each.step()
            each.zero_grad()
    assert all(a.equal(b) for a, b in zip(plain.parameters(), fused.parameters(), strict=True))
    assert [group["count"] for group in own.param_groups] == [3, 3]


def test_each_gradient_is_shortened_by_itself() -> None:
    model = network()
    own = wrapped(model, OptimizerSection(optimizer="sgd", weight_decay=0.0), fused=True, longest=0.01)
    before = [weight.detach().clone() for weight in model.parameters()]
    loss_of(model, 0).backward()
    rates = [group["lr"] for group in own.param_groups for _ in group["params"]]
    for weight, was, rate in zip(model.parameters(), before, rates, strict=True):
        assert (weight - was).norm() <= 0.01 * rate * 1.01
    assert own.grad_norm() > 0.05


def test_rounding_is_right_in_the_mean_and_leaves_what_can_be_shown() -> None:
    torch.manual_seed(0)
    exact = torch.randn(1000).bfloat16().float()
    more = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 3.3e38, 1e-38]).bfloat16().float()
    exact = torch.cat([exact, more])
    assert rounded(exact).float().equal(exact.bfloat16().float())
    assert rounded(torch.tensor([float("nan")])).isnan().all()
    values = torch.tensor([1.001, -1.001, 3e-5, -7.7e4, 1e-30]).repeat(40_000, 1)
    drawn = rounded(values).double()
    below, above = drawn.min(0).values, drawn.max(0).values
    # both neighbours, and none else
    assert all(len(column.unique()) == 2 for column in drawn.T)
    share = (values[0].double() - below) / (above - below)
    assert torch.allclose((drawn == above).double().mean(0), share, atol=0.01)
    assert rounded(torch.zeros(2, 3).T).shape == (3, 2)


def test_bf16_weights_learn_what_float32_ones_do_and_plainly_rounded_ones_do_not() -> None:
    """500 steps whose length is below half of what bf16 can show at most weights."""

    def trained(kind: str) -> tuple[float, nn.Module]:
        torch.manual_seed(1)
        model = nn.Linear(16, 4)
        model = model.to(torch.float32 if kind == "float32" else torch.bfloat16)
        settings = OptimizerSection(optimizer="adamw", weight_decay=0.0)
        groups = [{"params": list(model.parameters()), "lr": 1e-4}]
        if kind == "rounded":
            optimizer: Any = Tensorwise(lambda own: optimizer_of(settings, own), groups, fused=False)
        else:
            optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        made = torch.Generator().manual_seed(5)
        x, w = torch.randn(64, 16, generator=made), torch.randn(16, 4, generator=made)
        losses = []
        for _ in range(500):
            loss = (model(x.to(next(model.parameters()).dtype)).float() - x @ w / 4).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return sum(losses[-20:]) / 20, model

    exact, own, plain = (trained(kind) for kind in ("float32", "rounded", "plain"))
    assert own[0] == pytest.approx(exact[0], rel=0.05)
    assert plain[0] > exact[0] * 1.1
    assert all(weight.dtype == torch.bfloat16 for weight in own[1].parameters())


def test_state_of_bf16_weights_is_float32_and_no_copy_stays() -> None:
    model = network().to(torch.bfloat16)
    own = wrapped(model, OptimizerSection(optimizer="adamw"), fused=True)
    for number in range(2):
        loss_of(model, number).backward()
        own.step()
    state = [value for each in own.state.values() for value in each.values() if value.numel() > 1]
    assert len(state) == 2 * len(list(model.parameters())) and {value.dtype for value in state} == {torch.float32}
    assert not any(p.numel() for group in own.param_groups for p in group["params"])


@pytest.mark.parametrize("numbers", [False, True])
def test_loaded_state_comes_to_its_weight_but_for_what_is_streamed(numbers: bool) -> None:
    """Means of a vector, which a swapped block does not take along, and the count where a fused optimizer reads it."""
    block = nn.Linear(4, 4, device="meta")
    for weight in block.parameters():
        mean, sparse = torch.zeros(weight.shape), torch.zeros(2)
        state: dict[str, Any] = {"step": torch.tensor(3.0), "exp_avg": mean, "row": sparse, "name": "plain"}
        rest_to(weight, state, numbers)
        away = {name for name, value in state.items() if isinstance(value, Tensor) and value.is_meta}
        assert away == {"row"} | ({"step"} if numbers else set()) | ({"exp_avg"} if weight.ndim == 1 else set())
        assert is_streamed(mean, weight) == ("exp_avg" not in away)
