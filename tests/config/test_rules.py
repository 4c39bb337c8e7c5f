"""Rules between settings: each is shown to fire, to be silent, and to say what to do."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from backend.config.load import ready
from backend.config.rules.check import RULES, check
from backend.config.rules.rule import Rule
from backend.config.schema import Config, get, with_values
from backend.config.wandb_login import needs_login
from backend.families.table import lacking
from tests.tiny.clips import add_family
from tests.tiny.kept_rules import KEPT
from tests.tiny.rule_rows import BROKEN
from tests.tiny.rule_values import (
    COMPARED,
    FOLDERS,
    LONG_NAME,
    SDXL,
    TEXT_RATIO,
    TOO_LONG,
    UNPAIRED,
    WITHOUT_PACKAGES,
    Values,
)


@pytest.mark.parametrize(("values", "path", "word"), BROKEN, ids=lambda v: v if isinstance(v, str) else "")
def test_a_broken_rule_says_where_and_what(values: Values, path: str, word: str) -> None:
    (problem,) = check(with_values(Config(), values))
    assert problem.path == path and word in problem.text, problem.sentence()
    assert problem.remedy and "{" not in problem.sentence()


# settings that a family lacks; what else is said of them is another rule's business
FLUX_ONLY: dict[str, Any] = {
    "model.guidance_scale": 3.5,
    "model.text_length": 256,
    "timesteps.timestep_sampling": "uniform",
    "timesteps.sigmoid_scale": 2.0,
    "timesteps.discrete_flow_shift": 2.0,
    "timesteps.logit_mean": 1.0,
    "timesteps.logit_std": 2.0,
    "timesteps.mode_scale": 1.0,
    "timesteps.weighting_scheme": "cosmap",
}
DIFFUSION_ONLY: dict[str, Any] = {
    "loss.prediction_type": "v_prediction",
    "loss.min_snr_gamma": 5.0,
    "loss.debiased_estimation": True,
    "loss.scale_v_pred_loss_like_noise_pred": True,
    "loss.noise_offset": 0.1,
    "loss.multires_noise_iterations": 6,
    "loss.multires_noise_discount": 0.5,
    "loss.ip_noise_gamma": 0.1,
    "loss.zero_terminal_snr": True,
    "network.train_text_encoder": True,
    "dataset.max_token_length": 150,
    "network.conv_dim": 4,
    "network.conv_alpha": 4.0,
    "optimizer.text_encoder_lr": 1e-5,
    **TEXT_RATIO,
}
CLIPS_ONLY: dict[str, Any] = {
    "video.target_frames": [33],
    "video.frame_extraction": "chunk",
    "video.frame_stride": 4,
    "video.frame_sample": 4,
    "video.max_frames": 81,
    "video.target_fps": 16.0,
    "video.source_fps": 30.0,
}
# of a family of clips: (values, where the problem is shown, what it says)
CLIP_ROWS: list[tuple[Values, str, str]] = [
    ({"video.frame_stride": 4}, "video.frame_stride", "only slide"),
    ({"video.frame_sample": 4}, "video.frame_sample", "only uniform"),
    ({"video.max_frames": 81}, "video.max_frames", "only full"),
    ({"video.frame_extraction": "full", "video.target_frames": [33]}, "video.target_frames", "takes whole videos"),
    ({"video.target_frames": [33, 33]}, "video.target_frames", "twice"),
]
LACKED = [({**SDXL, path: value}, path) for path, value in FLUX_ONLY.items()]
LACKED += [({path: value}, path) for path, value in DIFFUSION_ONLY.items()]


@pytest.mark.parametrize(("values", "path"), LACKED, ids=str)
def test_a_setting_that_the_family_lacks_is_a_warning_by_name(values: Values, path: str) -> None:
    problems = [problem for problem in check(with_values(Config(), values)) if problem.path == path]
    assert any("does not have it" in problem.text and problem.severity == "warning" for problem in problems)
    other = {"model.family": "flux"} if "model.family" in values else SDXL
    assert not any("does not have it" in p.text for p in check(with_values(Config(), {**values, **other})))


@pytest.mark.parametrize("path", CLIPS_ONLY)
def test_settings_of_clips_are_a_warning_for_a_family_of_pictures(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {path: CLIPS_ONLY[path]}
    problems = [problem for problem in check(with_values(Config(), values)) if "does not have it" in problem.text]
    assert [(problem.path, problem.severity) for problem in problems] == [(path, "warning")]
    add_family(monkeypatch)
    clips = {**values, "model.family": "clips"}
    assert not any("does not have it" in problem.text for problem in check(with_values(Config(), clips)))
    assert path.partition(".")[2] in lacking("flux") and path.partition(".")[2] not in lacking("clips")


@pytest.mark.parametrize(("values", "path", "word"), CLIP_ROWS, ids=str)
def test_rules_of_clips(values: Values, path: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_family(monkeypatch)
    (problem,) = check(with_values(Config(), {"model.family": "clips", **values}))
    assert problem.path == path and word in problem.text, problem.sentence()


@pytest.mark.parametrize("values", KEPT, ids=str)
def test_rules_are_silent_where_they_should_be(values: Values) -> None:
    assert check(with_values(Config(), values)) == []


def test_a_family_that_edits_needs_a_control_picture_everywhere() -> None:
    cfg = with_values(Config(), {"model.base_model": "m", **UNPAIRED})
    assert [problem.path for problem in check(cfg, "start")] == [
        "dataset.folders[1].control_path",
        "sampling.prompts[0].control_image",
        "validation.validation_folders[0].control_path",
    ]
    assert check(with_values(cfg, {"model.family": "flux_kontext"}), "start") == []


def test_what_compares_validations_is_refused_without_them() -> None:
    """Twice each: there are no images, and no time at which they would be measured."""
    cfg = with_values(Config(), {"model.base_model": "m", **FOLDERS, **COMPARED})
    assert check(cfg) == []
    refused = [(problem.path, problem.severity) for problem in ready(cfg)]
    needing = ("validation.early_stop_patience", "saving.keep_best", "saving.average_from")
    assert sorted(refused) == sorted((path, "error") for path in needing for _ in range(2))
    measured = {"dataset.validation_split": 0.1, "validation.validate_every_n_epochs": 1}
    assert ready(with_values(cfg, measured)) == []


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine where nobody has logged in to Weights & Biases."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any optional package."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_a_package_that_is_not_installed_is_told_with_the_other_problems(no_packages: None) -> None:
    wrong = []
    for values, path, package in WITHOUT_PACKAGES:
        cfg = with_values(Config(), {"model.base_model": "m", **FOLDERS, **values})
        problems = [(p.path, p.severity, package in p.text, "pip install" in p.remedy) for p in ready(cfg)]
        if problems != [(path, "error", True, True)] or check(with_values(Config(), values), "always"):
            wrong.append((values, problems))
    assert wrong == []


def test_one_flash_attention_is_not_taken_for_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a folder: with one of them there, the other one's rule alone speaks."""
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = with_values(Config(), {"model.base_model": "m", **FOLDERS})

    def missing() -> list[bool]:
        importlib.invalidate_caches()
        return [bool(ready(with_values(cfg, {"compile.attention": route}))) for route in ("flash2", "fa4")]

    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    assert missing() == [True, False]
    (tmp_path / "flash_attn" / "flash_attn_interface.py").touch()
    assert missing() == [False, False]
    (tmp_path / "flash_attn" / "cute").rmdir()
    assert missing() == [False, True]


