"""Optimizers and schedules by name, and what is said about wrong ones."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
from torch import nn

from backend.base.errors import Refused
from backend.config.sections import optimizer as declared
from backend.optimizers import build, schedules

USUAL = {"learning_rate": 1e-3, "weight_decay": 0.01, "betas": (0.9, 0.99), "eps": 1e-7}


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 4))]


def test_every_name_of_the_settings_makes_an_optimizer_that_steps() -> None:
    assert set(build.OPTIMIZERS) == set(declared.OPTIMIZERS)
    for name in declared.OPTIMIZERS:
        # some begin with very small steps
        params = [nn.Parameter(torch.zeros(3, 4))]
        made = build.make_optimizer(name, params, **USUAL)
        for _ in range(8):
            params[0].grad = torch.ones(3, 4)
            made.step()
        assert (params[0] < 0).all(), name
        assert made.param_groups[0]["lr"] == 1e-3


def test_settings_reach_the_optimizer_and_arguments_win() -> None:
    group = build.make_optimizer("adamw", parameters(), **USUAL).param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.99), 1e-7, 0.01)
    arguments = {"amsgrad": True, "betas": [0.5, 0.6]}
    group = build.make_optimizer(
        "torch.optim.NAdam", parameters(), **USUAL, arguments={"betas": [0.5, 0.6]}
    ).param_groups[0]
    assert group["betas"] == (0.5, 0.6)
    assert build.make_optimizer("adamw", parameters(), **USUAL, arguments=arguments).param_groups[0]["amsgrad"] is True


def test_a_choice_without_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build.make_optimizer("sgd", parameters(), **USUAL)
    assert "betas" in caplog.text and "SGD" in caplog.text


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("adamx", {}, "adamw"),
        ("no_such_package.Lion", {}, "pip install no_such_package"),
        ("torch.optim.AdamX", {}, "AdamX"),
        ("torch.nn.Linear", {}, "no Optimizer"),
        ("adamw", {"amsgard": True}, "amsgrad"),
        ("prodigy", {"use_bias_correction": True}, "bias_correction"),
        ("adamw", {"betas": [2.0, 3.0]}, "beta"),
        ("prodigy", {"weight_decouple": [False]}, "true or false"),
        ("prodigy", {"d_coef": "large"}, "a number"),
        ("sgd", {"nesterov": "yes"}, "true or false"),
    ],
)
def test_wrong_optimizers_are_named(name: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(Refused) as refused:
        build.make_optimizer(name, parameters(), **USUAL, arguments=arguments)
    assert words in f"{refused.value} {refused.value.remedy}" and refused.value.remedy


def test_a_missing_package_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(Refused) as refused:
        build.make_optimizer("prodigy", parameters(), **USUAL)
    assert "pip install pytorch-optimizer" in refused.value.remedy and "adamw" in refused.value.remedy


def rates(name: str, total: int = 40, **options: float) -> list[float]:
    optimizer = torch.optim.SGD(parameters(), lr=2.0)
    scheduler = schedules.make_scheduler(name, optimizer, total_steps=total, **options)
    rates_seen = []
    for _ in range(total):
        rates_seen.append(optimizer.param_groups[0]["lr"] / 2)
        optimizer.step()
        scheduler.step()
    return rates_seen


def test_schedules_are_those_of_diffusers() -> None:
    from diffusers.optimization import get_scheduler

    for name, options in (
        ("linear", {}),
        ("cosine", {}),
        ("cosine_with_restarts", {"num_cycles": 3}),
        ("polynomial", {"power": 1.0}),
    ):
        theirs = torch.optim.SGD(parameters(), lr=2.0)
        schedule = get_scheduler(name, theirs, num_warmup_steps=4, num_training_steps=40, **options)
        wanted = []
        for _ in range(40):
            wanted.append(theirs.param_groups[0]["lr"] / 2)
            theirs.step()
            schedule.step()
        ours = rates(name, warmup=0.1, cycles=options.get("num_cycles", 1))
        assert ours == pytest.approx(wanted, abs=1e-6), name


def test_warmup_floor_and_rex() -> None:
    assert schedules.warmup_steps(0.05, 1000) == 50
    assert schedules.warmup_steps(7, 1000) == 7
    assert schedules.warmup_steps(0.0, 1000) == 0
    constant = rates("constant", warmup=4)
    assert constant[:5] == [0, 0.25, 0.5, 0.75, 1] and set(constant[5:]) == {1}
    assert schedules.lr_factor("cosine", 100, 100, 10, min_ratio=0.1) == pytest.approx(0.1)
    assert schedules.lr_factor("rex", 50, 100, 0) == pytest.approx(0.5 / 0.75)
    assert all(a >= b for a, b in zip(rates("rex"), rates("rex")[1:], strict=False))


def test_schedule_classes_get_the_length_of_the_run_or_are_refused() -> None:
    falling = rates("torch.optim.lr_scheduler.CosineAnnealingLR")
    assert falling[0] == 1 and falling[20] == pytest.approx(0.5) and falling[-1] < 0.01
    with pytest.raises(Refused, match="step_size"):
        rates("torch.optim.lr_scheduler.StepLR")
    with pytest.raises(Refused, match="cosine"):
        rates("cosin")
