"""Which settings have a run's passes recorded as CUDA graphs, and what plan and warnings make of it."""

from __future__ import annotations

import pytest

from backend.config.graph_choice import recording_of
from backend.config.rules.check import check
from backend.config.schema import Config
from backend.plan.memory.changes import _recordings
from backend.plan.memory.settings import memory_settings
from backend.training.compile_setup import _no_device


@pytest.mark.parametrize(
    ("compile", "wanted"),
    [
        ({}, "auto"),
        ({"compile_mode": "max-autotune-no-cudagraphs"}, "auto"),
        ({"compile_mode": "reduce-overhead"}, "on"),
        ({"compile_mode": "max-autotune"}, "on"),
        ({"compile_mode": "max-autotune", "cuda_graphs": "off"}, "off"),
        ({"compile_mode": "max-autotune", "compile": False}, "auto"),
        ({"compile_mode": "max-autotune", "compile_backend": "aot_eager"}, "auto"),
        ({"cuda_graphs": "on"}, "on"),
    ],
)
def test_recording_follows_mode_and_setting(compile: dict[str, object], wanted: str) -> None:
    cfg = Config.model_validate({"compile": compile})
    assert recording_of(cfg) == wanted
    assert memory_settings(cfg, on_gpu=True).recorded == (wanted == "on")
    offered = [dict(change.values) for change in _recordings(cfg, None)]
    assert bool(offered) == (wanted == "on")
    for values in offered:
        names = {path.split(".")[1]: value for path, value in values.items()}
        assert recording_of(Config.model_validate({"compile": {**compile, **names}})) == "auto"


def test_a_mode_that_records_is_allowed_with_accumulation_and_told_on_a_cpu() -> None:
    cfg = Config.model_validate(
        {"compile": {"compile_mode": "max-autotune"}, "training": {"gradient_accumulation_steps": 4}}
    )
    assert check(cfg) == []
    warning = _no_device(cfg, "cpu")
    assert "compile_mode max-autotune records no CUDA graphs on cpu" in warning["text"]
    assert "max-autotune-no-cudagraphs" in warning["remedy"]