def test_packages_that_are_installed_or_not_asked_for_are_no_problem() -> None:
    cfg = with_values(Config(), {"model.base_model": "m", **FOLDERS, "optimizer.optimizer": "came"})
    assert ready(with_values(cfg, {"logging.tensorboard": True, "memory.base_quantization": "int8"})) == []


def test_a_run_that_is_sent_to_weights_and_biases_needs_a_login(
    no_login: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the environment or from wandb's own login for the server in use; none where nothing is sent."""
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))

    def remedies(**settings: Any) -> list[str]:
        cfg = with_values(Config(), {f"logging.{name}": value for name, value in settings.items()})
        return [p.remedy for rule in RULES if rule.broken is needs_login for p in rule.problems(cfg)]

    assert remedies(wandb=False) == remedies(wandb=True, wandb_mode="offline") == []
    (remedy,) = remedies(wandb=True)
    assert "wandb login" in remedy and "WANDB_API_KEY" in remedy
    (tmp_path / "netrc").write_text("machine wandb.example\n  login user\n  password 0123456789\n")
    assert remedies(wandb=True), "a login of another server"
    (tmp_path / "settings").write_text("[default]\nbase_url = https://wandb.example\n")
    assert remedies(wandb=True) == []
    monkeypatch.setenv("WANDB_BASE_URL", "https://api.wandb.ai")
    assert remedies(wandb=True)
    for name, value in (("WANDB_API_KEY", "0" * 40), ("WANDB_MODE", "offline")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert remedies(wandb=True) == []


def test_every_rule_is_shown_to_fire(no_packages: None, no_login: None) -> None:
    rows = [values for values, *_ in (*BROKEN, *LACKED, *WITHOUT_PACKAGES, *CLIP_ROWS)]
    rows += [{path: value} for path, value in CLIPS_ONLY.items()]
    at_start = [{}, UNPAIRED, TOO_LONG, LONG_NAME, COMPARED, {"logging.wandb": True}]
    fired = set()
    for number, values in enumerate((*rows, *at_start)):
        cfg = with_values(Config(), values)
        asked = [rule for rule in RULES if id(rule) not in fired and (number < len(rows) or rule.when == "start")]
        fired |= {id(rule) for rule in asked if rule.problems(cfg)}
    silent = [rule.text for rule in RULES if id(rule) not in fired]
    assert silent == []


def test_rules_name_settings_that_exist() -> None:
    for rule in RULES:
        for path in rule.paths:
            get(Config(), path)


def test_a_rule_needs_all_its_values() -> None:
    cfg = with_values(Config(), {"training.max_train_steps": 5, "training.max_train_epochs": 5})
    assert check(cfg, without={"training.max_train_epochs"}) == []


def test_values_with_braces_are_shown_as_they_are() -> None:
    rule = Rule(("model.variant",), lambda v: v is not None, "bad {variant}", "mend {variant}")
    (problem,) = rule.problems(with_values(Config(), {"model.variant": "{x}"}))
    assert (problem.text, problem.remedy) == ("bad {x}", "mend {x}")


@pytest.mark.parametrize(
    "values",
    [
        {"compile.compile_backend": "cudagraphs"},
        {"compile.compile_blocks": [{"blocks": "double", "backend": "cudagraphs"}]},
    ],
    ids=str,
)
def test_cuda_graphs_and_accumulation_in_every_spelling(values: Values) -> None:
    """The backend and a single block's backend record CUDA graphs too."""
    cfg = with_values(Config(), {**values, "training.gradient_accumulation_steps": 2})
    (error,) = [p for p in check(cfg) if p.severity == "error"]
    assert "inductor" in error.remedy
