"""One expert of Wan 2.2 14B (wan22, wan22_i2v): forward, files, and whole runs on its range of noise."""

from __future__ import annotations

import io
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.families.wan.expert_facts import FACTS, I2V
from backend.lora_tools.__main__ import main as tools
from backend.memory import checkpointing
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import open_part
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import originals
from tests.tiny.anima import _tiny
from tests.tiny.clips import write_clip
from tests.tiny.shapes import assert_equal_runs, relative
from tests.tiny.single_files import words
from tests.tiny.training import config, events, lora_of, straight_run_that_a_resumed_one_repeats, train_here
from tests.tiny.wan import autoencoder, make_tiny_denoiser, published, umt5
from tests.tiny.wan_forward import make_start_batch, model_with_lora, ours, theirs
from tests.tiny.wan_loras import assert_comfyui_takes

CPU = LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family("wan22_i2v")
CHANNELS = {"in_channels": 12, "out_channels": 4}


@pytest.mark.parametrize("mode", ["off", "static"])
def test_wan22_i2v_equals_diffusers_own_call_in_output_and_gradients(mode: str) -> None:
    batch = make_start_batch([(2, 8, 8), (3, 4, 8)], [9, 40], tokens=0)
    wanted = theirs(model_with_lora(**CHANNELS), batch)
    for kind in ("off", "block"):
        model = model_with_lora(**CHANNELS)
        checkpointing.apply(model, kind)
        output = ours(model, batch, ShapeRuntime(mode, 40, None, 512))
        assert all(relative(got, want) < 1e-5 for got, want in zip(output[0], wanted[0], strict=True))
        assert_equal_runs(output, wanted, 5e-4)


def test_wan22_i2v_is_told_of_its_first_frame_by_latents_alone(tiny_wan22_i2v: Path) -> None:
    row = CODE.load_vae(tiny_wan22_i2v, CPU).encode_row(torch.rand(3, 5, 32, 48) * 2 - 1)
    assert set(row) == {"latent", "start"} and row["start"].shape == (8, 2, 4, 6)
    assert torch.equal(row["start"][:4, 0], torch.ones(4, 4, 6)) and not row["start"][:4, 1].any()


def expert(path: Path, **changes: int) -> Path:
    net = make_tiny_denoiser(3, latent=16, attention_head_dim=128, num_attention_heads=1, **changes)
    return originals.write(path, published(net.state_dict()))


def test_experts_of_wan22_are_told_from_other_wan_models(
    tmp_path: Path, tiny_wan22: Path, tiny_wan22_i2v: Path
) -> None:
    def message_of(name: str, path: Path, **files: Path) -> str:
        return " ".join(p.sentence() for p in family(name).check_base_model(BaseModelFiles(path, files)))

    for name, folder in (("wan22", tiny_wan22), ("wan22_i2v", tiny_wan22_i2v)):
        assert family(name).check_base_model(folder) == []
    assert "family wan22." in message_of("wan", tiny_wan22)
    assert "family wan22_i2v" in message_of("wan_i2v", tiny_wan22_i2v)
    vae = originals.write(tmp_path / "vae.safetensors", originals.wan(_tiny(lambda: autoencoder(16), 3).state_dict()))
    path = expert(tmp_path / "wan2.2_i2v_low_noise_14B_fp16.safetensors", in_channels=36)
    assert "family wan22_i2v" in message_of("wan22", path, vae=vae) and "wan22_i2v" in message_of("wan", path, vae=vae)
    config = open_part(BaseModelFiles.at(path), I2V.denoiser).config()
    assert (config["in_channels"], config["out_channels"], config["image_dim"]) == (36, 16, None)


def test_the_shipped_config_is_a_wan22_experts_size() -> None:
    with torch.device("meta"):
        nets = [load_family(f.name).model.from_config(BaseModelFiles(None).config(f.denoiser)) for f in (FACTS, I2V)]
    counts = [sum(p.numel() for p in net.parameters()) for net in nets]
    assert counts == [14_288_491_584, 14_288_901_184]


