"""What single settings do in a whole run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors
import torch
from accelerate import Accelerator

from backend.config.schema import Config
from backend.runs.control import Control
from backend.runs.folder import Run
from backend.training import prepare
from backend.training.requests import Requests
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, lora_of, rows, state_of, train_here

PLAIN = {"optimizer": "sgd", "weight_decay": 0.0, "lr_scheduler": "constant", "lr_warmup": 0.0, "max_grad_norm": 0.0}


@pytest.fixture(autouse=True)
def not_deterministic() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def trained(cfg: Config) -> Run:
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    return run


def b_of(run: Run) -> torch.Tensor:
    return torch.cat([value.flatten() for key, value in lora_of(run).items() if ".lora_up." in key])


def test_accumulated_gradients_are_the_mean_of_their_batches(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """At a tiny rate two steps see the same weights, so that they move twice as far as one step of both batches."""

    def moved(steps: int, accumulation: int) -> Run:
        training = {"max_train_steps": steps, "gradient_accumulation_steps": accumulation}
        slow = {**PLAIN, "learning_rate": 1e-6}
        return trained(config(tiny_flux, image_folder, tmp_path, training=training, optimizer=slow))

    single, both = moved(4, 1), moved(2, 2)
    assert torch.allclose(b_of(single), 2 * b_of(both), rtol=1e-3, atol=1e-9) and b_of(both).abs().max() > 0
    losses = [row["loss"] for row in rows(single)]
    means = [(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2]
    assert [row["loss"] for row in rows(both)] == pytest.approx(means, rel=1e-4)


def test_clipping_shortens_the_step_and_the_row_tells_the_whole_length(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    def one_step(limit: float) -> Run:
        clipped = {**PLAIN, "learning_rate": 1.0, "max_grad_norm": limit}
        return trained(config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 1}, optimizer=clipped,
                              network={"network_dim": 4, "network_alpha": 4.0}))  # fmt: skip

    free, clipped = one_step(0.0), one_step(0.01)
    length = rows(free)[0]["grad_norm"]
    assert length == rows(clipped)[0]["grad_norm"] > 0.01
    assert b_of(free).norm() == pytest.approx(length, rel=1e-4)
    assert b_of(clipped).norm() == pytest.approx(0.01, rel=1e-3)


def test_under_a_loss_scale_gradients_are_clipped_and_told_at_their_own_length(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fp16 has it on a card, with torch's scaler for the CPU, which accelerate does not make by itself."""

    def one_step() -> Run:
        clipped = {**PLAIN, "learning_rate": 1.0, "max_grad_norm": 0.01}
        training = {"max_train_steps": 1, "gradient_accumulation_steps": 2}
        return trained(config(tiny_flux, image_folder, tmp_path, training=training, optimizer=clipped,
                              network={"network_dim": 4, "network_alpha": 4.0}))  # fmt: skip

    plain = one_step()
    made = prepare.make_accelerator

    def with_scale(*arguments: object) -> Accelerator:
        accelerator = made(*arguments)
        accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", init_scale=1024.0), True
        accelerator.state._mixed_precision = "fp16"
        return accelerator

    monkeypatch.setattr(prepare, "make_accelerator", with_scale)
    scaled = one_step()
    assert state_of(scaled)["scaler"]["scale"] == 1024.0
    for name in ("loss", "grad_norm"):
        assert rows(scaled)[0][name] == pytest.approx(rows(plain)[0][name], rel=0.02)
    assert b_of(scaled).norm() == pytest.approx(0.01, rel=1e-3)


