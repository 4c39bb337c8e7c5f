"""The drawings show what the trainer does: held against its own functions."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from backend.config.load import parse
from backend.config.schema import Config, with_values
from backend.config.sections.optimizer import OptimizerSection
from backend.config.sections.timesteps import TimestepsSection
from backend.families.shift import ShiftLine
from backend.memory.seeds import generator
from backend.plan import noise_levels
from gui import plots

SCHEDULES = ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex")
SAMPLINGS = ("uniform", "sigmoid", "logit_normal", "mode", "shift", "flux_shift")


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_is_the_trainers(name: str) -> None:
    from backend.optimizers.schedules import lr_factor

    cfg = OptimizerSection(
        lr_scheduler=name,
        lr_warmup=100,
        lr_scheduler_num_cycles=3,
        lr_scheduler_power=2.0,
        lr_scheduler_min_lr_ratio=0.1,
    )
    steps, points = 1000, 201
    drawn = plots.rate_factors(cfg, steps, points)
    assert drawn is not None
    for index in range(points - 1):
        step = steps * index // (points - 1)
        assert drawn[index] == pytest.approx(lr_factor(name, step, steps, 100, 3, 2.0, 0.1), abs=1e-9), step


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("scheme", ["none", "sigma_sqrt", "cosmap"])
def test_the_timesteps_are_the_trainers(kind: str, scheme: str) -> None:
    import torch

    from backend.objectives import flow

    cfg = TimestepsSection(
        timestep_sampling=kind,
        weighting_scheme=scheme,
        logit_mean=-0.5,
        mode_scale=0.9,
        sigmoid_scale=0.8,
        min_timestep=200.0,
        max_timestep=900.0,
    )
    line = ShiftLine(max_shift=2.0)
    draw = flow.TimestepDraw(
        kind=kind,
        sigmoid_scale=cfg.sigmoid_scale,
        discrete_flow_shift=cfg.discrete_flow_shift,
        logit_mean=cfg.logit_mean,
        logit_std=cfg.logit_std,
        mode_scale=cfg.mode_scale,
        min_timestep=200.0,
        max_timestep=900.0,
        line=line,
    )
    source = generator(1, "test")
    sigmas = torch.stack([flow.draw_sigma(draw, 1024, source) for _ in range(6000)])
    weights = flow.weight(scheme, sigmas)
    bins = 10
    counted = torch.zeros(bins).index_add_(0, (sigmas * bins).long().clamp(max=bins - 1), weights)
    counted /= counted.sum()
    assert plots.timestep_density(cfg, line.shift(1024), bins) == pytest.approx(counted.tolist(), abs=0.03)


@pytest.mark.parametrize(
    "loss",
    [
        {},
        {"min_snr_gamma": 5.0},
        {"debiased_estimation": True},
        {"prediction_type": "v_prediction", "min_snr_gamma": 5.0, "zero_terminal_snr": True},
        {"prediction_type": "v_prediction", "scale_v_pred_loss_like_noise_pred": True},
    ],
)
def test_the_timesteps_of_diffusion_are_the_trainers(loss: dict[str, Any]) -> None:
    import torch

    from backend.objectives.diffusion import Diffusion, Options, Schedule

    data = {"model": {"family": "sdxl"}, "compile": {"shape_mode": "off"}, "loss": loss}
    cfg = parse(data | {"timesteps": {"min_timestep": 100.0, "max_timestep": 900.0}}).config
    assert cfg is not None
    schedule = Schedule.of(noise_levels.scheduler_config(cfg), cfg.loss.prediction_type, cfg.loss.zero_terminal_snr)
    options = Options(**{name: getattr(cfg.loss, name) for name in Options.__dataclass_fields__})
    objective = Diffusion(schedule=schedule, options=options, min_timestep=100.0, max_timestep=900.0)
    levels = objective.levels([1024] * 6000, 1, 0)
    counted = torch.zeros(10).index_add_(0, (levels / 100).long(), objective.weight(levels))
    counted /= counted.sum()
    assert noise_levels.diffusion_density(cfg, 10) == pytest.approx(counted.tolist(), abs=0.03)
    exact = objective.weight(torch.arange(1000.0))
    assert noise_levels.loss_weights(schedule.config, cfg.loss) == pytest.approx(exact.tolist(), rel=2e-3, abs=1e-4)


def test_flux_shift_is_drawn_along_the_models_own_line() -> None:
    drawn = {
        plots.timesteps(
            with_values(Config(), {"model.family": name, "timesteps.timestep_sampling": "flux_shift"}), 4096
        )
        for name in ("flux", "flux_kontext", "qwen_image", "qwen_image_edit")
    }
    assert len(drawn) == 2


def test_a_scheduler_of_ones_own_has_no_curve() -> None:
    cfg = OptimizerSection(lr_scheduler="torch.optim.lr_scheduler.StepLR")
    assert plots.rate_factors(cfg, 100) is None
    assert "StepLR" in plots.learning_rate(cfg, 100)


def test_drawings_are_well_formed_and_escape_names() -> None:
    bars = [("<script>&", 3, False), ("512×512", 1, True)]
    for source in (
        plots.histogram(bars, 'Pictures "here"'),
        plots.learning_rate(OptimizerSection(), 1600),
        plots.timesteps(Config(), 4096),
    ):
        root = ElementTree.fromstring(source)
        assert root.tag.endswith("svg")
    texts = [node.text for node in ElementTree.fromstring(plots.histogram(bars, "x")).iter() if node.text]
    assert "<script>&" in texts
    assert plots.histogram([], "none") == ""


def test_the_curve_of_an_expert_lies_on_its_side_of_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both: half of the training on each side."""
    drawn: list[list[float]] = []
    monkeypatch.setattr(plots, "_density_curve", lambda shares: drawn.append(list(shares)) or "")
    for choice in ("high", "low", "both"):
        cfg = with_values(Config(), {"model.family": "wan22", "timesteps.train_experts": choice})
        plots.timesteps(cfg, 64, bins=8)
    high, low, both = drawn
    assert sum(high[7:]) == pytest.approx(1) and sum(low[:7]) == pytest.approx(1)
    assert both == pytest.approx([(a + b) / 2 for a, b in zip(high, low, strict=True)])
