"""Which experts of Wan 2.2 14B a run trains: settings, files, noise levels, plan and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.base.problems import Problem
from backend.config.experts import SIDES, expert_file, sides_of
from backend.config.schema import Config, with_values
from backend.dataset.scan import scan_dataset
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives.choose import objective_of
from backend.plan import base_model_check
from backend.plan.make_plan import plan_for
from backend.plan.memory.estimate import estimate
from backend.plan.memory.machine import named_gpu
from tests.tiny import originals
from tests.tiny.memory_plans import WORK
from tests.tiny.wan import make_tiny_denoiser, published

CPU = LoadOptions(torch.float32, torch.device("cpu"))
HIGH, LOW = "wan2.2_t2v_high_noise_14B_fp16.safetensors", "wan2.2_t2v_low_noise_14B_fp16.safetensors"


def settings(base: Path | None, **values: Any) -> Config:
    usual = {"model.family": "wan22", "model.base_model": None if base is None else str(base)}
    named = {name.replace("__", "."): value for name, value in values.items()}
    return with_values(Config(), {**usual, "timesteps.train_experts": "both", **named})


@pytest.mark.parametrize("kind", ["uniform", "sigmoid", "logit_normal", "mode", "shift", "flux_shift"])
@pytest.mark.parametrize(("name", "boundary", "edge"), [("wan22", None, 0.875), ("wan22_i2v", None, 0.9),
                                                        ("wan22", 0.3, 0.3)])  # fmt: skip
def test_each_expert_draws_noise_levels_of_its_own_range_alone(
    tiny_wan22: Path, kind: str, name: str, boundary: float | None, edge: float
) -> None:
    """Whatever the distribution, and where it draws 0 and 1 themselves: the boundary is the first of high noise."""
    base, facts = BaseModelFiles(tiny_wan22), family(name)
    cfg = settings(tiny_wan22, model__family=name, timesteps__timestep_sampling=kind)
    cfg = with_values(cfg, {"timesteps.timestep_boundary": boundary, "timesteps.sigmoid_scale": 40.0})
    at = torch.tensor(edge, dtype=torch.float32)
    for side in SIDES:
        alone = with_values(cfg, {"timesteps.train_experts": side})
        assert sides_of(alone) == (side,) and sides_of(cfg) == SIDES
        objective = objective_of(cfg, facts, load_family(name), base, side)
        levels = torch.cat([objective.levels([64] * 8, 3, number) for number in range(40)])
        assert levels.min() >= 0 and levels.max() <= 1 and len(levels.unique()) > 2
        assert bool((levels >= at).all() if side == "high" else (levels < at).all()), (levels.min(), levels.max())
    limited = with_values(cfg, {"timesteps.min_timestep": 100.0, "timesteps.max_timestep": 950.0})
    for side, (least, highest) in {"high": (edge, 0.95), "low": (0.1, edge)}.items():
        objective = objective_of(limited, facts, load_family(name), base, side)  # type: ignore[arg-type]
        levels = torch.cat([objective.levels([64] * 8, 3, number) for number in range(40)])
        assert least - 1e-6 <= levels.min() and levels.max() <= highest + 1e-6


def test_auto_draws_as_the_settings_say_and_names_the_expert_of_a_folder(tiny_wan22: Path) -> None:
    auto = settings(tiny_wan22, timesteps__train_experts="auto")
    (problem,) = base_model_check.problems(auto)
    assert problem.severity == "warning" and "high noise is trained" in problem.text
    assert sides_of(auto) == () and sides_of(settings(tiny_wan22, model__family="flux")) == ()
    base, facts = BaseModelFiles(tiny_wan22), family("wan22")
    levels = objective_of(auto, facts, load_family("wan22"), base).levels([64] * 64, 3, 0)
    assert levels.min() < 0.5 < 0.875 < levels.max()
    for choice in ("high", "low", "both"):
        assert base_model_check.problems(settings(tiny_wan22, timesteps__train_experts=choice)) == []
    assert facts.expert_part(base, "low").folder == "transformer_2"
    assert facts.expert_part(base, "high").folder == facts.expert_part(base, None).folder == "transformer"


def write_expert(path: Path, **changes: int) -> Path:
    net = make_tiny_denoiser(3, latent=16, attention_head_dim=128, num_attention_heads=1, **changes)
    return originals.write(path, published(net.state_dict()))


def test_both_need_two_experts_of_one_build_in_their_places(tmp_path: Path) -> None:
    high, low = write_expert(tmp_path / HIGH), write_expert(tmp_path / LOW, seed=1)
    other = write_expert(tmp_path / "other" / LOW, ffn_dim=64)
    facts = family("wan22")

    def problems(base: Path, choice: str = "both", **files: Path) -> list[Problem]:
        return facts.expert_problems(BaseModelFiles(base, files), choice)

    assert problems(high, transformer_2=low) == []
    files, code = BaseModelFiles(high, {"transformer_2": low}), load_family("wan22")
    loaded = [code.load_denoiser(files, CPU, facts.expert_part(files, side)).state_dict() for side in SIDES]
    for seed, state in enumerate(loaded):
        wanted = make_tiny_denoiser(3, seed, latent=16, attention_head_dim=128, num_attention_heads=1).state_dict()
        assert all(torch.equal(state[name], value) for name, value in wanted.items())
    (problem,) = problems(high)
    assert problem.path == "timesteps.train_experts" and "transformer_2" in problem.remedy
    (problem,) = problems(low, transformer_2=high)
    assert problem.severity == "error" and problem.remedy == "Exchange the two files."
    (problem,) = problems(high, transformer_2=other)
    assert problem.path == "model.transformer_2" and "different builds" in problem.text
    # of one file, either may be what it is trained as; its name may say otherwise
    assert problems(high, "high") == problems(low, "low") == problems(low, "auto") == []
    (problem,) = problems(low, "high")
    assert problem.severity == "warning" and "expert for low noise" in problem.text
    assert facts.expert_part(BaseModelFiles(low), "low") == facts.denoiser
    # a part that is no transformer is named at its setting
    (tmp_path / "text.safetensors").write_bytes(b"{}")
    wrong = settings(high, model__transformer_2=str(tmp_path / "text.safetensors"))
    assert "model.transformer_2" in [problem.path for problem in base_model_check.problems(wrong)]
    one = settings(high, model__family="wan", model__transformer_2=str(low))
    assert "Wan 2.1 does not use transformer_2" in [problem.text for problem in base_model_check.problems(one)]


def test_a_pair_of_lora_files_is_known_by_either_name() -> None:
    for name in ("a_high_noise", "a-step00000010_low_noise", "wan2.2_t2v_high_noise_lora", "low_noise_model"):
        pair = [expert_file(Path("d") / f"{name}.safetensors", side).name for side in SIDES]
        assert f"{name}.safetensors" in pair
        assert ["high_noise" in pair[0], "low_noise" in pair[1]] == [True, True]
    # a run's own name may be that of an expert
    assert expert_file(Path("low_noise-b_low_noise.safetensors"), "high").name == "low_noise-b_high_noise.safetensors"
    assert expert_file(Path("plain.safetensors"), "low") == Path("plain.safetensors")


def test_the_plan_tells_the_steps_of_each_and_the_memory_of_two(tiny_wan22: Path, image_folder: Path) -> None:
    folders = {"dataset.folders": [{"path": str(image_folder)}], "training.max_train_steps": 25}
    cfg = with_values(settings(tiny_wan22), {**folders, "timesteps.switch_boundary_every": 10})
    scan = scan_dataset(cfg)

    def kinds(changed: Config) -> dict[str, str]:
        return {finding.kind: finding.text for finding in plan_for(changed, scan).findings}

    assert "15 steps for high noise and 10 for low" in kinds(cfg)["experts"]
    assert "not trained" in kinds(with_values(cfg, {"timesteps.switch_boundary_every": 25}))["no_turn"]
    one = with_values(cfg, {"timesteps.train_experts": "high"})
    assert not {"experts", "no_turn"} & kinds(one).keys()
    for on_gpu in (True, False):
        both, alone = (estimate(each, WORK, named_gpu(80), on_gpu=on_gpu) for each in (cfg, one))
        assert both is not None and alone is not None
        part = both.ram["second_expert"]
        assert part == alone.stage("train").parts["weights"] and "second_expert" not in alone.ram
        mine, its = both.stage("train").parts, alone.stage("train").parts
        assert mine["other_expert"] == its["lora"] + its["optimizer"] and mine["weights"] == its["weights"]