def test_checkpointing_changes_no_gradient_also_with_dropout(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    def run(checkpointing: bool) -> Run:
        return trained(
            config(tiny_flux, image_folder, tmp_path, network={"network_dropout": 0.3},
                   training={"max_train_steps": 4, "gradient_checkpointing": checkpointing, "deterministic": True})
        )  # fmt: skip

    kept, recomputed = run(False), run(True)
    for key, value in lora_of(recomputed).items():
        assert torch.allclose(value, lora_of(kept)[key], rtol=1e-4, atol=1e-6), key
    assert [r["loss"] for r in rows(recomputed)] == pytest.approx([r["loss"] for r in rows(kept)], rel=1e-5)


def test_epochs_rule_and_saves_come_at_their_ends_and_the_last_few_stay(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """8 pictures, 3 batches a step: epochs end in steps 3, 6 and 8."""
    cfg = config(
        tiny_flux, image_folder, tmp_path,
        training={"max_train_steps": None, "max_train_epochs": 3, "gradient_accumulation_steps": 3},
        saving={"save_every_n_epochs": 1, "save_last_n": 1},
    )  # fmt: skip
    run = trained(cfg)
    assert run.status().step == 8
    assert [event["step"] for event in events(run, "checkpoint")] == [3, 6, 8]
    assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == [
        "tiny-step00000006.safetensors",
        "tiny.safetensors",
    ]
    assert [row["epoch"] for row in rows(run)] == [0, 0, 1, 1, 1, 2, 2, 3]


def test_continuing_from_a_lora_starts_where_it_ended(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    measured = {"dataset": {"validation_split": 0.25}, "validation": {"validate_at_start": True}}
    network = {"network_dim": 2, "network_alpha": 4.0}
    first = trained(config(tiny_flux, image_folder, tmp_path, network=network, **measured))
    weights = str(first.checkpoints_dir / "tiny.safetensors")
    network = {"network_dim": 4, "network_alpha": 1.0, "network_weights": weights}
    second = trained(config(tiny_flux, image_folder, tmp_path, network=network, **measured))
    old, new = events(first, "validation"), events(second, "validation")
    assert new[0]["loss"] == pytest.approx(old[-1]["loss"], rel=1e-5) != old[0]["loss"]
    assert any("rank 2" in event["text"] and "padded to 4" in event["text"] for event in events(second, "warning"))


def test_bf16_arithmetic_trains_float32_weights(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    full = trained(config(tiny_flux, image_folder, tmp_path))
    for changes in ({"training": {"mixed_precision": "bf16"}}, {"model": {"weight_dtype": "bf16"}}):
        half = trained(config(tiny_flux, image_folder, tmp_path, **changes))
        assert [r["loss"] for r in rows(half)] == pytest.approx([r["loss"] for r in rows(full)], rel=0.05)
        assert rows(half)[-1]["loss"] != rows(full)[-1]["loss"]
        state = half.state_dir / (half.state_dir / "latest").read_text() / "lora.safetensors"
        with safetensors.safe_open(state, "pt") as kept:
            assert {kept.get_slice(key).get_dtype() for key in kept.keys()} == {"F32"}  # noqa: SIM118


def test_the_file_tells_what_it_is(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    cfg = config(
        tiny_flux, image_folder, tmp_path,
        dataset={"folders": [{"path": str(image_folder), "num_repeats": 2}], "trigger_word": "sks"},
        network={"network_dim": 4, "network_alpha": 2.0}, optimizer={"lr_warmup": 0.3},
        loss={"loss_type": "huber", "huber_c": 0.2, "huber_schedule": "constant"},
        saving={"metadata_title": "Röhre", "metadata_license": "CC0-1.0", "save_precision": "bf16"},
    )  # fmt: skip
    with safetensors.safe_open(trained(cfg).checkpoints_dir / "tiny.safetensors", "pt") as file:
        metadata = file.metadata()
        weights = [key for key in file.keys() if not key.endswith(".alpha")]  # noqa: SIM118
        assert {file.get_slice(key).get_dtype() for key in weights} == {"BF16"}
    wanted = {
        "ss_v2": "False", "ss_base_model_version": "flux1", "ss_network_dim": "4", "ss_network_alpha": "2.0",
        "ss_steps": "6", "ss_num_train_images": "16", "ss_seed": "42", "modelspec.title": "Röhre",
        "modelspec.license": "CC0-1.0", "modelspec.trigger_phrase": "sks", "modelspec.resolution": "64x64",
        "modelspec.architecture": "flux-1-dev/lora", "ss_num_epochs": "1", "ss_num_batches_per_epoch": "16",
        "ss_lr_warmup_steps": "2", "ss_loss_type": "huber", "ss_huber_c": "0.2", "ss_huber_schedule": "constant",
    }  # fmt: skip
    assert wanted.items() <= metadata.items()
    # a flow model predicts nothing that ModelSpec has a word for, and a folder has no hash
    assert not metadata.keys() & {"modelspec.prediction_type", "ss_min_snr_gamma", "ss_sd_model_hash"}
    assert json.loads(metadata["ss_network_args"])["trained_alpha"] == 2.0
    assert json.loads(metadata["ss_dataset_dirs"]) == {"images": {"n_repeats": 2, "img_count": 8}}
    assert json.loads(metadata["ss_tag_frequency"])["images"]["sks"] == 8
    assert sum(b["count"] for b in json.loads(metadata["ss_bucket_info"])["buckets"].values()) == 8
    assert not any(str(tmp_path) in value for value in metadata.values())


def test_a_stop_ends_a_sample_between_its_steps_and_saves(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = {"prompt": "a dog", "width": 32, "height": 32, "steps": 9}
    cfg = config(
        tiny_flux, image_folder, tmp_path, sampling={"prompts": [prompt] * 3, "sample_every_n_steps": 2},
    )  # fmt: skip
    run = Run.create(cfg)
    drawing = lambda self: any(e["phase"] == "sample" for e in events(run, "phase"))  # noqa: E731
    monkeypatch.setattr(Requests, "stop", property(drawing))
    _, code = train_here(cfg, run)
    assert code == 0 and run.status().state == "stopped" and run.status().state_step == 2
    assert not events(run, "sample") and events(run, "stopped")[0]["step"] == 2


def test_a_stop_while_pictures_are_encoded_ends_at_once(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(tiny_flux, image_folder, tmp_path)
    run = Run.create(cfg)
    encoding = lambda self: any(e["phase"] == "cache_latents" for e in events(run, "phase"))  # noqa: E731
    monkeypatch.setattr(Requests, "stop", property(encoding))
    _, code = train_here(cfg, run)
    assert code == 0 and run.status().state == "stopped" and not run.has_state()
    assert not any(event["phase"] == "load" for event in events(run, "phase"))

    # A resumed run that is stopped before its first step stands where it was saved.
    state = run.state_dir / "step-00000004"
    state.mkdir()
    (state / "position.json").write_text('{"position": {"step": 4}}')
    (run.state_dir / "latest").write_text(state.name)
    _, code = train_here(cfg, run, resume=True)
    assert code == 0 and [event["step"] for event in events(run, "stopped")] == [0, 4]
    assert (run.status().state_step, run.status().resumable) == (4, True)


def test_a_sample_asked_for_without_prompts_is_answered(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(tiny_flux, image_folder, tmp_path)
    run = Run.create(cfg)
    begin = Run.begin_generation

    def ask(self: Run, step: int = 0) -> int:
        Control(self).request("sample")
        return begin(self, step)

    monkeypatch.setattr(Run, "begin_generation", ask)
    _, code = train_here(cfg, run)
    assert code == 0 and any("no sample prompts" in event["text"] for event in events(run, "warning"))
    assert Control(run).pending() == set()


def test_the_seed_decides_and_the_shape_mode_does_not(tiny_flux: Path, tmp_path: Path) -> None:
    pictures = draw_pictures(tmp_path / "square", ((64, 64),) * 4)

    def losses(seed: int, mode: str) -> list[float]:
        training = {"max_train_steps": 3, "seed": seed}
        compile = {"compile": False, "shape_mode": mode, "static_token_count": 20 if mode == "static" else None}
        return [
            r["loss"] for r in rows(trained(config(tiny_flux, pictures, tmp_path, training=training, compile=compile)))
        ]

    plain = losses(1, "off")
    assert losses(2, "off") != plain
    for mode in ("static", "exact_buckets", "dynamic"):
        assert losses(1, mode) == pytest.approx(plain, rel=1e-5), mode
