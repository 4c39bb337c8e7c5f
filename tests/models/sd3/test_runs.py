"""Whole runs of SD3.5: train, sample, validate, save, reload in diffusers' pipeline, stop and resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from PIL import Image
from torch import nn

from backend.config.schema import Config
from backend.families.sd3.facts import FACTS
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from tests.tiny import originals
from tests.tiny.anima import _tiny
from tests.tiny.sd3 import denoiser
from tests.tiny.sd3_forward import trained
from tests.tiny.single_files import words
from tests.tiny.training import config, events, lora_of, rows, same, train_here

PROMPT = {"prompt": "a red circle", "negative_prompt": "a dog", "width": 64, "height": 64, "steps": 3, "seed": 5}
PROMPT |= {"true_cfg_scale": 4.0}
TOKENIZERS = ("tokenizer", "tokenizer_2", "tokenizer_3")
# of every kind; few, since each is traced
TARGETS = [r".*\.attn2?\.to_v", "attn.add_q_proj", "ff.net.2", "ff_context.net.0.proj"]


def settings(base: Path, images: Path, where: Path, **changes: dict) -> Config:
    sections: dict[str, dict] = {
        "model": {"family": "sd3", "text_length": 24},
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
    tiny_sd3: Path, image_folder: Path, tmp_path: Path
) -> None:
    cfg = settings(
        tiny_sd3, image_folder, tmp_path,
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static"},
        sampling={"prompts": [PROMPT, {**PROMPT, "lora_scale": 0.0}], "sample_at_start": True},
        validation={"validate_at_start": True}, saving={"save_layout": "diffusers"},
        network={"targets_include": TARGETS},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    # of each of the three block classes one graph to train and one without gradients
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned == 6
    assert [event["step"] for event in events(run, "validation")] == [0, 4]
    assert not [event for event in events(run, "warning") if "ComfyUI" in event["text"]]
    samples = {(s.step, s.prompt_index): Image.open(s.path) for s in run.samples()}
    assert samples[4, 1].tobytes() == samples[0, 1].tobytes() == samples[0, 0].tobytes()
    # diffusers' pipeline and LoRA mixin draw the same picture: strength, names, levels, guidance
    pipeline = StableDiffusion3Pipeline.from_pretrained(tiny_sd3)
    pipeline.set_progress_bar_config(disable=True)

    def draw() -> np.ndarray:
        drawn = pipeline(
            "a red circle", negative_prompt="a dog", guidance_scale=4.0, width=64, height=64, num_inference_steps=3,
            max_sequence_length=24, generator=torch.Generator("cpu").manual_seed(5),
        )  # fmt: skip
        return np.asarray(drawn.images[0]).astype(int)

    without = draw()
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    ours = np.asarray(samples[4, 0]).astype(int)
    assert np.abs(ours - draw()).max() <= 1
    assert np.abs(ours - without).max() > 3
    assert np.abs(np.asarray(samples[0, 0]).astype(int) - without).max() <= 1


def test_a_run_with_swap_and_checkpointing_that_is_resumed_is_the_straight_one_without(
    tiny_sd3: Path, image_folder: Path, tmp_path: Path
) -> None:
    static = {"compile": {"shape_mode": "static"}}
    straight, done = train_here(settings(tiny_sd3, image_folder, tmp_path, **static))
    assert done == 0, events(straight, "error")
    static |= {"memory": {"blocks_to_swap": 3}}
    both = {steps: {"max_train_steps": steps, "gradient_checkpointing": True} for steps in (2, 4)}
    half, _ = train_here(settings(tiny_sd3, image_folder, tmp_path, training=both[2], **static))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, done = train_here(settings(tiny_sd3, image_folder, tmp_path, training=both[4], **static), half, resume=True)
    assert done == 0, events(half, "error")
    assert [event["blocks"] for event in events(half, "swap")] == [3, 3]
    losses = [row["loss"] for row in rows(straight)]
    assert [row["loss"] for row in rows(half)] == losses and len(losses) == 4
    assert same(lora_of(half, Path(events(half, "done")[-1]["lora"]).name), lora_of(straight))


def checkpoint(where: Path, tokenizers: Path) -> tuple[dict[str, str], nn.Module]:
    """[model] as Stability AI's ``sd3_medium_incl_clips_t5xxlfp8`` has all in one, and its transformer."""
    for name in TOKENIZERS:
        shutil.copytree(tokenizers / name, where / name)
    net = _tiny(lambda: denoiser(latent=16, joint_attention_dim=256, pooled_projection_dim=192), 0)
    first = originals.clip(words(where / "tokenizer"), "CLIPTextModelWithProjection", 64)
    second = originals.clip(words(where / "tokenizer_2"), "CLIPTextModelWithProjection", 128, "gelu")
    encoders = {
        "clip_l": {n: v for n, v in originals.hf_clip(first.state_dict()).items() if n != "text_projection.weight"},
        "clip_g": originals.hf_clip(second.state_dict()),
        "t5xxl": originals.t5_file(originals.t5(words(where / "tokenizer_3"), 256).state_dict()),
    }
    path = originals.write(
        where / "sd3.5_medium_incl_clips_t5xxl.safetensors",
        originals.behind("model.diffusion_model.", originals.mmdit(net.state_dict())),
        originals.behind("first_stage_model.", originals.ldm_vae(originals.autoencoder().state_dict())),
        *(originals.behind(f"text_encoders.{name}.transformer.", state) for name, state in encoders.items()),
    )
    return {"base_model": str(path), **{name: str(where / name) for name in TOKENIZERS}}, net


def test_from_a_checkpoint_with_its_text_encoders_goes_on_from_loras_of_both_layouts(
    tiny_sd3: Path, image_folder: Path, tmp_path: Path
) -> None:
    """From diffusers' layout and saved in kohya's, from there and saved in diffusers', learning nothing on the way."""
    model, net = checkpoint(tmp_path / "files", tiny_sd3)
    names = names_of(linear_layers(net), FACTS)
    _, lora = trained(list(FACTS.default_targets), rank=4)
    given = tmp_path / "given.safetensors"
    # of a denoiser with the same blocks
    write_lora(given, file_tensors(lora, "fp32", names, "diffusers"), {})
    wanted = read_lora(given, names)
    for layout in ("kohya", "diffusers"):
        cfg = settings(
            tiny_sd3, image_folder, tmp_path, model=model, training={"max_train_steps": 1},
            optimizer={"learning_rate": 1e-12}, saving={"save_layout": layout}, sampling={"prompts": [PROMPT]},
            network={"network_weights": str(given)},
        )  # fmt: skip
        run, done = train_here(cfg)
        assert done == 0, events(run, "error")
        assert len(rows(run)) == 1 and events(run, "sample")
        given = run.checkpoints_dir / "tiny.safetensors"
        found = read_lora(given, names)
        assert found.pairs.keys() == wanted.pairs.keys()
        for path, (a, b) in wanted.pairs.items():
            here = found.scales[path] * (found.pairs[path][1] @ found.pairs[path][0])
            torch.testing.assert_close(here, wanted.scales[path] * (b @ a))
        if layout == "kohya":
            # fused as in the checkpoint: down, up and alpha of qkv, out and both of the feed-forward, by stream
            assert len(lora_of(run)) == 3 * (5 * 4 + 5 * 1 + 4 * 3 + 2 * 2)
