"""LoRA+: B's rate is a multiple of A's, as peft groups them, from the settings to the file and the resume state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
import torch
from peft.optimizers import create_loraplus_optimizer

from backend.config.schema import Config
from backend.config.sections.network import NetworkSection
from backend.config.toml_io import dump
from backend.lora.inject import find_targets, inject
from backend.lora.loraplus import groups, ratios
from backend.optimizers.build import make_optimizer
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora import inputs, trained
from tests.tiny.training import config, events, rows, same, state_of, train_here

# a rate of its own for some layers
ROWS = [{"layers": "attn.to_k", "learning_rate": 0.02}]


def test_steps_are_those_of_pefts_loraplus_optimizer() -> None:
    (model, lora), (other, its) = trained(), trained()
    parameter_groups = groups(lora, list(lora.layers), None, 1e-2, 16.0)
    ours = make_optimizer("adamw", parameter_groups, learning_rate=1e-2, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8)
    theirs = create_loraplus_optimizer(
        other, torch.optim.AdamW, lr=1e-2, loraplus_lr_ratio=16.0, loraplus_weight_decay=0.1, eps=1e-8
    )
    for _ in range(3):
        for module, optimizer in ((model, ours), (other, theirs)):
            module(**inputs()).sample.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same(lora.tensors(), its.tensors())
    assert len(lora.parameters()) == sum(len(group["params"]) for group in ours.param_groups)


@pytest.mark.parametrize(
    ("denoiser", "text", "wanted"), [(1.0, None, None), (1.0, 1.0, None), (4.0, None, (4, 4)), (1.0, 2.0, (1, 2))]
)
def test_the_ratio_of_text_encoders_is_that_of_the_denoiser_where_it_is_empty(
    denoiser: float, text: float | None, wanted: tuple[float, float] | None
) -> None:
    assert ratios(NetworkSection(loraplus_lr_ratio=denoiser, loraplus_text_encoder_lr_ratio=text)) == wanted


def cfg(base: Path, images: Path, where: Path, steps: int, schedule: str = "constant", **network: object) -> Config:
    """LoRA+ over layers of two rates."""
    few = {"loraplus_lr_ratio": 4.0, "layer_settings": ROWS, "targets_include": ["attn.to_q", "attn.to_k"]}
    return config(
        base, images, where,
        network={**few, **network},
        training={"max_train_steps": steps},
        optimizer={"lr_scheduler": schedule, "lr_warmup": 0.0},
    )  # fmt: skip


def test_a_run_has_two_rates_a_layer_and_resumes_exactly(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    """In bf16, where the rates are those of the masters; the test below is in float32."""
    whole = cfg(tiny_flux, image_folder, tmp_path, 4, lora_weight_dtype="bf16")
    straight, code = train_here(whole)
    assert code == 0, events(straight, "error")
    half, _ = train_here(cfg(tiny_flux, image_folder, tmp_path, 2, lora_weight_dtype="bf16"))
    dump(whole, half.config_path, whole=True)
    _, code = train_here(whole, half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    for part in ("lora", "optimizer", "scheduler"):
        assert same(state_of(half)[part], state_of(straight)[part])
    groups = state_of(straight)["optimizer"]["param_groups"]
    assert [group["initial_lr"] for group in groups] == [0.01, 0.04, 0.02, 0.08]
    assert {row["lr"] for row in rows(straight)} == {0.01}
    with safetensors.safe_open(straight.checkpoints_dir / "tiny.safetensors", "pt") as file:
        assert json.loads(file.metadata()["ss_network_args"])["loraplus_lr_ratio"] == 4.0


def test_the_schedule_is_for_both_and_a_resume_takes_another_ratio_but_not_none(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    run, code = train_here(cfg(tiny_flux, image_folder, tmp_path, 3, "linear"))
    assert code == 0, events(run, "error")
    assert [row["lr"] for row in rows(run)] == pytest.approx([0.01, 0.02 / 3, 0.01 / 3])
    other = cfg(tiny_flux, image_folder, tmp_path, 4, "linear", loraplus_lr_ratio=8.0)
    dump(other, run.config_path, whole=True)
    _, code = train_here(other, run, resume=True)
    assert code == 0, events(run, "error")
    state = state_of(run)
    assert state["scheduler"]["base_lrs"] == [0.01, 0.08, 0.02, 0.16]
    assert rows(run)[-1]["lr"] == pytest.approx(0.01 / 4)
    off = cfg(tiny_flux, image_folder, tmp_path, 5, "linear", loraplus_lr_ratio=1.0)
    dump(off, run.config_path, whole=True)
    _, code = train_here(off, run, resume=True)
    assert code != 0 and "network.loraplus_lr_ratio (on, now off)" in events(run, "error")[-1]["text"]


def test_lengths_of_a_dora_learn_at_the_rate_of_a() -> None:
    model = make_tiny_denoiser()
    lora = inject(model, find_targets(model, ["attn.to_q"]), rank=2, alpha=2.0, dropout=0.0, seed=1, kind="dora")
    slow, fast = groups(lora, list(lora.layers), None, 1e-2, 16.0)
    assert len(slow["params"]) == 2 * len(lora.layers) and fast["lr"] == 0.16
    assert {id(part) for part in fast["params"]} == {id(lora.pair(path)[1]) for path in lora.layers}
