"""Whole runs of Wan on pictures, loaded in diffusers; tests/families/test_runs.py has the others."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline

from tests.tiny import originals
from tests.tiny.anima import _tiny
from tests.tiny.single_files import words
from tests.tiny.training import events, family_config, lora_of, rows, train_here
from tests.tiny.wan import autoencoder, denoiser, published, umt5

settings = partial(family_config, "wan")


@pytest.mark.slow
def test_a_run_makes_the_planned_graphs_and_loads_in_diffusers(
    tiny_wan: Path, image_folder: Path, tmp_path: Path
) -> None:
    cfg = settings(
        tiny_wan, image_folder, tmp_path,
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static", "caption_buckets": [64, 128]},
        validation={"validate_at_start": True},
        saving={"save_layout": "diffusers"}, network={"targets_include": [r".*attn\d\.to_k", "ffn.net.2"]},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [event["step"] for event in events(run, "validation")] == [0, 4]
    pipeline = WanPipeline.from_pretrained(tiny_wan, local_files_only=True)
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    inputs = {
        "hidden_states": torch.randn(1, 4, 1, 8, 8, generator=torch.Generator().manual_seed(1)),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.zeros(1, 512, 16),
    }
    with torch.no_grad():
        trained = pipeline.transformer(**inputs, return_dict=False)[0]
        pipeline.disable_lora()
        assert not torch.allclose(trained, pipeline.transformer(**inputs, return_dict=False)[0], atol=1e-4)


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


def test_from_three_files_trains_and_goes_on_from_a_lora_of_musubi_tuner(
    tiny_wan: Path, image_folder: Path, tmp_path: Path
) -> None:
    """On weights as they are, and then in 8 bits."""
    (tmp_path / "files").mkdir()
    files = wan_files(tiny_wan, tmp_path / "files")
    short = {"training": {"max_train_steps": 2}}
    run, code = train_here(settings(tiny_wan, image_folder, tmp_path, model=files, **short))
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 2
    assert len(lora_of(run)) == 3 * 3 * 10
    # the file has musubi-tuner's names
    first = str(run.checkpoints_dir / "tiny.safetensors")
    short["memory"] = {"base_quantization": "int8"}
    more = settings(tiny_wan, image_folder, tmp_path, model=files, network={"network_weights": first}, **short)
    second, code = train_here(more)
    assert code == 0, events(second, "error")
    assert rows(second)[0]["loss"] < rows(run)[0]["loss"]
