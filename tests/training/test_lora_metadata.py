"""What a LoRA file says about its captions stays small, however long they are."""

from __future__ import annotations

import json
from pathlib import Path

from backend.config.schema import Config
from backend.dataset.items import Item
from backend.plan.steps import GroupCount, StepPlan
from backend.training.lora_metadata import file_metadata

STEPS = StepPlan(
    images=3, entries=3, buckets=1, batch_size=1, groups=(GroupCount("64x64", 3, 3, 3),), accumulation=1, steps=1,
    asked_epochs=None,
)  # fmt: skip


def described(*captions: str, cfg: Config | None = None, prediction: str = "flow") -> dict[str, str]:
    items = [Item(f"{n}", Path(f"/pictures/{n}.png"), 64, 64, caption) for n, caption in enumerate(captions)]
    return file_metadata(
        cfg or Config(), items, {(64, 64): len(items)}, architecture="a", base_model_version="b", targets=1, step=1,
        steps=STEPS, epoch=0, prediction=prediction, started=0.0,
    )  # fmt: skip


def test_a_caption_of_ten_megabytes_is_cut_and_the_common_tags_stay() -> None:
    prose, tags = "x" * 10_000_000, ", ".join(f"rare tag {n}" for n in range(500_000))
    metadata = described(f"1girl, {prose}", f"1girl, {tags}", "1girl, 猫")
    counted = json.loads(metadata["ss_tag_frequency"])["pictures"]
    assert counted["1girl"] == 3 and counted["x" * 1000] == 1 and 10_000 < len(counted) < 500_000
    assert sum(len(value.encode()) for value in metadata.values()) < 1_100_000


def test_usual_captions_are_counted_in_full() -> None:
    metadata = described("a cat, sitting", "a cat", "")
    assert json.loads(metadata["ss_tag_frequency"]) == {"pictures": {"a cat": 2, "sitting": 1}}


def test_a_diffusion_model_says_what_it_predicts_and_how_its_loss_is_weighted() -> None:
    loss = {"min_snr_gamma": 5.0, "noise_offset": 0.1, "zero_terminal_snr": True}
    cfg = Config.model_validate({"model": {"family": "sdxl"}, "loss": loss, "optimizer": {"lr_warmup": 1}})
    metadata = described("a", cfg=cfg, prediction="v_prediction")
    expected = {
        "modelspec.prediction_type": "v", "ss_min_snr_gamma": "5.0", "ss_noise_offset": "0.1",
        "ss_zero_terminal_snr": "True", "ss_loss_type": "l2", "ss_lr_warmup_steps": "1",
    }  # fmt: skip
    assert expected.items() <= metadata.items()
    assert described("a", cfg=cfg, prediction="epsilon")["modelspec.prediction_type"] == "epsilon"
