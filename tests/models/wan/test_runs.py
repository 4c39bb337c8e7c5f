"""Whole runs of Wan on pictures: train, validate, save, reload in diffusers' pipeline, stop and resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline

from backend.config.schema import Config
from tests.tiny import comfy_maps, originals
from tests.tiny.anima import _tiny
from tests.tiny.single_files import words
from tests.tiny.training import config, events, lora_of, rows, same, train_here
from tests.tiny.wan import autoencoder, denoiser, make_tiny_denoiser, published, umt5


def settings(base: Path, images: Path, where: Path, **changes: dict) -> Config:
    sections: dict[str, dict] = {
        "model": {"family": "wan", "text_length": 64},
        "dataset": {"validation_split": 0.25},
        "compile": {"compile": False, "shape_mode": "off"},
        "training": {"max_train_steps": 4},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return config(base, images, where, **sections)


@pytest.mark.slow
def test_a_run_makes_the_planned_graphs_and_loads_in_diffusers(
    tiny_wan: Path, image_folder: Path, tmp_path: Path
) -> None:
    cfg = settings(
        tiny_wan, image_folder, tmp_path,
        compile={"compile": True, "compile_backend": "aot_eager", "shape_mode": "static", "caption_buckets": [64, 128]},
        validation={"validate_at_start": True},
        saving={"save_layout": "diffusers"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [event["step"] for event in events(run, "validation")] == [0, 4]
    pipeline = WanPipeline.from_pretrained(tiny_wan, local_files_only=True)
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    given = {
        "hidden_states": torch.randn(1, 4, 1, 8, 8, generator=torch.Generator().manual_seed(1)),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.zeros(1, 512, 16),
    }
    with torch.no_grad():
        trained = pipeline.transformer(**given, return_dict=False)[0]
        pipeline.disable_lora()
        assert not torch.allclose(trained, pipeline.transformer(**given, return_dict=False)[0], atol=1e-4)


def test_a_resumed_run_is_the_straight_one_and_trimming_and_swap_change_nothing(
    tiny_wan: Path, image_folder: Path, tmp_path: Path
) -> None:
    whole = {"model": {"text_length": 512}, "compile": {"shape_mode": "static"}}
    straight, code = train_here(settings(tiny_wan, image_folder, tmp_path, **whole))
    assert code == 0, events(straight, "error")
    half, _ = train_here(settings(tiny_wan, image_folder, tmp_path, training={"max_train_steps": 2}, **whole))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, code = train_here(settings(tiny_wan, image_folder, tmp_path, **whole), half, resume=True)
    assert code == 0, events(half, "error")
    losses = [row["loss"] for row in rows(straight)]
    assert [row["loss"] for row in rows(half)] == losses and len(losses) == 4
    assert same(lora_of(half, Path(events(half, "done")[-1]["lora"]).name), lora_of(straight))
    trimmed_cfg = settings(
        tiny_wan, image_folder, tmp_path, model={"text_length": 512},
        compile={"shape_mode": "static", "caption_buckets": [64]}, training={"gradient_checkpointing": True},
        memory={"blocks_to_swap": 3},
    )  # fmt: skip
    trimmed, code = train_here(trimmed_cfg)
    assert code == 0, events(trimmed, "error")
    assert [event["blocks"] for event in events(trimmed, "swap") if event["moved"]] == [3]
    assert [row["loss"] for row in rows(trimmed)] == pytest.approx(losses, rel=1e-4)
    # by ComfyUI's names, native ones alone
    stems = {key.split(".")[0] for key in lora_of(straight)}
    assert stems <= comfy_maps.published(published(make_tiny_denoiser().state_dict()))


def wan_files(tiny_wan: Path, where: Path) -> dict[str, str]:
    """The settings of [model] that give a tiny Wan as ComfyUI's users have it: three files, a tokenizer's folder."""
    shutil.copytree(tiny_wan / "tokenizer", where / "tokenizer")
    net = _tiny(lambda: denoiser(latent=16, attention_head_dim=128, num_attention_heads=1), 0)
    text = _tiny(lambda: umt5(words(where / "tokenizer")), 2)
    vae = originals.wan(_tiny(lambda: autoencoder(16), 3).state_dict())
    single = originals.in_fp8(published(net.state_dict(), "model.diffusion_model."))
    files = {
        "base_model": originals.write(where / "wan2.1_t2v_1.3B_fp8_scaled.safetensors", single),
        "text_encoder": originals.write(
            where / "umt5_xxl_fp8_e4m3fn_scaled.safetensors", originals.in_fp8(originals.t5_file(text.state_dict()))
        ),
        "vae": originals.write(where / "wan_2.1_vae.safetensors", vae),
        "tokenizer": where / "tokenizer",
    }
    return {name: str(path) for name, path in files.items()}


@pytest.mark.parametrize("kept", [None, "int8"])
def test_from_three_files_trains_and_goes_on_from_a_lora_of_musubi_tuner(
    tiny_wan: Path, image_folder: Path, tmp_path: Path, kept: str | None
) -> None:
    (tmp_path / "files").mkdir()
    files = wan_files(tiny_wan, tmp_path / "files")
    memory = {} if kept is None else {"memory": {"base_quantization": kept}}
    short = {"training": {"max_train_steps": 2}, **memory}
    run, code = train_here(settings(tiny_wan, image_folder, tmp_path, model=files, **short))
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 2
    assert len(lora_of(run)) == 3 * 3 * 10
    # the file has musubi-tuner's names
    first = str(run.checkpoints_dir / "tiny.safetensors")
    more = settings(tiny_wan, image_folder, tmp_path, model=files, network={"network_weights": first}, **short)
    second, code = train_here(more)
    assert code == 0, events(second, "error")
    assert rows(second)[0]["loss"] < rows(run)[0]["loss"]