@pytest.mark.parametrize("name", ["wan22", "wan22_i2v"])
def test_an_expert_trains_on_clips_at_its_own_noise_from_its_single_file(
    name: str, tiny_wan: Path, tmp_path: Path
) -> None:
    """Levels of the low-noise expert alone, resumed and swapped as the straight run."""
    folder, files = tmp_path / "clips", tmp_path / "files"
    for number in range(2):
        write_clip(folder / f"clip_{number}.mp4", 12, size=(64, 48))
        (folder / f"clip_{number}.txt").write_text(f"a grey clip {number}", encoding="utf-8")
    shutil.copytree(tiny_wan / "tokenizer", files / "tokenizer")
    text = _tiny(lambda: umt5(words(files / "tokenizer")), 2)
    vae = originals.wan(_tiny(lambda: autoencoder(16), 3).state_dict())
    own = {"in_channels": 36} if name == "wan22_i2v" else {}
    model = {
        "base_model": expert(files / "wan2.2_low_noise_14B_fp16.safetensors", **own),
        "vae": originals.write(files / "wan_2.1_vae.safetensors", vae),
        "text_encoder": originals.write(files / "umt5_xxl_fp16.safetensors", originals.t5_file(text.state_dict())),
        "tokenizer": files / "tokenizer",
    }
    sections = {
        "model": {"family": name, "text_length": 512, **{part: str(path) for part, path in model.items()}},
        "video": {"target_frames": [5]},
        "compile": {"compile": False, "shape_mode": "static"},
        "timesteps": {"max_timestep": 875},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
    }

    settings = partial(config, model["base_model"], folder, tmp_path, **sections)
    run = straight_run_that_a_resumed_one_repeats(settings, steps=2)
    assert_comfyui_takes(lora_of(run))


def test_the_whole_expert_for_low_noise_is_saved_as_such_and_the_tools_read_and_write_it(
    tiny_wan22: Path, image_folder: Path, tmp_path: Path
) -> None:
    """Full fine-tuning writes transformer_2; its LoRA is extracted and merged there, and the other expert stays."""
    cfg = config(
        tiny_wan22, image_folder, tmp_path,
        model={"family": "wan22", "text_length": 512},
        timesteps={"train_experts": "low"},
        training={"kind": "full", "max_train_steps": 1},
        optimizer={"learning_rate": 1e-3, "lr_warmup": 0.0},
        saving={"model_layout": "diffusers"},
        network={"targets_include": [r"blocks\.0\.attn1\..*"]},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    tuned = run.checkpoints_dir / "tiny"
    assert [path.name for path in tuned.iterdir()] == ["transformer_2"]
    lora, merged = tmp_path / "low.safetensors", tmp_path / "merged"
    text, tool = io.StringIO(), ["--base", str(tiny_wan22), "--expert", "low"]
    extract = ["extract", *tool, "--tuned", str(tuned), "--rank", "32", "--precision", "fp32"]
    assert tools([*extract, "--out", str(lora)], Console(file=text)) == 0, text.getvalue()
    assert tools(["merge", *tool, "--lora", str(lora), "--out", str(merged)], Console(file=text, width=400)) == 0
    assert "the expert for high noise (transformer) stays as it is; --expert high" in text.getvalue()

    def weights(folder: Path, part: str) -> dict[str, torch.Tensor]:
        return load_file(folder / part / "diffusion_pytorch_model.safetensors")

    before, wanted, entries = (weights(folder, "transformer_2") for folder in (tiny_wan22, tuned, merged))
    changed = {name for name, value in before.items() if not value.equal(wanted[name])}
    assert changed and all(name.startswith("blocks.0.attn1.") for name in changed)
    for name in changed:
        if name.endswith("weight") and "norm" not in name:
            torch.testing.assert_close(entries[name], wanted[name], atol=1e-5, rtol=1e-4)
    one, other = weights(tiny_wan22, "transformer"), weights(merged, "transformer")
    assert all(value.equal(other[name]) for name, value in one.items())
