"""Profiles of torch.compile: what each sets, that it rules over single options, and that it says so."""

from __future__ import annotations

import pytest

from backend.config.load import loads
from backend.config.profiles import PROFILES, apply_profile
from backend.config.rules.check import check
from backend.config.schema import with_values


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_set_the_six_options(name: str) -> None:
    cfg = loads(f"[compile]\ncompile_profile = '{name}'").config
    assert cfg is not None
    assert {option: getattr(cfg.compile, option) for option in PROFILES[name]} == PROFILES[name]
    assert len(PROFILES[name]) == 6
    again = cfg.model_copy(deep=True)
    assert apply_profile(again) == [] and again == cfg
    busy = with_values(cfg, {"training.gradient_accumulation_steps": 4, "dataset.batch_size": 2})
    assert check(busy) == [], "a profile never brings a contradiction of its own"


def test_profiles_differ() -> None:
    assert len({str(values) for values in PROFILES.values()}) == len(PROFILES)


def test_a_profile_rules_over_options_and_says_so() -> None:
    text = "[compile]\ncompile_profile = 'max_speed'\ncompile_mode = 'default'\ncompile_dynamic = 'false'"
    loaded = loads(text)
    (warning,) = loaded.problems
    assert (warning.severity, warning.path, warning.line) == ("warning", "compile.compile_mode", 3)
    assert "Compile mode" in warning.text and "Dynamic" not in warning.text
    assert loaded.config is not None and loaded.config.compile.compile_mode == "max-autotune-no-cudagraphs"


def test_a_compile_that_is_off_stays_off_in_any_profile() -> None:
    cfg = loads("[compile]\ncompile_profile = 'max_speed'\ncompile = false").config
    assert cfg is not None and cfg.compile.compile is False
