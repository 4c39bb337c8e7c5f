"""Qwen-Image-Edit: its text, forward, samples and runs are those of diffusers' pipeline, control picture included."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import QwenImageEditPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from backend.config.schema import Config
from backend.dataset.items import DatasetScan, Scan
from backend.families.files.base_model import BaseModelFiles
from backend.families.qwen_image.edit_facts import ASKED, PICTURE, TEMPLATE_TOKENS
from backend.families.qwen_image.edit_facts import EDIT as FACTS
from backend.families.table import PIPELINES, family
from backend.lora.comfyui_keys import split_key
from backend.memory import checkpointing
from backend.models.family_classes import load_family
from backend.plan.graphs import Shape
from backend.plan.make_plan import plan_for
from backend.plan.memory.work import work_of
from backend.plan.texts import token_counter
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import comfy_maps, originals
from tests.tiny.forward import Batch
from tests.tiny.plan_items import TEN_SIZES, items_of
from tests.tiny.qwen_edit import CAPTIONS, CPU, picture, pipeline_of, settings, theirs
from tests.tiny.qwen_forward import (
    EVERY_LAYER,
    GARBAGE,
    LENGTHS,
    SIZES,
    make_batch,
    model_with_lora,
    ours,
)
from tests.tiny.qwen_image import LATENT_CHANNELS, make_tiny_denoiser
from tests.tiny.qwen_runs import PROMPT, TRACED, single_files
from tests.tiny.shapes import assert_equal_runs
from tests.tiny.training import events, lora_of, rows, straight_run_that_a_resumed_one_repeats, train_here

ROW = family("qwen_image_edit")
CODE = load_family(ROW.name)
PICTURES = [(64, 64), (64, 96), (160, 32)]
# latents of control pictures: of other sizes than the rows' own too
CONTROLS = [(8, 8), (6, 10), (12, 4)]


def test_captions_with_pictures_are_what_the_pipeline_tells_its_denoiser(tiny_qwen_edit: Path) -> None:
    pipeline = pipeline_of(tiny_qwen_edit)
    assert pipeline.prompt_template_encode == ASKED.replace("{}", PICTURE + "{}")
    assert pipeline.prompt_template_encode_start_idx == TEMPLATE_TOKENS
    stack, counted = CODE.load_text(tiny_qwen_edit, CPU), token_counter(tiny_qwen_edit, FACTS)
    seen = FACTS.picture_tokens(tiny_qwen_edit)
    for caption, size in zip(CAPTIONS, PICTURES, strict=True):
        encoding = stack.encode_with_pictures(caption, [picture(*size)], 512)["prompt_embeds"]
        with torch.no_grad():
            wanted, mask = pipeline.encode_prompt(caption, picture(*size), device="cpu")
        assert mask is None and encoding.shape[0] == seen(*size) + counted(caption)
        torch.testing.assert_close(encoding, wanted[0], atol=1e-6, rtol=1e-5)
        assert stack.encode_with_pictures(caption, [picture(*size)], 3)["prompt_embeds"].shape[0] == seen(*size) + 3
    # as cut by the real tokenizer: what stands around the picture, and the template's end
    assert counted("") == 7
    one, other = (stack.encode_with_pictures("a cat", [picture(64, 64, seed)], 512)["prompt_embeds"] for seed in (1, 2))
    assert not torch.allclose(one, other, atol=1e-3)


def test_pictures_tokens_are_those_of_the_processor(tiny_qwen_edit: Path) -> None:
    seen, processor = (
        FACTS.picture_tokens(BaseModelFiles(None)),
        Qwen2VLImageProcessorPil.from_pretrained(tiny_qwen_edit / "processor"),
    )
    sizes = [(16 * w, 16 * h) for w in range(1, 96, 7) for h in range(1, 96, 9) if max(w, h) / min(w, h) < 200]
    assert [seen(*s) for s in sizes] == [processor.get_number_of_image_patches(s[1], s[0]) // 4 for s in sizes]
    assert seen(1024, 1024) == 37 * 37


def test_the_plan_and_its_memory_have_room_for_the_largest_picture() -> None:
    """Ten sizes are one shape: twice the image tokens, and the text of the picture that most tokens are made of."""
    items = tuple(replace(item, controls=(item,)) for item in items_of(TEN_SIZES))
    cfg = Config.model_validate({"model": {"family": "qwen_image_edit"}})
    plan = plan_for(cfg, DatasetScan(Scan(items)))
    assert plan.graphs.training == (Shape(2 * 4096, 37 * 37 + 512, 1),) and plan.text.before == 37 * 37
    work = work_of(cfg, plan).training
    assert (work.image, work.text) == (2 * 4096, 37 * 37 + 512)


def with_controls(batch: Batch, sizes: list[tuple[int, int]] = CONTROLS) -> Batch:
    draw = torch.Generator().manual_seed(9)
    for text, size in zip(batch.text, sizes, strict=False):
        text["control"] = torch.randn(LATENT_CHANNELS, *size, generator=draw)
    return batch


@pytest.mark.parametrize("shapes", [ShapeRuntime(), ShapeRuntime("static", 64, None, 24)], ids=["native", "static"])
def test_equals_the_pipelines_call_in_output_and_gradients(shapes: ShapeRuntime) -> None:
    batch = with_controls(make_batch(SIZES, LENGTHS))
    wanted = theirs(model_with_lora(EVERY_LAYER), batch)
    shapes.pad_fill = GARBAGE if shapes.mode == "static" else 0.0
    for kind in ("off", "block"):
        model = model_with_lora(EVERY_LAYER)
        checkpointing.apply(model, kind)
        assert_equal_runs(ours(model, batch, shapes), wanted)


def drawn_by(pipeline: QwenImageEditPipeline, control: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The pipeline's picture of 64 x 96 px; it scales a control picture to a megapixel, here to the picture's size."""
    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda area, ratio: (64, 96, None))
    drawn = pipeline(
        Image.open(control).convert("RGB"), "a red circle", "a dog", true_cfg_scale=4.0, width=64, height=96,
        num_inference_steps=3, generator=torch.Generator("cpu").manual_seed(5),
    )  # fmt: skip
    return np.asarray(drawn.images[0]).astype(int)


