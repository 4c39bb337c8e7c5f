"""Runs that train a DoRA: compiled, checkpointed, swapped, quantised, resumed, with text encoders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from backend.config.schema import Config
from tests.conftest import draw_pictures
from tests.tiny import sdxl_runs as sdxl
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

DORA = {"network_type": "dora", "network_dim": 2, "targets_include": ["attn.to_q", "attn.to_k", "ff.net.2"]}

# Halves what is traced; training/test_compiled.py has runs with both classes.
EAGER = [{"blocks": "double", "compile": False}]

PROMPT = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2, "seed": 5, "text_length": 16}


def settings(base: Path, images: Path, where: Path, **changes: dict) -> Config:
    usual = {
        "network": DORA,
        "optimizer": {"lr_scheduler": "constant", "lr_warmup": 0.0, "learning_rate": 0.02},
        "training": {"max_train_steps": 4},
    }
    for section, values in changes.items():
        usual[section] = {**usual.get(section, {}), **values}
    return config(base, images, where, **usual)


def test_a_run_makes_the_planned_graphs_and_resumes_exactly(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """In bf16, where the state has the masters and float32 lengths. One class of blocks is compiled."""

    def cfg(steps: int, compiled: bool = False) -> Config:
        return settings(
            tiny_flux, image_folder, tmp_path,
            network={"lora_weight_dtype": "bf16"},
            compile={"compile": compiled, "compile_backend": "aot_eager", "shape_mode": "static",
                     "compile_blocks": EAGER},
            training={"max_train_steps": steps},
        )  # fmt: skip

    straight, code = train_here(cfg(4))
    assert code == 0, events(straight, "error")
    graphs, code = train_here(cfg(2, compiled=True))
    assert code == 0, events(graphs, "error")
    last, planned = rows(graphs)[-1], events(graphs, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [row["loss"] for row in rows(graphs)] == pytest.approx([row["loss"] for row in rows(straight)[:2]], rel=1e-3)
    half, _ = train_here(cfg(2))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, code = train_here(cfg(4), half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    assert same(state_of(half), state_of(straight))
    lengths = {name: value for name, value in state_of(straight)["lora"].items() if name.endswith(".dora_scale")}
    assert len(lengths) == len(state_of(straight)["lora"]) / 3
    start = safetensors.torch.load_file(next((tiny_flux / "transformer").glob("*.safetensors")))
    for name, value in lengths.items():
        moved = (value - start[name.replace("dora_scale", "weight")].norm(dim=1, keepdim=True)).abs()
        assert moved.max() > 0.01
    with safetensors.safe_open(straight.checkpoints_dir / "tiny.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["ss_network_module"] == "lycoris.kohya"
    arguments = json.loads(metadata["ss_network_args"])
    assert (arguments["algo"], arguments["dora_wd"]) == ("lora", "True")


def test_memory_changes_nothing(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    """Two kinds of checkpointing, each with swapped blocks, of which some are trained and some are not; compiled too.

    Three settings at once: any one that changed something would show, and test_swap.py has them one by one.
    """
    ways: list[dict] = [{}, {"kind": "offload", "swap": 4}, {"kind": "selective", "swap": 3, "compile": True}]
    network = {"targets_include": ["single_transformer_blocks.0.attn.to_q", "transformer_blocks.*"]}
    seen = []
    for way in ways:
        kind = way.get("kind")
        cfg = settings(
            tiny_flux, image_folder, tmp_path, network=network,
            training={"gradient_checkpointing": kind is not None},
            memory={"checkpointing_kind": kind or "auto", "blocks_to_swap": way.get("swap", 0)},
            compile={"compile": way.get("compile", False), "compile_backend": "eager", "compile_blocks": EAGER},
            sampling={"prompts": [{**PROMPT, "steps": 1, "lora_scale": 0.5}]},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        drawn = np.asarray(Image.open(run.samples()[-1].path))
        seen.append(([row["loss"] for row in rows(run)], lora_of(run), drawn))
    losses, trained, drawn = seen[0]
    for other_losses, other_trained, other_drawn in seen[1:]:
        assert other_losses == losses and same(other_trained, trained) and (other_drawn == drawn).all()


def test_a_quantised_base_starts_as_with_a_lora_and_trains(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    """The lengths of each format's weights are held in test_dora.py."""
    first_losses = {}
    for network in ("lora", "dora"):
        cfg = settings(
            tiny_flux, image_folder, tmp_path,
            network={"network_type": network, "lora_fused": True},
            memory={"base_quantization": "int8"},
            compile={"compile": network == "dora", "compile_backend": "eager", "shape_mode": "static",
                     "compile_blocks": EAGER},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        first_losses[network] = [row["loss"] for row in rows(run)]
    assert rows(run)[-1]["graphs"] > rows(run)[-1]["breaks"] == rows(run)[-1]["recompiles"] == 0
    assert first_losses["dora"][0] == pytest.approx(first_losses["lora"][0], rel=1e-5)
    assert first_losses["dora"][-1] != pytest.approx(first_losses["lora"][-1], rel=1e-3)


def test_a_file_of_either_layout_is_gone_on_from_and_strength_0_draws_the_base(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    for layout in ("diffusers", "kohya"):
        cfg = settings(
            tiny_flux, image_folder, tmp_path, saving={"save_layout": layout},
            sampling={"prompts": [PROMPT, {**PROMPT, "lora_scale": 0.0}] * (layout == "kohya"),
                      "sample_at_start": layout == "kohya"},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        file = run.checkpoints_dir / "tiny.safetensors"
        still = {"learning_rate": 0.0, "weight_decay": 0.0}
        again = settings(
            tiny_flux, image_folder, tmp_path, saving={"save_layout": layout}, optimizer=still,
            network={"network_weights": str(file)}, training={"max_train_steps": 1},
        )  # fmt: skip
        second, code = train_here(again)
        assert code == 0, events(second, "error")
        for key, value in lora_of(second).items():
            torch.testing.assert_close(value, lora_of(run)[key], rtol=1e-5, atol=1e-6)
    samples = {(s.step, s.prompt_index): np.asarray(Image.open(s.path)).astype(int) for s in run.samples()}
    assert (samples[4, 1] == samples[0, 0]).all()
    assert np.abs(samples[4, 0] - samples[0, 0]).max() > 3


def test_text_encoders_train_theirs_too(tiny_sdxl: Path, tmp_path: Path) -> None:
    """In convolutions as well, and diffusers gives the same text and picture from the file."""
    pictures = draw_pictures(tmp_path / "few", ((128, 128),) * 3)
    cfg = sdxl.settings(
        "sdxl", tiny_sdxl, pictures, tmp_path,
        network={"network_type": "dora", "network_dim": 4, "conv_dim": 2, "train_text_encoder": True,
                 "targets_include": ["attn2.to_k", "attn2.to_v"]},
        optimizer={"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
        training={"max_train_steps": 2},
        saving={"save_layout": "diffusers"},
        sampling={"prompts": [sdxl.PROMPT]},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    keys = [key for key in lora_of(run) if key.endswith(".lora_magnitude_vector.weight")]
    assert {key.partition(".")[0] for key in keys} == {"unet", "text_encoder", "text_encoder_2"}
    pipeline = sdxl.pipeline_of("sdxl", tiny_sdxl)
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    drawn = pipeline(
        "a red circle", negative_prompt="", width=128, height=128, num_inference_steps=3, guidance_scale=4.0,
        generator=torch.Generator("cpu").manual_seed(5),
    )  # fmt: skip
    sample = np.asarray(Image.open(run.samples()[-1].path)).astype(int)
    assert np.abs(sample - np.asarray(drawn.images[0]).astype(int)).max() <= 1
