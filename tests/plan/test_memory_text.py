"""The estimate where text encoders are trained: they stay, with a LoRA of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.config.load import parse
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.plan.memory.activations import Work
from backend.plan.memory.estimate import estimate
from backend.plan.memory.estimate_result import Estimate
from backend.plan.memory.machine import named_gpu
from backend.plan.memory.parts import numbers, read_parts
from backend.plan.memory.work import RunWork

WORK = RunWork(Work(2, 1024, 77), 256 * 256, sampling=Work(1, 1024, 77), sample_pixels=256 * 256)


def of(base: Path, name: str, **network: Any) -> Estimate:
    values = {"network_dim": 8, **network}
    model = {"base_model": str(base), "family": name, "weight_dtype": "bf16"}
    loaded = parse({"model": model, "network": values, "compile": {"shape_mode": "off"}})
    assert loaded.config is not None, loaded.problems
    estimation = estimate(loaded.config, WORK, named_gpu(24))
    assert estimation is not None
    return estimation


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize(("name", "layers"), [("sdxl", {16: 18, 24: 18}), ("sd15", {16: 18})])
def test_encoders_stay_for_the_whole_run(
    request: pytest.FixtureRequest, name: str, layers: dict[int, int], kind: str
) -> None:
    base = request.getfixturevalue(f"tiny_{name}")
    parts = read_parts(family(name), BaseModelFiles.at(base))
    assert parts is not None
    without, trained = of(base, name, network_type=kind), of(base, name, network_type=kind, train_text_encoder=True)
    assert trained.stage("encode_text") is None and without.stage("encode_text") is not None
    weights = 2 * sum(numbers(shapes.values()) for shapes in parts.texts.values())
    for stage in ("train", "sample", "decode_samples"):
        stage_memory = trained.stage(stage)
        assert stage_memory is not None and stage_memory.parts["text_encoders"] == weights
    # six layers a block: four of width w, one to 2 w and one back
    lora = sum(count // 6 * 8 * (4 * 2 * w + 2 * 3 * w) for w, count in layers.items())
    if kind == "dora":
        lora += sum(count // 6 * (4 * w + 2 * w + w) for w, count in layers.items())
    before, after = without.stage("train"), trained.stage("train")
    assert before is not None and after is not None
    assert after.parts["lora"] - before.parts["lora"] == 4 * lora
    assert after.parts["activations"] > before.parts["activations"]
