"""Noise levels, weights and target against their published formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from backend.families.files.base_model import BaseModelFiles
from backend.families.shift import ShiftLine
from backend.families.table import FAMILIES
from backend.memory.seeds import generator
from backend.objectives import flow

KINDS = ("uniform", "sigmoid", "logit_normal", "mode", "shift", "flux_shift")


def draws(count: int = 4000, tokens: int = 1024, **fields: object) -> torch.Tensor:
    draw = flow.TimestepDraw(**fields)
    return torch.stack([flow.draw_sigma(draw, tokens, generator(7, "t", i)) for i in range(count)])


@pytest.mark.parametrize("kind", KINDS)
def test_levels_are_float32_within_their_range_and_repeat(kind: str) -> None:
    sigma = draws(200, kind=kind, min_timestep=100.0, max_timestep=750.0)
    assert sigma.dtype == torch.float32
    assert sigma.min() >= 0.1 and sigma.max() <= 0.75
    assert torch.equal(sigma, draws(200, kind=kind, min_timestep=100.0, max_timestep=750.0))
    assert len(set(sigma.tolist())) > 190


def test_medians_are_where_the_formulas_put_them() -> None:
    assert draws(kind="uniform").median() == pytest.approx(0.5, abs=0.03)
    assert draws(kind="sigmoid").median() == pytest.approx(0.5, abs=0.02)
    assert draws(kind="logit_normal", logit_mean=1.0).median() == pytest.approx(1 / (1 + math.exp(-1)), abs=0.02)
    assert draws(kind="shift", discrete_flow_shift=3.0).median() == pytest.approx(3 / 4, abs=0.02)
    odds = math.exp(1.15)
    assert draws(kind="flux_shift", tokens=4096).median() == pytest.approx(odds / (1 + odds), abs=0.02)
    wide, narrow = draws(kind="sigmoid", sigmoid_scale=2.0), draws(kind="sigmoid", sigmoid_scale=0.5)
    assert wide.std() > 2 * narrow.std()


@pytest.mark.parametrize("scale", [1.29, -0.5])
def test_mode_draws_as_diffusers_does(scale: float) -> None:
    from diffusers.training_utils import compute_density_for_timestep_sampling

    source = generator(3, "sigma")
    theirs = compute_density_for_timestep_sampling("mode", 64, mode_scale=scale, generator=source)
    draw, source = flow.TimestepDraw(kind="mode", mode_scale=scale), generator(3, "sigma")
    assert torch.equal(torch.stack([flow.draw_sigma(draw, 1, source) for _ in range(64)]), theirs)
    middle, ends = draws(kind="mode", mode_scale=scale), draws(kind="uniform")
    share = [float(((levels - 0.5).abs() < 0.1).float().mean()) for levels in (middle, ends)]
    assert (share[0] > 1.5 * share[1]) if scale > 0 else (share[0] < 0.9 * share[1])


@pytest.mark.parametrize(
    ("name", "most"), [("flux", 1.15), ("flux_kontext", 1.15), ("qwen_image", 0.9), ("qwen_image_edit_plus", 0.9)]
)
def test_flux_shift_is_the_pipelines_own_line(name: str, most: float) -> None:
    from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

    line = ShiftLine.of(FAMILIES[name].scheduler_config(BaseModelFiles(None)))
    assert line.max_shift == most
    lengths = (line.base_image_seq_len, line.max_image_seq_len)
    for tokens in (256, 1000, 4096, 8192):
        mu = calculate_shift(tokens, *lengths, line.base_shift, line.max_shift)
        assert line.mu(tokens) == pytest.approx(mu, abs=1e-9)
        # as the scheduler moves the levels of a sample
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
        theirs = torch.from_numpy(scheduler.time_shift(mu, 1.0, np.linspace(0.1, 0.9, 9)))
        assert torch.allclose(flow.shifted(torch.linspace(0.1, 0.9, 9), line.shift(tokens)), theirs.float())
    assert ShiftLine.of({"time_shift_type": "linear", "max_shift": 3.0, "max_image_seq_len": 512}).shift(512) == 3.0


def test_flux_shift_without_a_line_is_fluxs() -> None:
    assert ShiftLine() == ShiftLine.of(FlowMatchEulerDiscreteScheduler().config)
    assert (
        draws(9, 4096, kind="flux_shift", line=ShiftLine(max_shift=0.9)).mean()
        < draws(9, 4096, kind="flux_shift").mean()
    )


def test_weights_are_those_of_diffusers() -> None:
    from diffusers.training_utils import compute_loss_weighting_for_sd3

    sigma = torch.tensor([0.01, 0.25, 0.5, 1.0])
    for scheme in ("none", "sigma_sqrt", "cosmap"):
        assert torch.allclose(flow.weight(scheme, sigma), compute_loss_weighting_for_sd3(scheme, sigma))
    assert torch.isfinite(flow.weight("sigma_sqrt", torch.zeros(1))).all()
    with pytest.raises(ValueError, match="bogus"):
        flow.weight("bogus", sigma)


def test_the_path_runs_from_picture_to_noise_with_the_target_as_its_slope() -> None:
    x0, noise = torch.randn(16, 6, 10), flow.noise((16, 6, 10), generator(1, "noise", 0))
    assert torch.equal(flow.noisy(x0, noise, torch.tensor(0.0)), x0)
    assert torch.equal(flow.noisy(x0, noise, torch.tensor(1.0)), noise)
    step = flow.noisy(x0, noise, torch.tensor(0.75)) - flow.noisy(x0, noise, torch.tensor(0.25))
    assert torch.allclose(step / 0.5, flow.velocity(x0, noise), atol=1e-5)
    # N3: bf16 would round 750 of 1000 to 752
    assert (
        flow.draw_sigma(flow.TimestepDraw(kind="uniform", min_timestep=750, max_timestep=750), 1, generator(0)) == 0.75
    )


def test_noise_depends_on_its_place_alone() -> None:
    def draw(*where: int) -> torch.Tensor:
        return flow.noise((4, 3, 5), generator(42, "noise", *where))

    first = draw(3, 0)
    torch.randn(1000)
    assert torch.equal(first, draw(3, 0))
    assert not torch.equal(first, draw(3, 1)) and not torch.equal(first, draw(30))
    assert first.std() == pytest.approx(1.0, abs=0.3)


def test_a_small_picture_counts_as_much_as_a_large_one() -> None:
    predicted = [torch.zeros(4, 2, 2), torch.zeros(4, 8, 8)]
    target = [torch.full((4, 2, 2), 2.0), torch.full((4, 8, 8), 1.0)]
    assert flow.sample_losses(predicted, target).tolist() == [4.0, 1.0]