def pairs(images: Path, where: Path) -> Path:
    """A control picture for each of `images`, of the same size."""
    where.mkdir()
    for number, path in enumerate(sorted(images.glob("*.png"))):
        picture(*Image.open(path).size, seed=number).save(where / path.name)
    return where


@pytest.mark.slow
def test_a_run_makes_the_planned_graphs_and_draws_diffusers_sample(
    tiny_qwen_edit: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On pairs of 8 sizes and captions, some dropped, trimmed beside their pictures; with validation and samples."""
    control = pairs(image_folder, tmp_path / "before")
    before = [str(control / f"picture_{number}.png") for number in (0, 2)]
    sample = PROMPT | {"control_image": before[1]}
    cfg = settings(
        tiny_qwen_edit, image_folder, control, tmp_path,
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static", "caption_buckets": [12, 64]},
        dataset={"caption_dropout_rate": 0.3}, training={"max_train_steps": 6},
        sampling={"prompts": [sample, sample | {"steps": 1, "control_image": before[0]}], "sample_at_start": True},
        validation={"validate_at_start": True}, network={"targets_include": TRACED},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, plan = rows(run)[-1], events(run, "plan")[0]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (plan["graphs"]["planned"], 0, 0)
    assert last["graphs"] > 0 and [event["step"] for event in events(run, "validation")] == [0, 6]
    drawn = {(s.step, s.prompt_index): np.asarray(Image.open(s.path)).astype(int) for s in run.samples()}
    # diffusers draws the same from base and file: text of both prompts, control, strength, names, levels, guidance
    pipeline = pipeline_of(tiny_qwen_edit)
    without, other = (drawn_by(pipeline, path, monkeypatch) for path in (before[1], before[0]))
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    theirs = drawn_by(pipeline, before[1], monkeypatch)
    assert np.abs(drawn[6, 0] - theirs).max() <= 1 and np.abs(without - theirs).max() > 3
    assert np.abs(drawn[0, 0] - without).max() <= 1 and np.abs(other - without).max() > 1


def test_from_single_files_a_resumed_run_is_the_straight_one_and_swap_changes_nothing(
    tiny_qwen_edit: Path, image_folder: Path, tmp_path: Path
) -> None:
    """As ComfyUI's users have it: transformer, text encoder with its eyes and VAE in a file each, and a tokenizer."""
    files = single_files(tiny_qwen_edit / "tokenizer", tmp_path / "files", eyes=16)
    control = pairs(image_folder, tmp_path / "before")
    measured = {"path": str(image_folder), "name": "all", "control_path": str(control)}

    make = partial(
        settings, tiny_qwen_edit, image_folder, control, tmp_path, model=files, compile={"shape_mode": "static"},
        dataset={"validation_split": 0.0}, validation={"validation_folders": [measured]},
        network={"targets_include": ["attn.to_q", "txt_mlp.net.2"]},
    )  # fmt: skip
    straight = straight_run_that_a_resumed_one_repeats(make, steps=2)
    assert events(straight, "validation")[-1]["loss"] > 0
    # ComfyUI's Qwen-Image-Edit is its Qwen-Image
    stems = {split_key(key)[0] for key in lora_of(straight)}
    assert len(stems) == 3 * 2 and stems <= comfy_maps.published(make_tiny_denoiser().state_dict())


def test_what_does_not_belong_is_named(tiny_qwen_edit: Path, tiny_qwen_image: Path, tmp_path: Path) -> None:
    assert ROW.check_base_model(tiny_qwen_edit) == []
    assert "QwenImagePipeline" in ROW.check_base_model(tiny_qwen_image)[0].text
    base = Path(shutil.copytree(tiny_qwen_edit, tmp_path / "base"))
    index, net = base / "model_index.json", base / "transformer" / "config.json"
    index.write_text(index.read_text().replace("QwenImageEditPipeline", "QwenImageEditPlusPipeline"))
    net.write_text(json.dumps(json.loads(net.read_text()) | {"zero_cond_t": True}))
    (base / "processor" / "preprocessor_config.json").unlink()
    message = " ".join(problem.sentence() for problem in ROW.check_base_model(base, families=PIPELINES))
    assert message.count("the family qwen_image_edit_plus") == 2 and "QwenImageEditPlusPipeline" in message
    assert "zero_cond_t" in message and "preprocessor_config.json" in message
    # ComfyUI's file of 2511 says so by a tensor
    stored = make_tiny_denoiser().state_dict()
    file = originals.write(tmp_path / "2511.safetensors", stored | {"__index_timestep_zero__": torch.zeros(1)})
    assert any("zero_cond_t" in problem.text for problem in ROW.check_base_model(file))
