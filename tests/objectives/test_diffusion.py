"""Diffusion objectives against diffusers' schedulers and the papers' formulas; flow matching as it always was."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, EulerDiscreteScheduler
from diffusers.training_utils import compute_snr

from backend.config.schema import Config
from backend.families.files.base_model import BaseModelFiles
from backend.families.shift import ShiftLine
from backend.families.table import family
from backend.memory.seeds import generator
from backend.models.family_classes import load_family
from backend.objectives import flow
from backend.objectives.base import Distance
from backend.objectives.choose import objective_of
from backend.objectives.diffusion import Diffusion, Options, Schedule
from backend.objectives.flow_matching import FlowMatching
from backend.objectives.strata import Strata

SDXL = {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SDXL |= {"timestep_spacing": "leading", "steps_offset": 1, "prediction_type": "epsilon"}
SHAPE = (4, 8, 6)


def diffusion(prediction: str = "epsilon", zero: bool = False, **options: object) -> Diffusion:
    return Diffusion(schedule=Schedule.of(SDXL, prediction, zero), options=Options(**options))


def noise(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("prediction", "zero"), [("epsilon", False), ("v_prediction", False), ("v_prediction", True)])
def test_path_and_target_are_the_schedulers(prediction: str, zero: bool) -> None:
    ours = diffusion(prediction, zero)
    values = {name: value for name, value in SDXL.items() if name not in ("timestep_spacing", "prediction_type")}
    theirs = DDPMScheduler(**values, rescale_betas_zero_snr=zero)
    x0, drawn = noise(1), noise(2)
    for step in (0, 17, 500, 999):
        level, at = torch.tensor(float(step)), torch.tensor([step])
        torch.testing.assert_close(ours.noisy(x0, drawn, level)[None], theirs.add_noise(x0[None], drawn[None], at))
        wanted = drawn[None] if prediction == "epsilon" else theirs.get_velocity(x0[None], drawn[None], at)
        torch.testing.assert_close(ours.target(x0, drawn, level)[None], wanted)
    # the last timestep: pure noise, or nearly
    assert (float(ours.schedule.alphas[-1]) < 1e-12) is zero


def test_weights_are_the_papers() -> None:
    levels = torch.tensor([0.0, 10.0, 200.0, 600.0, 999.0])
    snr = compute_snr(DDPMScheduler(**{k: v for k, v in SDXL.items() if k != "timestep_spacing"}), levels.long())
    five = torch.full_like(snr, 5.0)
    close = torch.testing.assert_close
    close(diffusion(min_snr_gamma=5.0).weight(levels), torch.minimum(snr, five) / snr)
    close(diffusion("v_prediction", min_snr_gamma=5.0).weight(levels), torch.minimum(snr, five) / (snr + 1))
    close(diffusion(debiased_estimation=True).weight(levels), 1 / snr.clamp(max=1000).sqrt())
    close(diffusion("v_prediction", debiased_estimation=True).weight(levels), 1 / (snr.clamp(max=1000) + 1))
    close(diffusion("v_prediction", scale_v_pred_loss_like_noise_pred=True).weight(levels), snr / (snr + 1))
    assert torch.equal(diffusion().weight(levels), torch.ones(5))
    zero = diffusion("v_prediction", True, min_snr_gamma=5.0, scale_v_pred_loss_like_noise_pred=True)
    assert torch.isfinite(zero.weight(levels)).all()
    # and reach the loss; Huber's width follows 1 / (1 + noise to signal)
    wrong, right = [torch.full((4,), 3.0)] * 5, [torch.zeros(4)] * 5
    huber = Diffusion(
        schedule=Schedule.of(SDXL),
        options=Options(min_snr_gamma=5.0),
        distance=Distance(loss_type="huber", huber_c=0.1, huber_schedule="snr"),
    )
    width = 0.9 / (1 + snr**-0.5) ** 2 + 0.1
    wanted = 2 * width * ((9 + width**2).sqrt() - width) * huber.weight(levels)
    close(huber.losses(wrong, right, levels), wanted)


def test_draws_depend_on_seed_and_place_alone_and_keep_the_limits() -> None:
    low = Diffusion(schedule=Schedule.of(SDXL), min_timestep=200, max_timestep=300)
    first = low.levels([1] * 64, 7, 3)
    torch.manual_seed(1)
    assert torch.equal(first, low.levels([99] * 64, 7, 3)) and first.dtype == torch.float32
    assert first.min() >= 200 and first.max() < 300 and len(first.unique()) > 20
    assert not torch.equal(first, low.levels([1] * 64, 7, 4))
    everything = diffusion().levels([1] * 2000, 1, 1)
    assert everything.min() < 10 and everything.max() > 990 and everything.max() <= 999
    plain = diffusion().noise(SHAPE, 7, 0, 1)
    assert torch.equal(plain.added, flow.noise(SHAPE, generator(7, "noise", 0, 1)))


def test_noise_options_do_what_they_say() -> None:
    plain = diffusion().noise(SHAPE, 7, 0, 1).added
    offset = diffusion(noise_offset=0.1).noise(SHAPE, 7, 0, 1)
    shift = offset.added - plain
    assert torch.allclose(shift, shift[:, :1, :1].expand(SHAPE), atol=1e-6) and shift.abs().max() > 0
    assert torch.equal(offset.target, offset.added) and len(shift[:, 0, 0].unique()) == SHAPE[0]
    shifts = [diffusion(noise_offset=0.1).noise(SHAPE, 7, n, 1).added - diffusion().noise(SHAPE, 7, n, 1).added
              for n in range(200)]  # fmt: skip
    assert float(torch.stack(shifts)[:, :, 0, 0].std()) == pytest.approx(0.1, rel=0.1)
    perturbed = diffusion(ip_noise_gamma=0.1).noise(SHAPE, 7, 0, 1)
    assert torch.equal(perturbed.target, plain)
    assert 0.05 < float((perturbed.added - plain).std()) < 0.15
    big = (4, 64, 64)
    multires = {"multires_noise_iterations": 6, "multires_noise_discount": 0.8}
    coarse, white = (diffusion(**options).noise(big, 7, 0, 1).added for options in (multires, {}))
    assert float(coarse.std()) == pytest.approx(1, abs=1e-5)
    means = [x.unfold(1, 8, 8).unfold(2, 8, 8).mean((-1, -2)).std() for x in (coarse, white)]
    assert means[0] > 2 * means[1]
    # sd-scripts' (library/custom_train_functions.py): layer i is smaller by r ** i, r anew each time, and weighs d ** i
    source, wanted = generator(7, "pyramid", 0, 1), white
    for i in range(6):
        side = max(1, int(64 / (2 + 2 * float(torch.rand((), generator=source))) ** i))
        layer = flow.noise((4, side, side), source)[None]
        wanted = wanted + torch.nn.Upsample(size=(64, 64), mode="bilinear")(layer)[0] * 0.8**i
        if side == 1:
            break
    assert torch.allclose(coarse, wanted / wanted.std(), atol=1e-5)


def test_huber_is_l2_for_small_and_linear_for_large_errors() -> None:
    target, progress, signal = [torch.zeros(4)], torch.tensor([0.5]), torch.tensor([0.5])
    small, large = [torch.full((4,), 1e-3)], [torch.full((4,), 100.0)]
    huber, smooth = (
        Distance(loss_type="huber", huber_c=0.5, huber_schedule="constant"),
        Distance(loss_type="smooth_l1", huber_c=0.5, huber_schedule="constant"),
    )
    assert float(huber.rows(small, target, progress, signal)) == pytest.approx(1e-6, rel=1e-2)
    assert float(huber.rows(large, target, progress, signal)) == pytest.approx(100, rel=2e-2)
    assert float(smooth.rows(large, target, progress, signal)) == pytest.approx(200, rel=2e-2)
    schedules = {kind: Distance(huber_c=0.1, huber_schedule=kind) for kind in ("constant", "exponential", "snr")}
    ends = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    flat = {kind: distance._width(*ends).tolist() for kind, distance in schedules.items()}
    assert flat["constant"] == pytest.approx([0.1, 0.1])
    assert flat["exponential"] == pytest.approx([1, 0.1]) and flat["snr"] == pytest.approx([1, 0.1])
    assert torch.equal(Distance().rows(large, target, progress, signal), flow.sample_losses(large, target))


@pytest.mark.parametrize(("prediction", "zero"), [("epsilon", False), ("v_prediction", False), ("v_prediction", True)])
def test_sampler_is_diffusers_euler_and_ends_at_a_perfect_models_picture(prediction: str, zero: bool) -> None:
    objective, x0, start = diffusion(prediction, zero), noise(5), noise(6)
    values = {name: value for name, value in SDXL.items() if name != "prediction_type"}
    values |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"} if zero else {}
    theirs = EulerDiscreteScheduler(**values, prediction_type=prediction)
    theirs.set_timesteps(9)
    steps = objective.sampler(9, 1)
    assert steps.levels == theirs.timesteps.tolist() and (steps.levels[0] == 999) is zero
    x = steps.start(start)
    y = start * theirs.init_noise_sigma
    for number, level in enumerate(steps.levels):
        alpha = objective.schedule.at(torch.tensor(level))
        seen = steps.seen(x, number)
        estimated_noise = (seen - alpha.sqrt() * x0) / (1 - alpha).sqrt()
        output = (
            estimated_noise if prediction == "epsilon" else alpha.sqrt() * estimated_noise - (1 - alpha).sqrt() * x0
        )
        assert torch.equal(seen, theirs.scale_model_input(y, theirs.timesteps[number]))
        x, y = steps.step(x, output, number), theirs.step(output, theirs.timesteps[number], y).prev_sample
        assert torch.equal(x, y)
    torch.testing.assert_close(x, x0, atol=2e-3, rtol=1e-3)


def test_what_can_not_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="needs v-prediction"):
        Schedule.of(SDXL, zero_snr=True)
    with pytest.raises(ValueError, match="predicts 'sample'"):
        Schedule.of({**SDXL, "prediction_type": "sample"})
    assert Schedule.of({**SDXL, "prediction_type": "v_prediction", "rescale_betas_zero_snr": True}).zero_snr


def test_validation_levels_are_shares_of_the_schedule() -> None:
    assert diffusion().fixed([0.05, 0.35, 1.0]).tolist() == [50, 350, 999]
    assert FlowMatching().fixed([0.05, 1.0]).tolist() == pytest.approx([0.05, 1.0])


def test_flow_matching_is_the_pure_functions() -> None:
    objective = FlowMatching(draw=flow.TimestepDraw(kind="flux_shift"), weighting="cosmap")
    levels = objective.levels([256, 4096], 7, 3)
    wanted = [flow.draw_sigma(objective.draw, n, generator(7, "sigma", 3, i)) for i, n in enumerate([256, 4096])]
    assert torch.equal(levels, torch.stack(wanted))
    x0, drawn = noise(1), objective.noise(SHAPE, 7, 3, 0)
    target = objective.target(x0, drawn.target, levels[0])
    assert torch.equal(target, drawn.added - x0)
    losses = objective.losses([x0, x0], [target, target], levels)
    assert torch.equal(losses, flow.sample_losses([x0, x0], [target, target]) * flow.weight("cosmap", levels))


def values_of(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def test_settings_reach_the_objective(tiny_flux: Path, tiny_sdxl: Path) -> None:
    """Each with a value of its own, so that none can stand for another."""
    times = {"timestep_sampling": "shift", "sigmoid_scale": 1.1, "discrete_flow_shift": 2.2, "logit_mean": 0.3}
    times |= {"logit_std": 0.4, "mode_scale": 0.7, "min_timestep": 50.0, "max_timestep": 900.0}
    times |= {"weighting_scheme": "cosmap", "stratified": True}
    step = {"dataset": {"batch_size": 3}, "training": {"gradient_accumulation_steps": 5}}
    loss = {"loss_type": "huber", "huber_c": 0.3, "huber_schedule": "constant"}
    own = {"min_snr_gamma": 4.0, "debiased_estimation": True, "scale_v_pred_loss_like_noise_pred": True}
    own |= {"noise_offset": 0.1, "multires_noise_iterations": 5, "multires_noise_discount": 0.6, "ip_noise_gamma": 0.2}
    made = []
    for name, base, more in (("flux", tiny_flux, {}), ("sdxl", tiny_sdxl, {"prediction_type": "v_prediction", **own})):
        cfg = Config.model_validate({"model": {"family": name}, "timesteps": times, "loss": {**loss, **more}, **step})
        made.append(objective_of(cfg, family(name), load_family(name), BaseModelFiles.at(base)))
    flowing, diffusing = made
    drawn = {"kind" if name == "timestep_sampling" else name: value for name, value in times.items()}
    drawn |= {"line": ShiftLine(), "below": None}
    assert values_of(flowing.draw) == {name: drawn[name] for name in drawn.keys() - {"weighting_scheme", "stratified"}}
    assert flowing.weighting == "cosmap" and diffusing.name == "v_prediction"
    assert values_of(flowing.distance) == values_of(diffusing.distance) == loss and values_of(diffusing.options) == own
    assert (diffusing.min_timestep, diffusing.max_timestep) == (50.0, 900.0)
    assert flowing.strata == diffusing.strata == Strata(rows=3, batches=5)
    plain = objective_of(Config.model_validate(step), family("flux"), load_family("flux"), BaseModelFiles.at(tiny_flux))
    assert plain.strata is None


def test_the_shift_by_size_is_that_of_the_folders_own_scheduler(tiny_qwen_image: Path, tmp_path: Path) -> None:
    """Training moves a level as a sample of the same size does."""
    shutil.copytree(tiny_qwen_image, folder := tmp_path / "model")
    config = json.loads((folder / "scheduler/scheduler_config.json").read_text("utf-8"))
    (folder / "scheduler/scheduler_config.json").write_text(json.dumps(config | {"max_shift": 2.5}), "utf-8")
    cfg = Config.model_validate({"model": {"family": "qwen_image"}, "timesteps": {"timestep_sampling": "flux_shift"}})
    row = family("qwen_image")
    shifts = []
    for base in (tiny_qwen_image, folder):
        objective = objective_of(cfg, row, load_family(row.name), BaseModelFiles.at(base))
        shifts.append(objective.draw.line.shift(8192))
        # the last of a sample's levels is stretched to the scheduler's end, and the others with it
        middle, last = (1 - flow.shifted(torch.tensor(share / 3), shifts[-1]) for share in (2, 1))
        wanted = 1 - middle / last * (1 - config["shift_terminal"])
        assert objective.sampler(3, 8192).sigmas[1] == pytest.approx(float(wanted), abs=1e-4)
        source, plain = generator(1, "sigma", 0, 0), generator(1, "sigma", 0, 0)
        even = flow.draw_sigma(flow.TimestepDraw(kind="sigmoid"), 8192, plain)
        assert torch.equal(flow.draw_sigma(objective.draw, 8192, source), flow.shifted(even, shifts[-1]))
    assert shifts == pytest.approx([math.exp(0.9), math.exp(2.5)])
