"""Whole runs of Anima: train, sample, validate, save, reload in diffusers' pipeline, stop and resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from backend.config.schema import Config
from tests.tiny import comfy_maps, originals
from tests.tiny.anima import _denoiser, _tiny, autoencoder, conditioner, make_tiny_denoiser, qwen
from tests.tiny.anima_pipeline import pipeline_of, published, without_torchvision
from tests.tiny.training import config, events, lora_of, rows, same, train_here

PROMPT = {"prompt": "a red circle", "negative_prompt": "", "width": 64, "height": 96, "steps": 3, "seed": 5}
PROMPT |= {"true_cfg_scale": 4.0}


def settings(base: Path, images: Path, where: Path, **changes: dict) -> Config:
    sections: dict[str, dict] = {
        "model": {"family": "anima", "text_length": 64},
        "dataset": {"validation_split": 0.25},
        "compile": {"compile": False, "shape_mode": "off"},
        "training": {"max_train_steps": 4},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return config(base, images, where, **sections)


@pytest.mark.slow
def test_a_run_makes_the_planned_graphs_and_draws_diffusers_sample(
    tiny_anima: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = settings(
        tiny_anima, image_folder, tmp_path,
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static", "caption_buckets": [64, 128]},
        sampling={"prompts": [PROMPT, {**PROMPT, "lora_scale": 0.0}], "sample_at_start": True},
        validation={"validate_at_start": True},
        saving={"save_layout": "diffusers"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [event["step"] for event in events(run, "validation")] == [0, 4]
    assert not [event for event in events(run, "warning") if "ComfyUI" in event["text"]]
    samples = {(s.step, s.prompt_index): Image.open(s.path) for s in run.samples()}
    assert samples[4, 1].tobytes() == samples[0, 1].tobytes() == samples[0, 0].tobytes()
    # diffusers' pipeline and LoRA mixin draw the same picture: strength, names, noise levels, guidance
    without_torchvision(monkeypatch)
    pipeline = pipeline_of(tiny_anima, guidance=4.0)

    def draw() -> np.ndarray:
        drawn = pipeline(
            prompt="a red circle", negative_prompt="", width=64, height=96, num_inference_steps=3,
            max_sequence_length=64, generator=torch.Generator("cpu").manual_seed(5), output="images",
        )  # fmt: skip
        return np.asarray(drawn[0]).astype(int)

    without = draw()
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    ours = np.asarray(samples[4, 0]).astype(int)
    assert np.abs(ours - draw()).max() <= 1
    assert np.abs(ours - without).max() > 3
    assert np.abs(np.asarray(samples[0, 0]).astype(int) - without).max() <= 1


def test_a_resumed_run_is_the_straight_one_and_trimming_and_swap_change_nothing(
    tiny_anima: Path, image_folder: Path, tmp_path: Path
) -> None:
    whole = {"model": {"text_length": 512}, "compile": {"shape_mode": "static"}}
    straight, code = train_here(settings(tiny_anima, image_folder, tmp_path, **whole))
    assert code == 0, events(straight, "error")
    half, _ = train_here(settings(tiny_anima, image_folder, tmp_path, training={"max_train_steps": 2}, **whole))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, code = train_here(settings(tiny_anima, image_folder, tmp_path, **whole), half, resume=True)
    assert code == 0, events(half, "error")
    losses = [row["loss"] for row in rows(straight)]
    assert [row["loss"] for row in rows(half)] == losses and len(losses) == 4
    assert same(lora_of(half, Path(events(half, "done")[-1]["lora"]).name), lora_of(straight))
    trimmed_cfg = settings(
        tiny_anima, image_folder, tmp_path, model={"text_length": 512},
        compile={"shape_mode": "static", "caption_buckets": [64]}, training={"gradient_checkpointing": True},
        memory={"blocks_to_swap": 3},
    )  # fmt: skip
    trimmed, code = train_here(trimmed_cfg)
    assert code == 0, events(trimmed, "error")
    assert [event["blocks"] for event in events(trimmed, "swap") if event["moved"]] == [3]
    assert [row["loss"] for row in rows(trimmed)] == pytest.approx(losses, rel=1e-4)
    # by ComfyUI's names, native ones alone
    stems = {key.split(".")[0] for key in lora_of(straight)}
    assert stems <= comfy_maps.published(published(make_tiny_denoiser().state_dict(), {}, ""))


def anima_files(tiny_anima: Path, where: Path) -> dict[str, str]:
    """The settings of [model] that give a tiny Anima as ComfyUI's users have it: three files, two tokenizer folders."""
    from tests.tiny.originals import wan
    from tests.tiny.single_files import words

    for name in ("tokenizer", "t5_tokenizer"):
        shutil.copytree(tiny_anima / name, where / name)
    net = _tiny(lambda: _denoiser(latent=16), 0)
    adapter = _tiny(lambda: conditioner(words(where / "t5_tokenizer")), 1)
    text = _tiny(lambda: qwen(words(where / "tokenizer")), 2)
    vae = wan(_tiny(lambda: autoencoder(16), 3).state_dict())
    single = published(net.state_dict(), adapter.state_dict(), "net.")
    files = {
        "base_model": originals.write(where / "anima-base-v1.0.safetensors", single),
        "text_encoder": originals.write(
            where / "qwen_3_06b_base.safetensors", originals.behind("model.", text.state_dict())
        ),
        "vae": originals.write(where / "qwen_image_vae.safetensors", vae),
        "tokenizer": where / "tokenizer",
        "tokenizer_2": where / "t5_tokenizer",
    }
    return {name: str(path) for name, path in files.items()}


def test_from_three_files_trains_samples_and_saves(tiny_anima: Path, image_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    cfg = settings(
        tiny_anima, image_folder, tmp_path, model=anima_files(tiny_anima, tmp_path / "files"),
        sampling={"prompts": [PROMPT]}, training={"max_train_steps": 2},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 2 and events(run, "sample")
    assert len(lora_of(run)) == 3 * 3 * 10
